"""The rooms of `make test`, and one run of the tests of a room."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .catalogue import NATIVE, Mutation

THE_PROJECT = "the project"  # the tests that lie in tests/ itself
_LEFT_OUT = ("mutations", "native", "system")  # the two others are not part of `make test`
# Whose tests go through most of what has no room of its own, or is wired together there.
_FIRST = {
    NATIVE: ("conformance", "comm", "sim", "collectives", "mixing"),
    "session": ("session", "tune", "faults", "comm"),
}
_MARK = "HOCKET_TEST_MUTATION"  # tests keep variables that begin so (tests/conftest.py)
_FAILED = re.compile(r"^(tests/.+?::.+) (?:FAILED|ERROR) +\[ *\d+%\]$", re.MULTILINE)
_SUMMARY = re.compile(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", re.MULTILINE)  # ids of tests may have " - " in them
_BEGUN = re.compile(r"^(tests/\S+\.py(?:::.+?)?)(?: (?:PASSED|SKIPPED|XFAIL|RERUN).*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """How the tests of a room went.

    Args:
        kind: "passed"; "test": one failed; "collection": they could not be imported; "time-out"; "crash";
            "broken": pytest itself did not work.
        test: that failed, or was the last to begin; empty where none did.
        seconds: that it took.
        failed: all that did.
    """

    kind: str
    test: str
    seconds: float
    failed: Sequence[str] = ()


def rooms(root: Path) -> list[str]:
    """Return the rooms of `make test`."""
    folders = [each.name for each in (root / "tests").iterdir() if any(each.glob("**/test_*.py"))]
    return [*sorted(set(folders) - {*_LEFT_OUT}), THE_PROJECT]


def in_order(mutation: Mutation, found: Sequence[str], seconds: dict[str, float]) -> tuple[list[str], list[str]]:
    """Return the rooms whose tests should catch a bug, and the others, the quick ones first.

    Args:
        mutation: whose room is first.
        found: all rooms.
        seconds: what those take that have been run.
    """
    names = _FIRST.get(mutation.room, (mutation.room,))
    first = [each for each in names if each in found]
    return first, sorted((each for each in found if each not in first), key=lambda room: seconds.get(room, 0.0))


def fingerprint(root: Path, room: str, mutation: Mutation | None = None) -> str:
    """Return what a result stands on: sources, the tests of a room and what they share, and the mutation."""
    digest = hashlib.sha256(repr(mutation).encode())
    tests = root / "tests"
    own = tests.glob("test_*.py") if room == THE_PROJECT else [tests / room]
    shared = [each for each in tests.glob("*.py") if not each.name.startswith("test_")]
    for top in (root / "src", root / "native", tests / "prefork", *sorted(shared), *own):
        for path in sorted([top] if top.is_file() else top.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so":
                digest.update(f"\0{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def files_of(root: Path, room: str, mutation: Mutation) -> list[str]:
    """Return the files of a room's tests, those first that are likely to catch a bug: by their names, and by what they
    import."""
    tests = root / "tests"
    found = tests.glob("test_*.py") if room == THE_PROJECT else (tests / room).glob("**/test_*.py")
    changed = Path(mutation.file)

    def likelihood(path: Path) -> tuple[int, str]:
        about = path.stem.removeprefix("test_")
        is_named = (
            about in changed.stem or changed.stem in about or (mutation.is_native and changed.parent.name in about)
        )
        imports = not mutation.is_native and mutation.module in path.read_text()
        return 0 if is_named else 1 if imports else 2, path.name

    return [str(each.relative_to(root)) for each in sorted(found, key=likelihood)]


def run_room(
    python: Path,
    root: Path,
    room: str,
    mutation: Mutation,
    *,
    deadline_s: float,
    log: Path,
    without: Iterable[str] = (),
    stops: bool = True,
) -> Run:
    """Run the tests of a room.

    Args:
        python: interpreter of the project's copy.
        root: of the copy.
        room: name.
        mutation: whose likeliest tests are the first.
        deadline_s: after which whatever was started is killed.
        log: file for the output.
        without: tests that are left out.
        stops: at the first that fails.
    """
    arguments = ["-x"] * stops + files_of(root, room, mutation) + [f"--deselect={each}" for each in without]
    return run_tests(python, root, arguments, deadline_s=deadline_s, log=log)


def run_tests(python: Path, root: Path, arguments: Sequence[str], *, deadline_s: float, log: Path) -> Run:
    """Run pytest, and end all that it has left behind."""
    mark = secrets.token_hex(8)
    command = [str(python), "-u", "-m", "pytest", "-v", "--color=no", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    began_s = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, *arguments], cwd=root, env=environment | {_MARK: mark}, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            _kill_marked(mark)
    told = log.read_text(errors="replace")
    return Run(*judge(code, told), time.monotonic() - began_s, failed_tests(told))


def judge(code: int | None, output: str) -> tuple[str, str]:
    """Return the kind of a run and its test.

    Args:
        code: exit code of pytest; None: it was killed at its deadline.
        output: of ``pytest -v``.
    """
    begun = [each.strip() for each in _BEGUN.findall(output)]
    if code is None:
        return "time-out", begun[-1] if begun else ""
    if code == 0 or code == 5:  # 5: no tests are there
        return "passed", ""
    failed = failed_tests(output)
    if code < 0 and begun:
        return "crash", begun[-1]
    if code == 1 and failed and "::" in failed[0]:
        return "test", failed[0]
    if code in (1, 2) and failed:
        return "collection", failed[0]
    return "broken", ""  # pytest itself, its command line, or the machine


def failed_tests(output: str) -> list[str]:
    """Return the ids of the tests that failed, or the files that could not be imported."""
    return list(dict.fromkeys(_FAILED.findall(output))) or _SUMMARY.findall(output)


def _kill_marked(mark: str) -> None:
    """Kill what tests have started and not ended: ranks that a bug has let go have process groups of their own."""
    wanted = f"{_MARK}={mark}".encode()
    for _ in range(3):  # one may start another meanwhile
        left = False
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if wanted in (entry / "environ").read_bytes().split(b"\0"):
                        os.kill(int(entry.name), signal.SIGKILL)
                        left = True
        if not left:
            return
