"""`record_io`: the hooks of file I/O in a process that was started without them, put in and taken out again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hocket.observe import completeness_of
from hocket.trace import RecorderSnapshot

from ..load import scaled
from .traced_io import recorded_bytes, run_hooked, snapshots

pytestmark = pytest.mark.timeout(240)
HERE = Path(__file__).parent
_PROBE = """
import ctypes, json, os, sys
from pathlib import Path
import numpy as np
from hocket import observe
def probe(path):
    library = ctypes.CDLL(path)
    library.slot_sum.restype = library.slots_into.restype = ctypes.c_ulong
    library.read_by_descriptor.restype = library.read_by_stdio.restype = ctypes.c_long
    library.load_by_name.restype = ctypes.c_void_p
    return library
folder = sys.argv[1]
"""


def compiled_probe(folder: Path, name: str) -> Path:
    path = folder / name
    command = ["c++", "-std=c++20", "-O1", "-shared", "-fPIC", str(HERE / "slot_probe.cpp"), "-o", str(path)]
    subprocess.run([*command, "-Wl,--enable-new-dtags,-rpath,$ORIGIN/other"], check=True, timeout=120)
    return path


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a library, a copy of it, and one that the first one finds by its own path alone."""
    folder = tmp_path_factory.mktemp("probes")
    compiled_probe(folder, "first.so")
    (folder / "second.so").write_bytes((folder / "first.so").read_bytes())
    (folder / "other").mkdir()
    (folder / "other" / "third-probe.so").write_bytes((folder / "first.so").read_bytes())
    return folder


def run_plainly(text: str, folder: Path, recorders: Path, **variables: str) -> tuple[Any, RecorderSnapshot]:
    """Run a program that imports hocket, without hooks; return what it prints, and its recorder."""
    recorders.mkdir(exist_ok=True)
    environment = {
        **os.environ, "HOCKET_RECORDER_FOLDER": str(recorders), "HOCKET_RECORDER_KEEP": "1",
        "HOCKET_RECORDER_BUDGET": "all", **variables,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", _PROBE + textwrap.dedent(text), str(folder)],
        env=environment, capture_output=True, timeout=scaled(100),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    (snapshot,) = [each for each in snapshots(recorders) if "observe" in each.owner.program]
    return json.loads(done.stdout), snapshot


def test_slots_are_as_before_and_nothing_is_recorded_afterwards(probes: Path, tmp_path: Path) -> None:
    found, snapshot = run_plainly(
        f"""
        library = probe({str(probes / "first.so")!r})
        Path(folder, "data").write_bytes(bytes(500))
        from hocket.observe.io_hooks import _hooks
        _hooks()  # loading it makes slots of its own
        before = library.slot_sum()
        found = [library.slots_into(b"hocket_hooks")]
        for round in range(3):
            with observe.record_io():
                found.append(library.slots_into(b"hocket_hooks"))
                assert library.slot_sum() != before
                assert library.read_by_descriptor((folder + "/data").encode()) == 500
                assert library.read_by_stdio((folder + "/data").encode()) == 500
                Path(folder, f"written-{{round}}").write_bytes(bytes(70))
                np.arange(100.0).tofile(folder + f"/numpy-{{round}}")
            found.append(library.slots_into(b"hocket_hooks"))
            assert library.slot_sum() == before
            library.read_by_descriptor((folder + "/data").encode())
            library.read_by_stdio((folder + "/data").encode())
            Path(folder, "unseen").write_bytes(bytes(99))
        print(json.dumps(found))
        """,
        tmp_path,
        tmp_path / "recorders",
        LD_BIND_NOW="1",
    )
    assert found[0::2] == [0, 0, 0, 0] and all(number > 50 for number in found[1::2]), found
    recorded = recorded_bytes([snapshot])
    assert recorded.read == {str(tmp_path / "data"): 3000}
    expected = {str(tmp_path / f"written-{round}"): 70 for round in range(3)}
    expected |= {str(tmp_path / f"numpy-{round}"): 800 for round in range(3)}
    assert recorded.written == expected
    assert str(tmp_path / "unseen") not in {each.text for each in snapshot.definitions}
    read, written = completeness_of(snapshot).read, completeness_of(snapshot).written
    assert read is not None and written is not None
    assert (read.missing_nbytes, written.missing_nbytes, written.kernel_nbytes) == (0, 0, 3 * 870)


def test_lazy_slots_and_libraries_that_are_loaded_meanwhile(probes: Path, tmp_path: Path) -> None:
    """By path, and by a name that the dynamic linker finds only if it knows who calls."""
    found, snapshot = run_plainly(
        f"""
        Path(folder, "data").write_bytes(bytes(400))
        path = (folder + "/data").encode()
        first = probe({str(probes / "first.so")!r})
        with observe.record_io():
            found = [first.read_by_descriptor(path)]
            second = probe({str(probes / "second.so")!r})
            found += [second.read_by_descriptor(path), second.read_by_stdio(path)]
            handle = first.load_by_name(b"third-probe.so")
            found.append(bool(handle))
            third = ctypes.CDLL("third-probe.so", handle=handle)
            third.read_by_descriptor.restype = ctypes.c_long
            found.append(third.read_by_descriptor(path))
            import sqlite3
            with sqlite3.connect(folder + "/table") as database:
                database.execute("create table x (y)")
        print(json.dumps([*found, os.path.getsize(folder + "/table")]))
        """,
        tmp_path,
        tmp_path / "recorders",
    )
    assert found[:5] == [400, 400, 400, True, 400]
    recorded = recorded_bytes([snapshot])
    assert recorded.read[str(tmp_path / "data")] == 1600
    assert recorded.written[str(tmp_path / "table")] == found[5] > 0


def test_the_same_bytes_as_with_preloading(tmp_path: Path) -> None:
    """strace says what is right for preloaded hooks (tests/system)."""
    totals = []
    for way in ("preloaded", "plain"):
        folder = tmp_path / way
        (folder / "files").mkdir(parents=True)
        text = f"""
        import contextlib, runpy
        import torch
        script = runpy.run_path({str(HERE / "io_script.py")!r})
        with observe.record_io() if {way == "plain"} else contextlib.nullcontext():
            for category in ("builtin", "numpy", "torch"):
                script["use_" + category](Path(folder) / "files")
        print("true")
        """
        if way == "plain":
            run_plainly(text, folder, folder / "recorders")
        else:
            program = _PROBE + textwrap.dedent(text)
            result = run_hooked([sys.executable, "-c", program, folder], folder / "recorders")
            assert result.returncode == 0, result.stderr
        recorded = recorded_bytes(snapshots(folder / "recorders"))
        totals.append([by_plain_name(one, f"{folder}/files/") for one in (recorded.read, recorded.written)])
    assert totals[0] == totals[1]
    for category in ("builtin", "numpy", "torch"):
        assert all(any(name.startswith(category) for name in one) for one in totals[0])


def by_plain_name(total: Mapping[str, int], prefix: str) -> dict[str, int]:
    """Bytes of the files that begin so; a temporary file has another name in each run."""
    names = ((name.removeprefix(prefix), nbytes) for name, nbytes in total.items() if name.startswith(prefix))
    return {re.sub(r"^builtin-[a-z0-9_]{8}$", "builtin-TEMPORARY", name): nbytes for name, nbytes in names}


def test_threads_that_read_while_the_hooks_come_and_go(tmp_path: Path) -> None:
    """No call fails, and in an undisturbed block every byte is seen."""
    found, snapshot = run_plainly(
        """
        import threading
        path = folder + "/data"
        Path(path).write_bytes(bytes(1000))
        stops = threading.Event()
        wrong = []
        def read():
            while not stops.is_set():
                with open(path, "rb", buffering=0) as file:
                    if len(file.read(1000)) != 1000:
                        wrong.append(1)
                values = np.fromfile(path, np.uint8)
                if values.size != 1000:
                    wrong.append(2)
        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(30):
            with observe.record_io():
                Path(folder, "mark").write_bytes(b"12345")
        with observe.record_io(), observe.record_io():
            pass
        stops.set()
        for thread in threads:
            thread.join(30)
        print(json.dumps(wrong))
        """,
        tmp_path,
        tmp_path / "recorders",
    )
    assert found == []
    assert recorded_bytes([snapshot]).written == {str(tmp_path / "mark"): 150}


def test_a_forked_child_goes_on_recording(tmp_path: Path) -> None:
    script = _PROBE + textwrap.dedent(
        """
        def fork(name):
            pid = os.fork()
            if pid == 0:
                Path(folder, name).write_bytes(bytes(77))
                os._exit(0)
            os.waitpid(pid, 0)
        with observe.record_io():
            fork("of-child")
        fork("unseen")
        """
    )
    recorders = tmp_path / "recorders"
    recorders.mkdir()
    environment = {**os.environ, "HOCKET_RECORDER_FOLDER": str(recorders), "HOCKET_RECORDER_KEEP": "1"}
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=scaled(100))
    assert done.returncode == 0, done.stderr
    found = snapshots(recorders)
    assert recorded_bytes(found).written == {str(tmp_path / "of-child"): 77}
    (child,) = [each for each in found if each.io.state == "ended" and recorded_bytes([each]).written]
    figure = completeness_of(child)
    assert figure.written is not None and figure.written.missing_nbytes == 0


