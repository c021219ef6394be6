"""Starts the processes of parameter servers, and ends them."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, cast

from hocket.comm import Communicator
from hocket.errors import HocketError, ResourceExhausted
from hocket.train.engines.servers.process import GradientServerTask
from hocket.train.engines.servers.shared_memory import BlockAddress

_START_S = 60.0
_END_S = 5.0
_LINE_NBYTES = 64


@dataclass(frozen=True)
class ServerAddress:
    """Where a parameter server runs.

    Args:
        number: its number.
        rank: the rank that started it.
        host: name of its host.
        pid: number of its process.
        address: address and port, such as "127.0.0.1:40313".
        block: its block of shared memory; None: it has none.
    """

    number: int
    rank: int
    host: str
    pid: int
    address: str
    block: BlockAddress | None = None

    def __str__(self) -> str:
        return f"parameter server {self.number} (process {self.pid} on {self.host}, {self.address})"


def rank_of_server(number: int, num_servers: int, num_ranks: int) -> int:
    """Return the rank that starts a server: they are spread over the ranks, and so over the hosts."""
    return number * num_ranks // num_servers


class Servers:
    """The parameter servers of a job; all ranks make them together, and each starts its share.

    Args:
        comm: a communicator of all ranks.
        num_servers: how many there are; they are spread over the ranks.
        make_task: returns the task of a server by its number, and the address and port that it listens at; and what
            follows the task.
        ports: port of each server; empty: free ones.

    Attributes:
        addresses: of all servers.

    Raises:
        ResourceExhausted: a server could not be started; raised on all ranks.
    """

    def __init__(
        self,
        comm: Communicator,
        num_servers: int,
        make_task: Callable[[int, str, int], tuple[GradientServerTask, bytes]],
        ports: Sequence[int] = (),
    ) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        own = [number for number in range(num_servers) if rank_of_server(number, num_servers, comm.size) == comm.rank]
        started: list[ServerAddress] = []
        problem: str | None = None
        try:
            address = _own_address(comm)
            for number in own:
                started.append(
                    self._start(number, comm.rank, *make_task(number, address, ports[number] if ports else 0))
                )
        except (OSError, HocketError) as error:
            problem = f"rank {comm.rank} could not start its parameter server: {error}"
        try:
            of_ranks = comm.all_gather_object((started, problem))
            for _, each in of_ranks:
                if each is not None:
                    raise ResourceExhausted(each)
        except BaseException:
            self.close()
            raise
        self.addresses = sorted((each for of_rank, _ in of_ranks for each in of_rank), key=lambda each: each.number)

    def _start(self, number: int, rank: int, task: GradientServerTask, content: bytes) -> ServerAddress:
        process = subprocess.Popen(
            [sys.executable, "-m", "hocket.train.engines.servers.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
        )
        self._processes[number] = process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(task.dump() + content)
        process.stdin.flush()
        port, *block = _read_numbers(process, process.stdout)
        if not port:
            raise ResourceExhausted(
                f"port {task.port} of {task.address} is taken: choose another one, or none for any free port"
            )
        return ServerAddress(
            number,
            rank,
            socket.gethostname(),
            process.pid,
            f"{task.address}:{port}",
            BlockAddress(process.pid, *block) if block else None,
        )

    def exit_code(self, number: int) -> int | None:
        """Return the exit code of a server of this rank; None: it runs, or another rank has started it."""
        process = self._processes.get(number)
        return None if process is None else process.poll()

    def close(self) -> None:
        """End the servers that this rank has started."""
        for each in self._processes.values():
            with suppress(OSError):
                cast(IO[bytes], each.stdin).close()  # it ends then
        deadline = time.monotonic() + _END_S
        for each in self._processes.values():
            try:
                each.wait(max(deadline - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
            cast(IO[bytes], each.stdout).close()
        self._processes.clear()


def _read_numbers(process: subprocess.Popen[bytes], stdout: IO[bytes]) -> list[int]:
    """Return the numbers that a server writes when it has started."""
    deadline = time.monotonic() + _START_S
    line = b""
    while not line.endswith(b"\n"):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or len(line) > _LINE_NBYTES:
            raise ResourceExhausted(f"process {process.pid} of a parameter server did not start within {_START_S:g} s")
        if select.select([stdout], [], [], min(left_s, 1.0))[0]:
            read = os.read(stdout.fileno(), _LINE_NBYTES)
            if not read:
                raise ResourceExhausted(f"the process of a parameter server ended at once, with code {process.wait()}")
            line += read
    return [int(each) for each in line.split()]


def _environment() -> dict[str, str]:
    """Return the environment of a server: it is no rank, is not recorded as one, and computes with one thread."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("HOCKET_") and name != "LD_PRELOAD"
    }
    return {**kept, "OMP_NUM_THREADS": "1"}


def _own_address(comm: Communicator) -> str:
    """Return the address at which the other ranks reach this host."""
    if comm.num_hosts == 1:
        return "127.0.0.1"
    host = os.environ["MASTER_ADDR"]
    family, _, _, _, target = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # sends nothing, but chooses the device towards rank 0
        return str(probe.getsockname()[0])
