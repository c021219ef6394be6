"""Dask on two hosts whose link breaks: the scheduler notices it in time, and tasks run again on the first host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed")

from ..load import scaled

pytestmark = pytest.mark.timeout(170)
TIMEOUT_S = 4
LATE_S = 8.0
"""The time begins with the first packet that nobody answers, and the kernel looks now and then only."""
# Scheduler, client and a worker on the first host. It prints a line of JSON for each thing that the test waits for.
_FIRST_HOST = """
import json, os, sys, time
import numpy as np
from distributed import Client, LocalCluster, wait

def say(found):
    print(json.dumps(found), flush=True)

def paths(dask_worker):
    pool = dask_worker.rpc
    return [each.extra_info["path"] for comms in (*pool.available.values(), *pool.occupied.values()) for each in comms]

def main():
    with (
        LocalCluster(host=sys.argv[1], protocol="hocket://", n_workers=1, threads_per_worker=1, dashboard_address=":0")
        as cluster, Client(cluster) as client,
    ):
        say(cluster.scheduler_address)
        client.wait_for_workers(2, timeout=float(sys.argv[2]))
        local, = [each.worker_address for each in cluster.workers.values()]
        remote, = set(cluster.scheduler.workers) - {local}
        make = lambda number: np.full(1 << 18, number)
        shares = {local: range(8), remote: range(8, 16)}
        options = {"pure": False, "allow_other_workers": True}
        futures = [future for each in shares for future in client.map(make, shares[each], workers=[each], **options)]
        wait(futures, timeout=float(sys.argv[2]))
        has = client.who_has(futures)
        num_remote = sum(set(each) == {remote} for each in has.values())
        exchanged = client.submit(lambda x, y: int((x + y).sum()), *(
            next(each for each in futures if has[each.key] == (address,)) for address in (local, remote)
        ), workers=[local])
        exchanged.result(float(sys.argv[2]))
        # To the scheduler, and to the worker on the other host.
        say({"num_remote": num_remote, "paths": client.run(paths, workers=[local])[local]})
        sys.stdin.readline()  # the link is down
        begin_s = time.monotonic()
        total = client.submit(lambda parts: int(np.sum(parts)), futures)
        while remote in cluster.scheduler.workers:
            time.sleep(0.02)
        noticed_s = time.monotonic() - begin_s
        say({"noticed_s": noticed_s})
        result = total.result(float(sys.argv[2]))
        say({"result": result, "workers": list(cluster.scheduler.workers) == [local],
             "seconds": time.monotonic() - begin_s})
        os._exit(0)  # how a cluster closes is not the subject

if __name__ == "__main__":
    main()
"""


@contextmanager
def _program(command: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    variables = {
        "DASK_TEMPORARY_DIRECTORY": str(folder),
        "DASK_DISTRIBUTED__SCHEDULER__WORK_STEALING": "False",  # tasks stay where the program puts them
        "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": f"{TIMEOUT_S} s",
        "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": f"{TIMEOUT_S} s",
    }
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _break_link(lab: Any, how: str) -> None:
    """Cut the second host off; "silent": no device is down, and nothing tells the first host that nobody is there."""
    first, second = lab.hosts
    if how == "down":
        second.run("ip", "link", "set", "eth0", "down")
        return
    place = second.run("cat", "/sys/class/net/eth0/address").strip()
    neighbour = ("ip", "neigh", "replace", second.address, "lladdr", place, "dev", "eth0", "nud", "permanent")
    first.run(*neighbour)  # otherwise the kernel finds out by ARP
    second.run("ip", "addr", "flush", "dev", "eth0")


@pytest.mark.parametrize("how", ["down", "silent"])
def test_a_link_that_breaks(lab: Any, tmp_path: Path, how: str) -> None:
    """Between the hosts frames go over TCP, which ends after its timeout; no files of hocket are in /dev/shm then."""
    first, second = lab.hosts
    script = tmp_path / "program.py"  # a file: workers of a cluster import the main module
    script.write_text(_FIRST_HOST)
    with ExitStack() as stack:
        command = first.command([sys.executable, str(script), first.address, str(scaled(60))])
        program = stack.enter_context(_program(command, tmp_path))
        assert program.stdin is not None and program.stdout is not None
        scheduler = json.loads(program.stdout.readline())
        worker = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler, "--nthreads", "1", "--no-dashboard"]
        stack.enter_context(_program(second.command([*worker, "--host", second.address]), tmp_path))
        before = json.loads(program.stdout.readline())
        assert 0 < before["num_remote"] < 16 and set(before["paths"]) == {"memory", "tcp"}, before
        _break_link(lab, how)
        print(file=program.stdin, flush=True)
        noticed = json.loads(program.stdout.readline())
        print(f"noticed after {noticed['noticed_s']:.1f} s")
        assert noticed["noticed_s"] < scaled(TIMEOUT_S + LATE_S)
        found = json.loads(program.stdout.readline())
        print(f"the result came after {found['seconds']:.1f} s")
        assert found["result"] == sum(range(16)) << 18 and found["workers"]
        for host in lab.hosts:  # Python's own semaphores are there
            names = host.run("ls", "/dev/shm").split()
            # The recorder's file of a process that was killed goes when the next recorder starts.
            assert not [each for each in names if "hocket" in each and not each.startswith("hocket-recorder-")]
