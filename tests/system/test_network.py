"""What `hocket observe` says of the network between two hosts: the limit, who used it, and that no byte is missing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hocket.observe import ObservedRun, RunFinding, conservation, findings, link_loads, open_run

from ..load import scaled

pytestmark = pytest.mark.timeout(170)
_RATE_GBIT_S = 0.2
_PORT = 29777

# Two ranks of gloo reduce 32 MB. The second one may send others a file meanwhile, of which the first one is the server.
_PROGRAM = """
import os, socket, sys, threading
import torch
import torch.distributed as dist

def serve(server):
    end, _ = server.accept()
    while end.recv(1 << 20):
        pass

def send(address, stop):
    with socket.create_connection((address, 5001)) as end:
        while not stop.is_set():
            end.sendall(bytes(1 << 16))

dist.init_process_group("gloo")
stop = threading.Event()
if sys.argv[1] == "checkpoint" and dist.get_rank() == 1:
    threading.Thread(target=send, args=(os.environ["MASTER_ADDR"], stop), daemon=True).start()
for _ in range(8):
    dist.all_reduce(torch.ones(1_000_000))
stop.set()
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # torch 2.13 may abort at exit
"""
_SERVER = """
import socket
server = socket.create_server(('', 5001))
server.settimeout(60)
end, _ = server.accept()
while end.recv(1 << 20):
    pass
"""
_CLIENT = """
import socket, sys, time
given_up = time.monotonic() + 30
while True:  # the server may listen later than this starts
    try:
        end = socket.create_connection((sys.argv[1], 5001))
        break
    except ConnectionRefusedError:
        if time.monotonic() > given_up:
            raise
        time.sleep(0.05)
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    end.sendall(bytes(1 << 16))
"""


@pytest.fixture
def recorded(lab_module: ModuleType, run_commands: Callable[..., Any], tmp_path: Path) -> Callable[[str], ObservedRun]:
    def record(cause: str) -> ObservedRun:
        (tmp_path / "program.py").write_text(_PROGRAM)
        python, target = sys.executable, tmp_path / "run"
        with lab_module.Lab(_RATE_GBIT_S) as lab:
            first, second = lab.hosts
            observe = [python, "-m", "hocket.cli", "observe", "run", "--interval", "0.1"]
            variables = ["GLOO_SOCKET_IFNAME=eth0", "OMP_NUM_THREADS=1", "WORLD_SIZE=2", "MASTER_PORT=29500",
                         f"MASTER_ADDR={first.address}"]  # fmt: skip
            program = [python, str(tmp_path / "program.py"), cause]
            commands = [
                host.command(["env", *variables, f"RANK={host.number}", *observe, *place, "--", *program])
                for host, place in (
                    (first, ["--listen", f"{first.address}:{_PORT}", "--output", str(target)]),
                    (second, ["--join", f"{first.address}:{_PORT}"]),
                )
            ]
            if cause != "alone":
                commands.append(first.command([python, "-c", _SERVER]))
            if cause == "others":
                commands.append(second.command([python, "-c", _CLIENT, first.address, str(scaled(8))]))
            runs = run_commands(commands, env=os.environ)
            assert all(run.returncode == 0 for run in runs), "".join(run.stdout for run in runs)
        return open_run(target)

    return record


def _bottleneck(run: ObservedRun) -> RunFinding:
    found = [each for each in findings(run) if each.kind != "foreign load"]
    assert [each.kind for each in found] == ["bottleneck"], found
    return found[0]


def test_a_shaped_link_is_the_bottleneck(recorded: Callable[[str], ObservedRun]) -> None:
    run = recorded("alone")
    found = _bottleneck(run)
    assert (found.layer, found.evidence["device"], found.process) == ("network", "eth0", None)
    limit = _RATE_GBIT_S * 1e9 / 8
    assert found.evidence["queue_nbytes_s"] == pytest.approx(limit)
    assert 0.6 * limit < float(found.evidence["nbytes_s"]) < 1.1 * limit
    assert float(found.evidence["share_of_ranks"]) > 0.95
    rows = conservation(run)
    assert all(row.is_explained for row in rows), rows
    between = {row.what: row for row in rows if row.edge == "messages to connections"}
    assert between.keys() == {"rank 0 to rank 1", "rank 1 to rank 0"}
    assert all(row.expected_nbytes == 32_000_000 and abs(row.residual) < 0.01 for row in between.values())


def test_what_else_a_rank_sends_is_named(recorded: Callable[[str], ObservedRun]) -> None:
    run = recorded("checkpoint")
    found = _bottleneck(run)
    assert found.process is not None and run.processes[found.process].snapshot.owner.rank == 1
    assert found.evidence["host"] == "lab1" and float(found.evidence["share_of_other_ends"]) > 0.1
    assert ":5001" in found.text


def test_bytes_of_other_programs_are_not_of_the_run(recorded: Callable[[str], ObservedRun]) -> None:
    run = recorded("others")
    found = _bottleneck(run)
    assert found.process is None and float(found.evidence["share_of_other_programs"]) > 0.3
    (link,) = [each for each in link_loads(run) if (each.host, each.device) == ("lab1", "eth0")]
    assert link.rank_nbytes == pytest.approx(32_000_000, rel=0.01)
    assert link.foreign_nbytes > 10_000_000 and link.residual_nbytes < 0.05 * link.sent_nbytes
