"""Counters of Lustre and NFS, in texts of the forms that their documentation gives.

Lustre: The Lustre wiki, "Lustre IO Monitoring": ``{count} samples [{unit}] {min} {max} {sum} {sumsq}``. NFS:
mountstats(8), and in Linux include/linux/nfs_iostat.h (bytes) and include/linux/sunrpc/metrics.h (operations).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hocket.errors import RecorderError
from hocket.observe import file_systems
from hocket.observe.file_systems import parse_lustre, parse_nfs, sample_file_systems

from ..naming import raises

LUSTRE = """\
snapshot_time             1606160704.123456789 secs.nsecs
start_time                1606150000.000000000 secs.nsecs
elapsed_time              10704.123456789 secs.nsecs
read_bytes                500 samples [bytes] 4096 1048576 209715200 9876543210
write_bytes               7 samples [bytes] 1 4096 10007
ioctl                     3 samples [reqs]
open                      12 samples [usec] 4 90 300 4500
"""
NFS = """\
device rootfs mounted on / with fstype rootfs
device proc mounted on /proc with fstype proc
device server:/export/my\\040data mounted on /mnt/my\\040data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,rsize=1048576,wsize=1048576,proto=tcp,addr=10.0.0.1
\tage:\t968
\timpl_id:\tname='',domain='',date='0,0'
\tcaps:\tcaps=0x3fffdf,wtmult=512,dtsize=32768,bsize=0,namlen=255
\tevents:\t52 226 0 0 1 13 398 0 0 331 0 47 0 0 77 0 0 77 0 0 0 0 0 0 0 0 0
\tbytes:\t1207640230 12 34 56 1210214218 78 295483 9
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 832 0 1 0 11 6428 6428 0 12154 0 24 26 5726
\tper-op statistics
\t        NULL: 0 0 0 0 0 0 0 0 0
\t        READ: 1298 1299 1 207680 1210292152 6 79386 79407 0
\t       WRITE: 10 10 0 1000 2000 0 500 600 0
\t     GETATTR: 4 4 0 800 400 0 2 3

device server:/b mounted on /b with fstype nfs statvers=1.0
\tbytes:\t1 2 3 4 5 6 7 8
device tmpfs mounted on /run with fstype tmpfs
"""


def test_lustre() -> None:
    sample = parse_lustre(LUSTRE, "scratch-ffff8800")
    assert (sample.source, sample.name) == ("Lustre", "scratch-ffff8800")
    assert sample.numbers == {
        "read_nbytes": 209715200, "read_calls": 500, "written_nbytes": 10007, "write_calls": 7,
    }  # fmt: skip
    idle = parse_lustre("snapshot_time 1606160704.1 secs.nsecs\n", "scratch")
    assert set(idle.numbers.values()) == {0}


@pytest.mark.parametrize("line", [
    "read_bytes 500 samples [pages] 1 2 3", "read_bytes 500 samples [bytes] 1 2", "read_bytes",
    "read_bytes -5 samples [bytes] 1 2 3", "write_bytes 5 samples [bytes] 1 2 3e5",
    "write_bytes 5 samples [bytes] 1 2 " + "9" * 5000,
])  # fmt: skip
def test_other_lines_of_lustre(line: str) -> None:
    with raises(RecorderError, names=("stats", "line 2")):
        parse_lustre("snapshot_time 1.0 secs.nsecs\n" + line, "scratch")


def test_a_file_that_is_not_of_lustre() -> None:
    with raises(RecorderError, names=("stats", "snapshot_time")):
        parse_lustre("read_bytes 5 samples [bytes] 1 2 3", "scratch")


def test_nfs() -> None:
    first, second = parse_nfs(NFS)
    assert first.name == "/mnt/my data from server:/export/my\\040data"
    assert first.numbers == {
        "read_nbytes": 1207640230, "written_nbytes": 12, "direct_read_nbytes": 34, "direct_written_nbytes": 56,
        "server_read_nbytes": 1210214218, "server_written_nbytes": 78, "operations": 1312, "transmissions": 1313,
        "timeouts": 1, "round_trip_s": pytest.approx(79.888), "execute_s": pytest.approx(80.01),
        "read_operations": 1298, "read_execute_s": 79.407, "write_operations": 10, "write_execute_s": 0.6,
    }  # fmt: skip
    assert second.name == "/b from server:/b"
    assert second.numbers["server_written_nbytes"] == 6 and second.numbers["operations"] is None


@pytest.mark.parametrize(("before", "after", "number"), [
    ("statvers=1.1", "statvers=2.0", 3), ("bytes:\t1207640230", "bytes:\tmany", 9),
    ("bytes:\t1 2 3 4 5 6 7 8", "bytes:\t1", 19),
    ("READ: 1298 1299 1 207680 1210292152 6 79386 79407 0", "READ: 1298 1299", 14),
])  # fmt: skip
def test_other_lines_of_nfs(before: str, after: str, number: int) -> None:
    assert before in NFS
    with raises(RecorderError, names=("/proc/self/mountstats", f"line {number}")):
        parse_nfs(NFS.replace(before, after))


def test_what_is_mounted_here_is_read_and_what_is_damaged_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: set[str] = set()
    folder, statistics = tmp_path / "llite" / "scratch-1", tmp_path / "mountstats"
    folder.mkdir(parents=True)
    monkeypatch.setattr(file_systems, "LUSTRE_FOLDERS", (tmp_path / "missing", tmp_path / "llite"))
    monkeypatch.setattr(file_systems, "MOUNT_STATISTICS", statistics)
    assert list(sample_file_systems(problems)) == []
    (folder / "stats").write_text(LUSTRE)
    statistics.write_text(NFS)
    assert [each.source for each in sample_file_systems(problems)] == ["Lustre", "NFS", "NFS"]
    assert problems == set()
    (folder / "stats").write_bytes(b"x" * (5 << 20))
    assert [each.source for each in sample_file_systems(problems)] == ["NFS", "NFS"]
    (problem,) = problems
    assert str(folder / "stats") in problem


def test_this_machines_own_statistics_can_be_read() -> None:
    assert isinstance(parse_nfs(Path("/proc/self/mountstats").read_text()), list)
