"""The list of mutations fits the sources, and its runner forgets and believes nothing that it should not."""

from __future__ import annotations

import ast
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from .catalogue import ROOT, BadMutation, Mutation, load
from .results import GREEN, MISSED, Result, Results
from .rooms import THE_PROJECT, files_of, fingerprint, in_order, judge, rooms, run_tests

MUTATIONS = load()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.id)
def test_a_mutation_fits_its_file(mutation: Mutation) -> None:
    before = (ROOT / mutation.file).read_text()
    after = mutation.apply(before)
    assert after != before
    assert mutation.why.endswith(".")
    if mutation.is_native:
        assert mutation.file.startswith("native/")
    else:
        assert mutation.file.startswith(f"src/hocket/{mutation.room}/")
        assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(before))


def test_the_list_reaches_far() -> None:
    assert len({each.id for each in MUTATIONS}) == len(MUTATIONS) == 43
    counted = Counter(each.room for each in MUTATIONS)
    assert len(counted) == 11 and min(counted.values()) >= 3


def test_every_room_is_tried_once() -> None:
    found = rooms(ROOT)
    assert {"comm", "train", THE_PROJECT} <= set(found)
    assert not {"mutations", "native", "system"} & set(found)
    for mutation in MUTATIONS:
        first, others = in_order(mutation, found, {"sim": 3.0, "trace": 1.0})
        assert sorted([*first, *others]) == sorted(found)
        assert {"comm", "conformance"} <= set(first) if mutation.is_native else first[0] == mutation.room
        assert others[-1] == "sim" or "sim" in first


def test_likely_tests_run_first() -> None:
    for mutation in MUTATIONS:
        files = files_of(ROOT, mutation.room if not mutation.is_native else "comm", mutation)
        assert len(set(files)) == len(files) and all((ROOT / each).exists() for each in files)
    (guideline,) = (each for each in MUTATIONS if each.id == "bench-guideline-of-wrong-size")
    assert files_of(ROOT, "bench", guideline)[0] == "tests/bench/test_guidelines.py"
    assert "tests/test_docs.py" in files_of(ROOT, THE_PROJECT, guideline)


def test_text_that_is_not_there_once_is_refused() -> None:
    mutation = replace(MUTATIONS[0], old="b")
    assert mutation.apply("abc") == f"a{mutation.new}c"
    for text in ("ac", "abcb"):
        with pytest.raises(BadMutation, match=mutation.id):
            mutation.apply(text)


_FAILED = """
tests/comm/test_a.py::test_x[1 b] PASSED                 [ 50%]
tests/comm/test_a.py::test_y[a - b] FAILED               [100%]
=========================== short test summary info ============================
FAILED tests/comm/test_a.py::test_y[a - b] - AssertionError: no
"""
_IMPORT = "ERROR tests/comm/test_a.py - ImportError: no\n"
_HUNG = "tests/comm/test_a.py::test_x[1 b] PASSED    [ 50%]\ntests/comm/test_a.py::test_y[2 b] "


@pytest.mark.parametrize(
    ("code", "output", "found"),
    [
        (0, "", ("passed", "")),
        (5, "", ("passed", "")),
        (1, _FAILED, ("test", "tests/comm/test_a.py::test_y[a - b]")),
        (2, _IMPORT, ("collection", "tests/comm/test_a.py")),
        (4, "ImportError while loading conftest", ("broken", "")),
        (3, "INTERNALERROR> No space left on device", ("broken", "")),
        (-9, "", ("broken", "")),
        (None, _HUNG, ("time-out", "tests/comm/test_a.py::test_y[2 b]")),
        (-11, _HUNG, ("crash", "tests/comm/test_a.py::test_y[2 b]")),
    ],
)
def test_how_a_run_is_judged(code: int | None, output: str, found: tuple[str, str]) -> None:
    assert judge(code, output) == found


def _project(folder: Path) -> Path:
    for name in (
        "src/hocket/comm/a.py",
        "native/b.cpp",
        "tests/comm/test_a.py",
        "tests/boot/test_b.py",
        "tests/tier.py",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def test_what_was_caught_holds_as_long_as_what_caught_it(tmp_path: Path) -> None:
    root, mutation = _project(tmp_path / "project"), MUTATIONS[0]
    lines = tmp_path / "results.jsonl"
    results = Results(lines)
    assert results.caught(root, mutation) is None
    result = Result(mutation.id, "comm", "test", "tests/comm/test_a.py::test", 3.0, fingerprint(root, "comm", mutation))
    missed = fingerprint(root, "boot", mutation)
    results.add(Result(mutation.id, "boot", MISSED, "", 9.0, missed))
    assert results.caught(root, mutation) is None
    assert results.is_missed(mutation, "boot", missed)
    assert not results.is_missed(mutation, "boot", "other tests")
    assert not results.is_missed(MUTATIONS[1], "boot", missed)
    results.add(result)
    with lines.open("a") as file:
        file.write('{"id": "half a li')
    again = Results(lines)
    assert again.caught(root, mutation) == result
    again.add(Result(GREEN, "boot", "passed", "", 1.0, ""))
    assert Results(lines).seconds() == {"boot": 1.0}
    (root / "tests/boot/test_b.py").write_text("another room's")
    assert again.caught(root, mutation) == result
    assert again.caught(root, replace(mutation, new="another bug")) is None
    for name in ("src/hocket/comm/a.py", "native/b.cpp", "tests/comm/test_a.py", "tests/tier.py"):
        before = (root / name).read_text()
        (root / name).write_text("changed")
        assert again.caught(root, mutation) is None
        (root / name).write_text(before)


def test_rooms_are_known_to_pass_by_what_they_are_now(tmp_path: Path) -> None:
    root = _project(tmp_path / "project")
    results = Results(tmp_path / "results.jsonl")
    results.add(Result(GREEN, "comm", "passed", "", 12.0, fingerprint(root, "comm")))
    assert results.seconds() == {"comm": 12.0}
    assert results.green("comm", fingerprint(root, "comm")) is not None
    (root / "src/hocket/comm/a.py").write_text("changed")
    assert results.green("comm", fingerprint(root, "comm")) is None


@pytest.mark.timeout(100)
def test_what_a_run_leaves_behind_is_killed(tmp_path: Path) -> None:
    """A process of a forked program, in a session of its own and with another parent, as ranks of a bad launcher."""
    file = tmp_path / "test_left.py"
    file.write_text(_LEAVES_A_PROCESS.format(pid_file=str(tmp_path / "pid")))
    arguments = ["-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest", f"{file}::test_leaves_a_process"]
    run = run_tests(Path(sys.executable), ROOT, arguments, deadline_s=80, log=tmp_path / "log")
    assert run.kind == "passed", (tmp_path / "log").read_text()
    pid = int((tmp_path / "pid").read_text())
    deadline_s = time.monotonic() + 30
    while not _is_dead(pid):  # a killed process ends when a processor is free for it
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def _is_dead(pid: int) -> bool:
    try:
        return "zombie" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


_LEAVES_A_PROCESS = """
from pathlib import Path
from tests.program import run_python

def test_leaves_a_process(tmp_path):
    (tmp_path / "leaves.py").write_text(
        "import subprocess\\n"
        "left = subprocess.Popen(['sleep', '90'], start_new_session=True, stdout=-3, stderr=-3)\\n"
        "open({pid_file!r}, 'w').write(str(left.pid))\\n"
    )
    run_python("leaves.py", folder=tmp_path, timeout_s=50)
    assert Path({pid_file!r}).exists()
"""
