"""The command as a whole: version, help, discovery of verbs, and imported modules."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket.cli._application import _application

from ..naming import assert_names

pytestmark = pytest.mark.timeout(60)
_WITH_A_FOLDER = (
    "import sys, hocket.cli; from hocket.cli._command import main; hocket.cli.__path__.append(sys.argv.pop(1)); main()"
)


def run_python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=30)


def hocket(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python("from hocket.cli._command import main; main()", *arguments)


def test_version() -> None:
    done = hocket("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("hocket ")


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_names_the_verbs(option: str) -> None:
    done = hocket(option)
    assert done.returncode == 0
    assert "  run " in done.stdout


@pytest.mark.parametrize("group", [(), ("bench",), ("pipeline",), ("tune",), ("collectives",)])
def test_lists_of_commands_are_not_cut(group: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hocket.cli", *group, "-h"],
        env={**os.environ, "COLUMNS": "60"}, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0
    assert "..." not in done.stdout.partition("Commands:")[2] != ""


def test_every_verb_has_its_result_for_programs() -> None:
    def verbs(group: Any, path: str) -> Iterator[tuple[str, Any]]:
        for name, command in group.commands.items():
            yield from (
                verbs(command, f"{path} {name}") if hasattr(command, "commands") else [(f"{path} {name}", command)]
            )

    found = dict(verbs(_application(), "hocket"))
    assert "hocket run" in found and "hocket tune draw" in found
    options = {name: {option for each in command.params for option in each.opts} for name, command in found.items()}
    assert [name for name, of_verb in options.items() if "--json" not in of_verb] == []


@pytest.mark.parametrize(
    ("shell", "words", "completed"),
    [
        ("bash", {"COMP_WORDS": "hocket ru", "COMP_CWORD": "1"}, "run"),
        ("bash", {"COMP_WORDS": "hocket tune ch", "COMP_CWORD": "2"}, "check"),
        ("bash", {"COMP_WORDS": "hocket explain all_red", "COMP_CWORD": "2"}, "all_reduce"),
        ("bash", {"COMP_WORDS": "hocket bench run bidi", "COMP_CWORD": "3"}, "bidirectional_bandwidth"),
        ("bash", {"COMP_WORDS": "hocket collectives draw all_g", "COMP_CWORD": "3"}, "all_gather"),
        ("bash", {"COMP_WORDS": "hocket pipeline draw chim", "COMP_CWORD": "3"}, "chimera"),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "hocket run --tag"}, "--tag-output"),
        ("fish", {"_TYPER_COMPLETE_ARGS": "hocket doc", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}, "doctor"),
    ],
)
def test_completion_in_shells(shell: str, words: dict[str, str], completed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['hocket']; from hocket.cli._command import main; main()"],
        env={**os.environ, **words, "_HOCKET_COMPLETE": f"complete_{shell}"},
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert completed in done.stdout


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
    done = run_python(_WITH_A_FOLDER, str(tmp_path), "sing")
    assert (done.returncode, done.stdout) == (0, "la\n"), done.stderr


def test_a_verb_is_loaded_without_the_others() -> None:
    program = (
        "import sys; from hocket.cli._application import run_command_line; run_command_line(['run', '--help']);"
        "verbs = [name for name in sys.modules if name.startswith('hocket.cli.') and '._' not in name];"
        "print(verbs, 'numpy' in sys.modules)"
    )
    assert run_python(program).stdout.splitlines()[-1] == "['hocket.cli.run'] False"


def test_a_verb_that_no_file_is_named_after_is_found(tmp_path: Path) -> None:
    (tmp_path / "songs.py").write_text(
        "def register(application):\n    application.command('sing')(lambda: print('la'))\n"
    )
    done = run_python(_WITH_A_FOLDER, str(tmp_path), "sing")
    assert (done.returncode, done.stdout) == (0, "la\n"), done.stderr
    done = run_python(_WITH_A_FOLDER, str(tmp_path), "songs")
    assert done.returncode == 2
    assert_names(done.stderr, "songs")


def test_typer_is_loaded_by_the_command_only() -> None:
    program = "import sys, hocket.cli, hocket.boot.launcher; print({'typer', 'rich', 'numpy'} & set(sys.modules))"
    assert run_python(program).stdout == "set()\n"
