"""The memory that the start of a job needs, and the free memory, from files in the kernel's format."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hocket.boot import admission
from hocket.errors import InvalidArgument

from ..naming import raises

pytestmark = pytest.mark.timeout(30)

MIB = 1 << 20


def machine(folder: Path, available_mib: int, group: dict[str, str] | None = None) -> tuple[Path, Path]:
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/meminfo").write_text(f"MemTotal: 999999999 kB\nMemAvailable:   {available_mib * 1024} kB\n")
    (folder / "proc/self/cgroup").write_text("0::/a/b\n")
    (folder / "groups/a/b").mkdir(parents=True)
    for name, text in (group or {}).items():
        (folder / "groups/a/b" / name).write_text(text)
    return folder / "proc", folder / "groups"


@pytest.mark.parametrize(
    ("group", "free_mib"),
    [
        (None, 500),
        ({"memory.max": "max\n"}, 500),
        ({"memory.max": f"{300 * MIB}\n", "memory.current": f"{250 * MIB}\n", "memory.stat": "anon 5\nfile 0\n"}, 50),
        ({"memory.max": f"{300 * MIB}\n", "memory.current": f"{9 * MIB}\n", "memory.stat": f"file {MIB}\n"}, 292),
        ({"memory.max": f"{900 * MIB}\n", "memory.current": "0\n", "memory.stat": "file 0\n"}, 500),
        ({"memory.max": "nonsense\n"}, 500),
    ],
)  # fmt: skip
def test_free_memory(tmp_path: Path, group: dict[str, str] | None, free_mib: int) -> None:
    assert admission.free_nbytes(*machine(tmp_path, 500, group)) == free_mib * MIB


def test_kernels_that_do_not_tell(tmp_path: Path) -> None:
    assert admission.free_nbytes(tmp_path, tmp_path) is None
    assert admission.private_nbytes(tmp_path / "smaps_rollup") is None


def test_a_process_has_memory_of_its_own() -> None:
    before = admission.private_nbytes()
    held = bytearray(os.urandom(32 * MIB))
    after = admission.private_nbytes()
    assert before is not None and after is not None and after - before > 0.9 * len(held)


def test_ranks_that_would_take_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "private_nbytes", lambda: 40 * MIB)
    monkeypatch.setattr(admission, "free_nbytes", lambda: 100 * MIB)
    admission.check_room(2)
    with raises(InvalidArgument, names=("3", "100 MiB", "--oversubscribe")):
        admission.check_room(3)
