"""Programs run with the hooks, and what their recorders and strace say about their files.

strace sees more than the hooks can, and should: files that the dynamic loader reads (libraries, its cache), which are
mapped before the hooks are; and what is no file: pipes, sockets, devices, memory without a name, files of the kernel.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from hocket import _native
from hocket.observe.run import hooks_library
from hocket.trace import RecorderSnapshot, read_recorder

HOOKS = hooks_library()
IO_LAYER = 3
_READS = ("read", "pread64", "readv", "preadv", "preadv2")
_WRITES = ("write", "pwrite64", "writev", "pwritev", "pwritev2")
_FROM_FIRST = ("copy_file_range", "splice")
_TRACED = (*_READS, *_WRITES, *_FROM_FIRST, "sendfile")
_CALL = re.compile(rb"^(\w+)\((.*)\) += (\d+)(?: .*)?$")
_DESCRIPTOR = re.compile(rb"(?:^|, )\d+<((?:[^<>\\]|\\.)*)>")
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)")
_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"v": b"\v", b"f": b"\f"}


@dataclass
class Bytes:
    """Bytes read and written by the name of the file."""

    read: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)

    def of(self, prefix: str) -> tuple[int, int]:
        """Return the sums of the files whose names begin so."""
        read, written = (
            sum(n for name, n in one.items() if name.startswith(prefix)) for one in (self.read, self.written)
        )
        return read, written


def run_hooked(
    command: Sequence[str | Path], recorders: Path, trace: Path | None = None, layers: str = "io"
) -> subprocess.CompletedProcess[bytes]:
    """Run a command with the hooks; under strace, if `trace` names the beginning of its files."""
    recorders.mkdir(exist_ok=True)
    variables = {
        "HOCKET_OBSERVE": layers, "HOCKET_RECORDER_FOLDER": str(recorders), "HOCKET_RECORDER_KEEP": "1",
        "LD_PRELOAD": str(HOOKS), "HOCKET_RECORDER_BUDGET": "all",
    }  # fmt: skip
    whole: list[str | Path] = ["env", *(f"{name}={value}" for name, value in variables.items()), *command]
    if trace is not None:
        settings = [f"-E{name}={value}" for name, value in variables.items()]
        whole = [
            "strace", "-ff", "--seccomp-bpf", "-y", "-s0", "-esignal=none", "-etrace=" + ",".join(_TRACED),
            "-o", trace, *settings, *command,
        ]  # fmt: skip
    return subprocess.run(whole, capture_output=True, timeout=200)


def snapshots(recorders: Path) -> list[RecorderSnapshot]:
    """Read the recorders of all processes that have run."""
    return [read_recorder(path) for path in sorted(recorders.glob("hocket-recorder-*"))]


def recorded_bytes(found: Sequence[RecorderSnapshot]) -> Bytes:
    """Return what the exact totals of the recorders say."""
    total = Bytes()
    names = list(_native.IO_NAMES)
    for snapshot in found:
        assert snapshot.problems == ()
        for entry in snapshot.histograms[snapshot.histograms["layer"] == IO_LAYER]:
            name = snapshot.names[("file", int(entry["comm"]), 0)]
            kind = names[int(entry["kind"])]
            is_target = int(entry["algorithm"]) == 1
            nbytes = int(entry["nbytes"])
            if kind == "read" or (kind == "copy" and not is_target):
                total.read[name] += nbytes
            if kind == "write" or (kind == "copy" and is_target):
                total.written[name] += nbytes
    return _without_empty(total)


def traced_bytes(trace: Path) -> Bytes:
    """Return what strace's lines say."""
    total = Bytes()
    for path in trace.parent.glob(trace.name + ".*"):
        for line in path.read_bytes().splitlines():
            matched = _CALL.match(line)
            if matched is None:
                continue
            call, nbytes = matched[1].decode(), int(matched[3])
            files = [_name(text) for text in _DESCRIPTOR.findall(matched[2])]
            if call == "sendfile":
                target, source = files
            elif call in _FROM_FIRST:
                source, target = files
            else:
                source, target = (files[0], None) if call in _READS else (None, files[0])
            if source:
                total.read[source] += nbytes
            if target:
                total.written[target] += nbytes
    return _without_empty(total)


def calls(snapshot: RecorderSnapshot, name: str) -> Iterator[tuple[str, int, int, str]]:
    """Yield kind, state, bytes and route of the events of a file, oldest first."""
    for event in snapshot.rings["io"].events:
        if Path(snapshot.names[("file", int(event["comm"]), 0)]).name == name:
            yield (
                _native.IO_NAMES[int(event["kind"])], int(event["state"]), int(event["nbytes"]),
                ("posix", "vectored", "stdio", "mpi")[int(event["backend"])],
            )  # fmt: skip


@cache
def _name(escaped: bytes) -> str | None:
    """The name of a file as a recorder has it; None: what strace alone sees."""
    raw = _ESCAPE.sub(
        lambda found: _LETTERS.get(found[1]) or (bytes([int(found[1], 8)]) if found[1].isdigit() else found[1]),
        escaped,
    )
    name = raw.decode(errors="replace")
    base = os.path.basename(name)
    is_device = name.startswith("/dev/") and not name.startswith("/dev/shm/")
    if not name.startswith("/") or name.startswith(("/proc/", "/sys/", "/memfd:", "/etc/ld.so.")) or is_device:
        return None
    kind = re.search(r"\.(pyc|py|so)(\.\d+)*$", base)
    if kind is not None:
        return None if kind[1] == "so" else f"*.{kind[1]}"
    return None if base.startswith("hocket-recorder-") else name


def _without_empty(total: Bytes) -> Bytes:
    return Bytes(
        Counter({k: v for k, v in total.read.items() if v}), Counter({k: v for k, v in total.written.items() if v})
    )
