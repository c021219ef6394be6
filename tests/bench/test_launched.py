"""Benchmarks of ranks that a launcher has started: on one host, and on this machine under two names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from hocket.bench.launchers import mpich_job
from hocket.reserved_port import ReservedPort

from ..naming import assert_names
from ..program import start_python

pytestmark = pytest.mark.timeout(150)
BENCH = ("-m", "hocket.cli", "bench")
QUICK = ("--budget", "0.5", "--sizes", "8,4KiB", "--json")


def run(*commands: tuple[Sequence[str], Mapping[str, str]]) -> list[tuple[int, str, str]]:
    """Run Python's commands at the same time; return exit codes, and what they wrote."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(start_python(*arguments, folder=Path.cwd(), environment={**os.environ, **env}))
            for arguments, env in commands
        ]
        for each in started:
            stack.callback(each.terminate)
        written = [each.communicate(timeout=120) for each in started]
        return [(each.wait(0), *both) for each, both in zip(started, written, strict=True)]


def hocket_run(*arguments: str) -> list[str]:
    return ["-m", "hocket.cli", "run", *arguments]


def results_of(text: str) -> set[tuple[str, str, int, int]]:
    found = json.loads(text)["results"]
    assert all(each["value"] > 0 and each["num_samples"] >= 1 for each in found)
    return {(each["benchmark"], each["target"], each["nbytes"], each["num_ranks"]) for each in found}


def test_one_of_the_ranks_tells_what_all_measured() -> None:
    names = ("latency", "all_reduce", "broadcast", "iall_reduce")
    arguments = ("run", *names, "--library", "shm,torch:gloo")
    ((code, out, err),) = run((hocket_run("-n", "2", *BENCH, *arguments, *QUICK), {}))
    assert code == 0, err
    libraries = ("shm", "torch:gloo")
    assert results_of(out) == {(name, each, nbytes, 2) for name in names for each in libraries for nbytes in (8, 4096)}


def test_under_an_mpi_of_its_own() -> None:
    job = mpich_job([sys.executable, *BENCH, "run", "all_gather", "--library", "mpi4py,shm", *QUICK], 2)
    (launcher,) = job.processes
    environment = {**os.environ, **launcher.env}
    done = subprocess.run(launcher.argv, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert {target for _, target, _, _ in results_of(done.stdout)} == {"mpi4py", "shm"}


def test_between_hosts_with_one_clock() -> None:
    port = ReservedPort()
    hosts = ("--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(port.number))
    commands = [
        (
            hocket_run(
                "-n", "1", *hosts, "--node-rank", str(host), *BENCH, "run", "all_reduce", "--library", "gloo", *QUICK
            ),
            {"HOCKET_HOST": f"host-{host}"},
        )
        for host in range(2)
    ]
    with port:
        (code, out, err), (other_code, other_out, _) = run(*commands)
    assert (code, other_code) == (0, 0), err
    assert results_of(out) == {("all_reduce", "gloo", nbytes, 2) for nbytes in (8, 4096)}
    assert "clocks of different hosts agree to within" in err and not other_out


def test_a_wrong_result_of_one_rank_ends_all_of_them() -> None:
    argv = hocket_run("-n", "2", *BENCH, "run", "all_gather", "--library", "shm!corrupt", *QUICK)
    began = time.monotonic()
    ((code, out, err),) = run((argv, {}))
    assert code == 1 and not out and time.monotonic() - began < 60  # no rank waits for one that is gone
    assert err.count("shm!corrupt numpy buffer gave") == 1 and "of 16; 1 are wrong, on rank 1" in err


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (("run", "latency", "--library", "mpi4py:mpich"), ("mpi4py", "mpi4py:mpich")),
        (("run", "startup"), ("startup",)),
        (("apps", "matmul"), ("hocket bench apps",)),
        (("run", "latency", "-n", "3"), ("2", "--num-ranks 3")),
    ],
)
def test_what_cannot_be_under_a_launcher_is_said_once(arguments: tuple[str, ...], values: tuple[str, ...]) -> None:
    env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}
    argv = [*BENCH, *arguments]
    (code, out, err), (other_code, _, other_err) = run((argv, env), (argv, {**env, "RANK": "1"}))
    assert (code, other_code, out, other_err) == (2, 2, "", "")
    assert_names(err, *values)
