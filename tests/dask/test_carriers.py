"""Frames between hosts over MPI and UCX: every byte arrives, and what cannot be carried goes over TCP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed.comm import connect, listen

from hocket.dask import moving
from hocket.dask.carriers import CarrierLibrary
from hocket.dask.greeting import VERSION, Word

from ..load import scaled
from ..naming import assert_names, raises
from .connections import both_ends, run

pytestmark = pytest.mark.timeout(120)
PROGRAM = Path(__file__).parent / "two_ranks.py"


def run_two_ranks(library: str, case: str) -> list[dict[str, Any]]:
    """Run a case of `two_ranks.py`, and return what the ranks have printed, by rank."""
    found = subprocess.run(
        [sys.executable, "-m", "hocket", "run", "-n", "2", PROGRAM, library, case],
        capture_output=True, text=True, timeout=scaled(90), check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr
    lines = [json.loads(each) for each in found.stdout.splitlines() if each.startswith("{")]
    return sorted(lines, key=lambda each: each["rank"])


@pytest.mark.parametrize("library", ["mpi", "ucx"])
@pytest.mark.parametrize("case", ["exchange", "behind", "abort"])
def test_between_hosts(library: str, case: str) -> None:
    ends = run_two_ranks(library, case)
    assert [each["path"] for each in ends] == [library] * 2
    if case == "exchange":
        assert ends[0]["nbytes_carried_out"] > 40 << 20
        assert ends[0]["nbytes_carried_out"] == ends[1]["nbytes_carried_in"]
        assert ends[1]["nbytes_carried_out"] == ends[0]["nbytes_carried_in"]


def test_a_world_from_which_nothing_arrives() -> None:
    assert [each["path"] for each in run_two_ranks("mpi", "other_world")] == ["tcp"] * 2


class _NoLibrary(CarrierLibrary):
    word = "here"  # type: ignore[assignment]

    def reaches(self, word: str) -> bool:
        return True

    def carrier(self, word: str, outgoing: int, incoming: int) -> Any:
        raise AssertionError


def test_a_peer_at_which_nothing_arrived_is_not_tried_again_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each new connection would wait for its first bytes."""
    library = _NoLibrary(range(10))
    libraries: dict[str, CarrierLibrary] = {"mpi": library}
    here, there = (Word(VERSION, "", "little", carriers={"mpi": each}) for each in ("here", "there"))
    assert moving._reaches(libraries, "mpi", there, tries=True)
    library.note_failure("there")
    assert not moving._reaches(libraries, "mpi", there, tries=True)
    assert moving._reaches(libraries, "mpi", there)  # the peer may try
    assert moving._reaches(libraries, "mpi", here, tries=True)
    monkeypatch.setattr("time.monotonic", lambda now=time.monotonic: now() + 61)
    assert moving._reaches(libraries, "mpi", there, tries=True)
    library.note_failure("here")
    assert len(library._failed) == 1


_TOO_LOW = """
import asyncio, sys
import mpi4py
mpi4py.rc.thread_level = "funneled"
from mpi4py import MPI
from distributed.comm import listen

async def main():
    try:
        listener = await listen(sys.argv[1], lambda comm: None)
    except RuntimeError as error:
        print("refused", error)
    else:
        listener.stop()
        print("listens")

asyncio.run(main())
"""


@pytest.mark.parametrize(("scheme", "says"), [("mpi", "refused"), ("hocket", "listens")])
def test_a_thread_level_that_is_too_low(scheme: str, says: str, tmp_path: Path) -> None:
    """By `mpi://` it is an error; by `hocket://` a warning, since frames go over TCP."""
    (tmp_path / "program.py").write_text(_TOO_LOW)
    found = subprocess.run(
        [sys.executable, "-m", "hocket", "run", "-n", "2", tmp_path / "program.py", f"{scheme}://127.0.0.1:0"],
        capture_output=True, text=True, timeout=scaled(90), check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count(says) == 2
    assert_names(found.stdout + found.stderr, "FUNNELED", "THREAD_MULTIPLE")


@pytest.mark.parametrize("wrong", [["mpi", "smoke"], "smoke", 3])
def test_unknown_carriers(wrong: Any) -> None:
    async def program() -> None:
        with dask.config.set({"distributed.comm.hocket.carriers": wrong}):
            for call in (listen("hocket://127.0.0.1:0", lambda _: None), connect("hocket://127.0.0.1:9", timeout=1)):
                with raises(ValueError, names=("carriers", str(wrong if wrong == 3 else "smoke"))):
                    await call

    run(program)


def test_without_carriers() -> None:
    """A program that has no MPI needs none; and nobody loads UCX that does not ask for it."""

    async def program() -> None:
        async with both_ends() as (there, _):
            assert there.extra_info["path"] == "process"

    run(program)
    assert "ucxx" not in sys.modules


def test_ucx_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.backends.ucx.UcxPeers.find_obstacle", lambda: "ucxx is missing")

    async def program() -> None:
        with dask.config.set({"distributed.comm.hocket.carriers": "ucx"}), pytest.raises(RuntimeError) as caught:
            await listen("hocket://127.0.0.1:0", lambda _: None)
        assert_names(str(caught.value), "ucx", "ucxx")

    run(program)
