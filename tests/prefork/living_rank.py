"""A rank that runs one task of `hocket.spawn` after another: ``python -m tests.prefork.living_rank SOCKET``.

Between two tasks it is made to look as a new process would: variables, folder, outputs, seeds, warnings that were
shown. What cannot be undone is reported, and the rank is not used again.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import socket
import sys
import warnings
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

import hocket
from hocket.session import spawned, world

from ..cpu_time import cpu_seconds
from .left_behind import first_change, state_of_process, without_those_of_mpi
from .requests import RankTask, TaskEnd

_TORCH_SEED = 67280421310721  # torch's own, of c10/core/GeneratorImpl.h
_LOADED_ROOMS = ("boot", "collectives", "comm", "measure", "memory", "pipeline", "session", "sim", "trace", "tune")


def main(address: str) -> None:
    """Run tasks until the other side is gone. A task that fails ends the process, as it does a rank."""
    own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    own.connect(address)
    connection = Connection(own.detach())
    connection.send(int(os.environ["RANK"]))
    base = dict(os.environ)
    _load_modules()
    while True:
        task = _receive(connection)
        if task is None:
            return
        base |= dict(os.environ.items() - without_those_of_mpi(os.environ).items())
        _look_new(task, base)
        before = state_of_process()
        before_s = cpu_seconds()
        spawned.main(Path(task.folder))
        if world._session.world is not None:
            world._session.world.finalize()  # as the end of a process does
        gc.collect()  # what hangs in cycles ends here on all ranks, and not in the midst of the next task
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        remains = first_change(before, state_of_process())
        connection.send(TaskEnd(cpu_seconds() - before_s, "torch" in sys.modules, remains))


def _load_modules() -> None:
    """Load what tasks would load: a change of a module that a task itself has loaded could not be noticed."""
    folder = Path(str(hocket.__file__)).parent
    for room in _LOADED_ROOMS:
        for path in sorted((folder / room).rglob("[a-z]*.py")):
            importlib.import_module(".".join(("hocket", *path.relative_to(folder).with_suffix("").parts)))


def _receive(connection: Connection) -> RankTask | None:
    with socket.socket(fileno=os.dup(connection.fileno())) as own:
        byte, outputs, _, _ = socket.recv_fds(own, 1, 2)
    if not byte:
        return None
    for output, target in zip(outputs, (1, 2), strict=True):
        os.dup2(output, target)
        os.close(output)
    task: RankTask = connection.recv()
    return task


def _look_new(task: RankTask, base: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update({**base, "HOCKET_RECORD_DIR": task.record_dir})
    os.chdir(task.working_folder)
    warnings._filters_mutated()  # type: ignore[attr-defined]  # a warning of an earlier task is shown again
    random.seed()
    np.random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(_TORCH_SEED)
    if (keras := sys.modules.get("keras")) is not None:
        keras.utils.clear_session()


if __name__ == "__main__":
    main(sys.argv[1])
