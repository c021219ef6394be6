"""Starts the processes of parameter servers, and ends them."""

from __future__ import annotations

import ipaddress
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO, cast

from hocket.comm import Communicator
from hocket.errors import ResourceExhausted
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
            address, cpus = _own_address(comm), _cpus_of_host(comm)
            for number in own:
                task, content = make_task(number, address, ports[number] if ports else 0)
                started.append(self._start(number, comm.rank, replace(task, cpus=cpus), content))
        except Exception as error:  # such as an optimizer that cannot be pickled; the other ranks wait for this one
            problem = f"rank {comm.rank} could not start its parameter server: {error}"
        except BaseException:
            self.close()
            raise
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
        told, telling = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hocket.train.engines.servers.process", str(telling)],
                stdin=subprocess.PIPE,
                stdout=2,  # what an optimizer prints
                bufsize=0,
                env=_environment(),
                pass_fds=[telling],
            )
        except BaseException:
            os.close(told)
            raise
        finally:
            os.close(telling)
        self._processes[number] = process
        deadline = time.monotonic() + _START_S
        try:
            assert process.stdin is not None
            _write(process, process.stdin.fileno(), task.dump() + content, deadline)
            port, *block = _read_numbers(process, told, deadline)
        finally:
            os.close(told)
        if not port:
            raise ResourceExhausted(
                f"port {task.port} of {task.address} is taken: choose another one, or none for any free port"
            )
        return ServerAddress(
            number,
            rank,
            socket.gethostname(),
            process.pid,
            f"[{task.address}]:{port}" if ":" in task.address else f"{task.address}:{port}",
            BlockAddress(process.pid, *block) if block else None,
        )

    def exit_code(self, number: int) -> int | None:
        """Return the exit code of a server of this rank; None: it runs, or another rank has started it."""
        process = self._processes.get(number)
        return None if process is None else process.poll()

    def close(self) -> None:
        """End the servers that this rank has started. Idempotent."""
        for each in self._processes.values():
            pipe = cast(IO[bytes], each.stdin)
            with suppress(OSError):
                # A byte, since processes that this rank has forked, as a DataLoader does, may have the pipe open too.
                os.set_blocking(pipe.fileno(), False)
                os.write(pipe.fileno(), b"!")
            with suppress(OSError):
                pipe.close()
        deadline = time.monotonic() + _END_S
        for each in self._processes.values():
            try:
                each.wait(max(deadline - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                each.kill()
                with suppress(subprocess.TimeoutExpired):
                    each.wait(_END_S)
        self._processes.clear()


def _write(process: subprocess.Popen[bytes], pipe: int, content: bytes, deadline: float) -> None:
    """Write to a server's standard input, and give up when it does not read."""
    os.set_blocking(pipe, False)
    rest = memoryview(content)
    while rest:
        if select.select([], [pipe], [], max(deadline - time.monotonic(), 0))[1]:
            try:
                rest = rest[os.write(pipe, rest) :]
            except BrokenPipeError:
                raise _ended(process) from None
        elif time.monotonic() > deadline:
            raise _late(process)


def _read_numbers(process: subprocess.Popen[bytes], told: int, deadline: float) -> list[int]:
    """Return the numbers that a server writes when it has started."""
    line = b""
    while not line.endswith(b"\n"):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or len(line) > _LINE_NBYTES:
            raise _late(process)
        if select.select([told], [], [], min(left_s, 1.0))[0]:
            read = os.read(told, _LINE_NBYTES)
            if not read:
                raise _ended(process)
            line += read
    return [int(each) for each in line.split()]


def _late(process: subprocess.Popen[bytes]) -> ResourceExhausted:
    return ResourceExhausted(f"process {process.pid} of a parameter server did not start within {_START_S:g} s")


def _ended(process: subprocess.Popen[bytes]) -> ResourceExhausted:
    try:
        how = f"ended at once, with code {process.wait(_END_S)}"
    except subprocess.TimeoutExpired:
        how = "closed its pipe before it had started"
    return ResourceExhausted(f"process {process.pid} of a parameter server {how}")


def _environment() -> dict[str, str]:
    """Return the environment of a server: it is no rank, is not recorded as one, computes with one thread, and finds
    the modules that this rank finds, such as that of an optimizer."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("HOCKET_") and name != "LD_PRELOAD"
    }
    own = {"OMP_NUM_THREADS": "1", "GRPC_VERBOSITY": "NONE"}  # gRPC's own lines repeat what errors here say
    return {**kept, **own, "PYTHONPATH": os.pathsep.join(each or os.getcwd() for each in sys.path)}


def _cpus_of_host(comm: Communicator) -> list[int]:
    """Return the processors of all ranks of this host; called by all ranks.

    A rank is often bound to one, on which a server would wait for the rank that waits for it.
    """
    here = socket.gethostname()
    of_ranks = comm.all_gather_object((here, os.sched_getaffinity(0)))
    return sorted(set().union(*(cpus for host, cpus in of_ranks if host == here)))


def _own_address(comm: Communicator) -> str:
    """Return the address at which the other ranks reach this host; called by all ranks."""
    if comm.num_hosts == 1:
        return "127.0.0.1"
    named = os.environ.get("HOCKET_CONTROL", "").rpartition(":")[0].strip("[]") or os.environ.get("MASTER_ADDR", "")
    here = socket.gethostname()
    of_ranks = comm.all_gather_object((here, _address_towards(named)))
    own: str = of_ranks[comm.rank][1]
    if _is_outside(own):
        return own
    # The named host is this one, and its name may stand for an address of its own, such as Debian's 127.0.1.1.
    others = [address for _, address in of_ranks if _is_outside(address)]
    others += [name for name, _ in of_ranks if name != here]
    own = next((found for each in others if _is_outside(found := _address_towards(each))), own)
    if not own:
        raise OSError("the other hosts cannot be found by name: set MASTER_ADDR to the host of rank 0")
    return own


def _address_towards(host: str) -> str:
    """Return the address of the device from which this host sends to another one; empty: it cannot be found."""
    if not host:
        return ""
    try:
        family, _, _, _, target = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing, but chooses the device
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _is_outside(address: str) -> bool:
    return bool(address) and not ipaddress.ip_address(address.partition("%")[0]).is_loopback
