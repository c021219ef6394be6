"""gRPC alone: every rank sends the bytes of a model's gradients to one server, which sends them back and adds nothing.

A parameter server sends the same bytes and adds them, too. ``python grpc_echo.py ADDRESS CPU...`` is the server.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

import hocket as hk

MESSAGE_NBYTES = 4 << 20
"""As `parameter-server` has it."""
_METHOD = "/echo/echo"
_TIMEOUT_S = 300.0
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
]


class GrpcEcho:
    """The server, which rank 0 starts, and a connection of this rank to it; made by all ranks.

    Args:
        comm: a communicator of all ranks.
    """

    def __init__(self, comm: hk.Communicator) -> None:
        self._server: subprocess.Popen[str] | None = None
        target = ""
        # As parameter servers, it may use the processors of all ranks of its host.
        of_ranks = comm.all_gather_object((os.uname().nodename, sorted(os.sched_getaffinity(0))))
        if comm.rank == 0:
            cpus = {cpu for host, each in of_ranks if host == of_ranks[0][0] for cpu in each}
            target = self._start(os.environ.get("MASTER_ADDR", "127.0.0.1"), cpus)
        self._channel = grpc.insecure_channel(comm.all_gather_object(target)[0], _OPTIONS)
        self._call: Any = self._channel.unary_unary(_METHOD)

    def _start(self, address: str, cpus: set[int]) -> str:
        argv = [sys.executable, str(Path(__file__)), address, *map(str, cpus)]
        self._server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._server.stdout is not None
        return f"{address}:{int(self._server.stdout.readline())}"

    def runner(self, nbytes: int) -> Callable[[], None]:
        """Return a function that sends so many bytes, and waits until all have come back.

        Args:
            nbytes: number of bytes.
        """
        messages = [bytes(min(MESSAGE_NBYTES, nbytes - begin)) for begin in range(0, nbytes, MESSAGE_NBYTES)]

        def run() -> None:
            calls = [self._call.future(message) for message in messages]
            for call, message in zip(calls, messages, strict=True):
                if len(call.result(timeout=_TIMEOUT_S)) != len(message):
                    raise hk.WrongResult("gRPC has brought a part of a message")

        return run

    def close(self) -> None:
        """Close the connection, and end the server."""
        self._channel.close()
        if self._server is not None:
            self._server.kill()
            self._server.wait()


async def _echo(message: bytes, _: object) -> bytes:
    return message


async def _serve(address: str) -> None:
    server = grpc.aio.server(options=_OPTIONS)
    handler = grpc.unary_unary_rpc_method_handler(_echo)
    _, service, method = _METHOD.split("/")
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {method: handler})])
    print(server.add_insecure_port(f"{address}:0"), flush=True)
    await server.start()
    # The rank that started it has the other end of this pipe.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    os.sched_setaffinity(0, map(int, sys.argv[2:]))
    asyncio.run(_serve(sys.argv[1]))
