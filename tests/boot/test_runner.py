"""A script under the runner has the same environment as under Python; its uncaught exception becomes a report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(60)

SEEN = """
import json, sys
import __main__
print(json.dumps([sys.argv, sys.path, __name__, __file__, __package__, str(__spec__ and __spec__.name),
                  str(__builtins__), type(__loader__).__name__, __main__.__dict__ is globals(),
                  sorted(set(globals()) - {"__annotations__"})]))
"""


def python(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=30,
    )


def run(folder: Path, script: str, *, interpreter_options: tuple[str, ...] = ()) -> tuple[Any, dict[str, Any] | None]:
    """Run a script's text as rank 3; return the finished process and its report."""
    (folder / "script.py").write_text(script)
    reports = folder / "reports"
    reports.mkdir(exist_ok=True)
    runner = [*interpreter_options, "-m", "hocket.boot.runner"]
    done = python(folder, *runner, "script.py", RANK="3", HOCKET_REPORT_DIR=str(reports))
    file = reports / "rank-3.json"
    assert [one.name for one in reports.iterdir()] in ([], ["rank-3.json"])
    return done, json.loads(file.read_text()) if file.exists() else None


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["sub/script.py", "-m", "--", "x"], id="script"),
        pytest.param(["-m", "package.module", "--help"], id="module"),
        pytest.param(["-m", "package", "x"], id="package"),
        pytest.param(["package", "x"], id="folder"),
        pytest.param(["program.zip", "x"], id="archive"),
    ],
)
@pytest.mark.parametrize("options", [[], ["-P"]], ids=["", "-P"])
def test_program_sees_what_it_sees_under_python(tmp_path: Path, arguments: list[str], options: list[str]) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "package").mkdir()
    for name in ("sub/script.py", "package/__init__.py", "package/__main__.py", "package/module.py"):
        (tmp_path / name).write_text("" if name.endswith("__init__.py") else SEEN)
    with zipfile.ZipFile(tmp_path / "program.zip", "w") as archive:
        archive.writestr("__main__.py", SEEN)
    env = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    if options and arguments[0] == "-m":
        env["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{env['PYTHONPATH']}"
    plain = python(tmp_path, *options, *arguments, **env)
    ours = python(tmp_path, *options, "-m", "hocket.boot.runner", *arguments, **env)
    assert plain.returncode == 0, plain.stderr
    assert json.loads(ours.stdout or "null") == json.loads(plain.stdout), ours.stderr


def test_module_beside_the_working_directory_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('not the real one')")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "script.py").write_text("import json; print(json.dumps(1))")
    done = python(tmp_path, "-m", "hocket.boot.runner", "sub/script.py")
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_exception_becomes_a_report(tmp_path: Path) -> None:
    done, report = run(tmp_path, "def step():\n    raise ValueError('bad')\nprint('said')\nstep()\n")
    assert (done.returncode, done.stdout, done.stderr) == (1, "said\n", "")
    assert report is not None
    assert (report["rank"], report["type_name"], report["message"]) == (3, "ValueError", "bad")
    assert report["traceback"] == python(tmp_path, "script.py").stderr
    assert report["where"] == f"{tmp_path / 'script.py'}:2 in step"


@pytest.mark.parametrize(
    "script",
    ["def f(:", "import no_such_module", "raise KeyError from ValueError()"],
    ids=["syntax", "import", "cause"],
)
def test_traceback_is_that_of_python(tmp_path: Path, script: str) -> None:
    _, report = run(tmp_path, script)
    assert report is not None
    assert report["traceback"] == python(tmp_path, "script.py").stderr


def test_missing_submodule(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    done = python(tmp_path, "-m", "hocket.boot.runner", "-m", "package.absent")
    assert done.returncode == 1
    assert done.stderr.startswith("ModuleNotFoundError: ") and done.stderr.count("\n") == 1
    assert "'package.absent'" in done.stderr


@pytest.mark.parametrize(
    ("statement", "code", "stderr"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('reason')", 1, "reason\n"),
        ("os._exit(9)", 9, ""),
    ],
)
def test_exit_code_is_kept(tmp_path: Path, statement: str, code: int, stderr: str) -> None:
    done, report = run(tmp_path, f"import os, sys\n{statement}")
    assert (done.returncode, done.stderr, report) == (code, stderr, None)


def test_interrupt(tmp_path: Path) -> None:
    done, report = run(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nsignal.pause()\n")
    assert (done.returncode, done.stderr) == (130, "")
    assert report is not None
    assert report["type_name"] == "KeyboardInterrupt"


def test_threads_and_exit_handlers_run_as_ever(tmp_path: Path) -> None:
    script = """
import atexit, pickle, threading
class Value: pass
def late():
    threading.main_thread().join()
    pickle.loads(pickle.dumps(Value()))
    print("thread")
atexit.register(lambda: print("exit", len(pickle.dumps(Value())) > 0))
threading.Thread(target=late).start()
raise ValueError
"""
    done, report = run(tmp_path, script)
    assert (done.returncode, done.stdout, done.stderr) == (1, "thread\nexit True\n", "")
    assert report is not None


def test_forked_child_is_not_the_rank(tmp_path: Path) -> None:
    script = "import os\nchild = os.fork()\nif child == 0: raise ValueError('child')\nos.waitpid(child, 0)\n"
    done, report = run(tmp_path, script)
    assert (done.returncode, report) == (0, None)
    assert done.stderr.endswith("ValueError: child\n")


def test_hook_of_the_script_runs_but_does_not_print(tmp_path: Path) -> None:
    script = """
import sys
def hook(kind, error, trace):
    open("told", "w").write(str(error))
    print("noise", file=sys.stderr)
sys.excepthook = hook
raise ValueError("bad")
"""
    done, report = run(tmp_path, script)
    assert (done.returncode, done.stderr) == (1, "")
    assert report is not None
    assert (tmp_path / "told").read_text() == "bad"


def test_without_a_folder_it_prints(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("1/0")
    done = python(tmp_path, "-m", "hocket.boot.runner", "script.py", RANK="0", HOCKET_REPORT_DIR=str(tmp_path / "gone"))
    assert done.returncode == 1
    assert done.stderr == python(tmp_path, "script.py").stderr


def test_multiprocessing_finds_the_script(tmp_path: Path) -> None:
    script = """
import multiprocessing
def double(x): return 2 * x
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool: print(pool.map(double, [21]))
"""
    done, _ = run(tmp_path, script)
    assert (done.returncode, done.stdout) == (0, "[42]\n"), done.stderr
