"""Forks a process for each job that is asked for: ``python -m tests.prefork.server LIGHT HEAVY``, from the project's
root, with the descriptors of two sockets.

A fresh interpreter spends a second in imports before it does anything: most of the time of most tests. Here that is
done once. In `make test-full` ranks and programs are fresh interpreters, as a user's are.

What is asked for over HEAVY finds torch and Keras imported. They make a process five times as large, and a program
that does nothing takes three times as much CPU, so that what does not need them is asked for over LIGHT.

A request is one byte with three descriptors: the job's own connection, stdout, stderr. What is to be run comes over
that connection, and the result goes back the same way. All of them are pipes of the process that started this one.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import signal
import socket
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import hocket.cli
from hocket.boot import launcher
from hocket.cli import _application
from hocket.collectives.registry import algorithms

from ..cpu_time import cpu_seconds
from .forked_rank import become_program, end_with, start_afresh, start_rank
from .preloaded import Preloaded
from .requests import JobRequest, ProgramRequest, Request

_PRELOADED = (
    "numpy", "numpy.testing", "ml_dtypes", "cloudpickle", "pytest", "mpi4py", "rich.console", "rich.progress", "typer",
    "typer._adapters",
    "matplotlib.figure", "matplotlib.backends.backend_agg", "hocket.session.spawned",
    "tests.prefork.living_rank", "hocket.session.world", "hocket.tune", "hocket.comm", "hocket.backends.gloo",
    "hocket.cli",
    *(f"hocket.cli.{verb.stem}" for verb in (Path(hocket.cli.__file__).parent).glob("[!_]*.py")),
)  # fmt: skip
_TORCH = ("torchgen", "functorch")


def main(light: socket.socket, heavy: socket.socket) -> None:
    """Import what ranks need, and serve on both sockets until the other side is gone."""
    # pandas imports pyarrow where it is installed, which starts threads; forked programs can import it.
    sys.modules["pyarrow"] = None  # type: ignore[assignment]
    for name in _PRELOADED:
        with contextlib.suppress(ModuleNotFoundError):  # other releases have other parts
            importlib.import_module(name)
    algorithms()  # a registry that is read later looks like something that a task left behind
    _build_command_line()
    own = os.getpid()
    if os.fork() == 0:
        light.close()
        end_with(own)
        torch = Preloaded("torch", _TORCH)
        keras = Preloaded("keras", needs=torch)
        for package in (torch, keras):
            package.hide()
        _listen(heavy)
    else:
        heavy.close()
        _listen(light)


def _listen(listener: socket.socket) -> None:
    """Say that all is there, and fork a process for each request."""
    del sys.modules["pyarrow"]
    gc.collect()
    gc.freeze()  # a collection in a child would touch, and so copy, all that was imported
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not be forked"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody collects what it forks
    listener.send(b"r")
    while True:
        request, descriptors, _, _ = socket.recv_fds(listener, 1, 3)
        if not request:
            return
        server = os.getpid()
        if os.fork() == 0:
            listener.close()
            serve(server, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _build_command_line() -> None:
    """Let commands find theirs built: that takes a tenth of a second, and is the same for all of them."""
    _application._application = functools.cache(_application._application)  # type: ignore[assignment]
    _application._application()


def serve(server: int, descriptor: int, stdout: int, stderr: int) -> NoReturn:
    """Do what is asked for, and send what came of it, or what was raised, with the seconds of CPU that it took."""
    try:
        connection = Connection(descriptor)
        connection.send(os.getpid())
        request: Request = connection.recv()
        start_afresh(server, request.environment)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.close(stdout)
        os.close(stderr)
        os.chdir(request.folder)
        launcher.RankProcess = start_rank  # type: ignore[assignment,misc]
        answer: object
        try:
            answer = _run_job(request) if isinstance(request, JobRequest) else _run_program(request, connection)
        except BaseException as error:
            answer = error
        connection.send((answer, cpu_seconds()))
    finally:
        os._exit(0)


def _run_job(request: JobRequest) -> object:
    return launcher.run_job(list(request.command), request.num_ranks, patience=request.patience)


def _run_program(request: ProgramRequest, connection: Connection) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        become_program(parent, request.arguments, request.environment)
    connection.send(pid)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as for_light, socket.socket(fileno=int(sys.argv[2])) as for_heavy:
        main(for_light, for_heavy)
