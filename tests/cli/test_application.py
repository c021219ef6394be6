"""The command as a whole: version, help, how verbs are found, and what is loaded for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(60)


def run_python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=30)


def hocket(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python("from hocket.cli import main; main()", *arguments)


def test_version() -> None:
    done = hocket("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("hocket ")


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_names_the_verbs(option: str) -> None:
    done = hocket(option)
    assert done.returncode == 0
    assert "  run " in done.stdout


def test_help_of_run_has_examples() -> None:
    done = hocket("run", "--help")
    assert done.returncode == 0
    assert "hocket run -n 4 train.py --epochs 3\n" in done.stdout
    assert "Usage: hocket run -n N [OPTIONS] " in done.stdout


def test_without_arguments_it_helps() -> None:
    done = hocket()
    assert done.returncode == 2
    assert "Usage: hocket" in done.stderr


def test_a_verb_is_one_new_file(tmp_path: Path) -> None:
    (tmp_path / "sing.py").write_text(
        "import typer\n"
        "def register(application: typer.Typer) -> None:\n"
        "    application.command('sing')(sing)\n"
        "def sing() -> None:\n"
        "    'Sing.'\n"
        "    print('la')\n"
    )
    done = run_python(
        "import sys, hocket.cli; hocket.cli.__path__.append(sys.argv.pop(1)); hocket.cli.main()", str(tmp_path), "sing"
    )
    assert (done.returncode, done.stdout) == (0, "la\n"), done.stderr


def test_typer_is_loaded_by_the_command_only() -> None:
    program = "import sys, hocket.cli, hocket.boot.launcher; print({'typer', 'rich', 'numpy'} & set(sys.modules))"
    assert run_python(program).stdout == "set()\n"
