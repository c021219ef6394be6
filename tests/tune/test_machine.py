"""When times of one machine count on another."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from hocket.tune import Machine, this_machine

from .tables import MACHINE

pytestmark = pytest.mark.timeout(60)


def test_the_same_machine() -> None:
    assert MACHINE.difference(replace(MACHINE, backends=dict(MACHINE.backends))) is None


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"processor": "a faster one"}, "its processor is 'a faster one', here it is 'a processor'"),
        ({"num_cpus": 64}, "its number of processors is 64, here it is 2"),
        ({"num_hosts": 3}, "its number of hosts is 3, here it is 1"),
        ({"backends": {"shm": "shared memory", "mpi": "MPICH 4"}}, "its mpi is 'MPICH 4', here it is 'MPICH 5'"),
    ],
)
def test_what_differs_is_named(other: dict[str, Any], words: str) -> None:
    assert MACHINE.difference(replace(MACHINE, **other)) == words


def test_times_between_hosts_stand_for_those_between_more() -> None:
    three, two = replace(MACHINE, num_hosts=3), replace(MACHINE, num_hosts=2)
    assert three.difference(two, carries_over=True) is None
    assert three.difference(two) == "its number of hosts is 2, here it is 3"
    assert three.difference(MACHINE, carries_over=True) == "its number of hosts is 1, here it is 3"


@pytest.mark.parametrize("backends", [{}, {"shm": "shared memory"}, {**MACHINE.backends, "ucx": "UCX 1"}])
def test_a_backend_more_or_less_does_not_matter(backends: dict[str, str]) -> None:
    assert MACHINE.difference(replace(MACHINE, backends=backends)) is None
    assert replace(MACHINE, backends=backends).difference(MACHINE) is None


_TWO_DIFFER = """
from hocket.tune.machine import Machine
ours, theirs = ({name: f"{name} {version}" for name in ("gloo", "mpi", "shm")} for version in (1, 2))
print(Machine("p", 2, 1, ours).difference(Machine("p", 2, 1, theirs)))
"""


def test_all_processes_name_the_same_difference() -> None:
    seen = set()
    for seed in range(6):
        environ = {**os.environ, "PYTHONHASHSEED": str(seed)}
        done = subprocess.run(
            [sys.executable, "-c", _TWO_DIFFER], env=environ, capture_output=True, text=True, timeout=30
        )
        assert "here it is" in done.stdout, done.stderr
        seen.add(done.stdout)
    assert len(seen) == 1


def test_this_machine() -> None:
    machine = this_machine({"shm": "shared memory"})
    assert (machine.num_cpus, machine.num_hosts, machine.backends) == (
        len(os.sched_getaffinity(0)), 1, {"shm": "shared memory"},
    )  # fmt: skip
    assert machine.processor.strip()
    assert this_machine({"shm": "shared memory"}, 2) == replace(machine, num_hosts=2)
    assert machine.difference(this_machine({"shm": "shared memory"})) is None


def test_json() -> None:
    assert Machine(**MACHINE.to_json()) == MACHINE  # type: ignore[arg-type]