def test_in_a_process_that_is_recorded_from_outside_nothing_changes(tmp_path: Path) -> None:
    script = _PROBE + textwrap.dedent(
        """
        with observe.record_io():
            Path(folder, "inside").write_bytes(bytes(20))
        Path(folder, "after").write_bytes(bytes(30))
        """
    )
    result = run_hooked([sys.executable, "-c", script, tmp_path], tmp_path / "recorders")
    assert result.returncode == 0, result.stderr
    recorded = recorded_bytes(snapshots(tmp_path / "recorders"))
    assert recorded.written == {str(tmp_path / "inside"): 20, str(tmp_path / "after"): 30}


def test_where_only_communication_is_recorded_from_outside(tmp_path: Path) -> None:
    """The hooks are in their places already, and begin and end to record."""
    script = _PROBE + textwrap.dedent(
        """
        Path(folder, "before").write_bytes(bytes(10))
        with observe.record_io():
            Path(folder, "inside").write_bytes(bytes(20))
        Path(folder, "after").write_bytes(bytes(30))
        os.write(1, b"text")
        """
    )
    result = run_hooked([sys.executable, "-c", script, tmp_path], tmp_path / "recorders", layers="comm")
    assert result.returncode == 0, result.stderr
    (snapshot,) = snapshots(tmp_path / "recorders")
    assert recorded_bytes([snapshot]).written == {str(tmp_path / "inside"): 20}
    figure = completeness_of(snapshot)
    assert figure.written is not None
    assert (figure.written.kernel_nbytes, figure.written.other_nbytes) == (20, 0)


def test_where_nothing_can_be_recorded(tmp_path: Path) -> None:
    script = (
        "from hocket import observe\nfrom hocket.errors import RecorderError\n"
        "try:\n    with observe.record_io():\n        pass\nexcept RecorderError as error:\n    print(error)"
    )
    environment = {**os.environ, "HOCKET_RECORDER": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=scaled(60)
    )
    assert done.returncode == 0 and "HOCKET_RECORDER=0" in done.stdout, done.stderr
