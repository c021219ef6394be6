"""Run a function in several new processes and collect its results; for notebooks and tests."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import tempfile
from collections import ChainMap
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any, ClassVar

from hocket.boot.admission import check_room
from hocket.boot.job_result import JobResult
from hocket.boot.launcher import run_job
from hocket.boot.rank_process import runner_command
from hocket.boot.summary import summarise
from hocket.boot.supervisor import Patience
from hocket.errors import Aborted, CommTimeout, InvalidArgument, InvalidType, PeerFailure, RemoteError

_NO_FILE = "<dynamic-code>"


def spawn(fn: Callable[..., Any], n: int, *args: Any, timeout: float = 600.0, oversubscribe: bool = False) -> list[Any]:
    """Run ``fn(comm, *args)`` on `n` ranks and return their results in rank order.

    Args:
        fn: a function that cloudpickle can pickle, also a lambda or a function defined in a notebook. The ranks import
            modules from this process's `sys.path`.
        n: number of ranks to start, each in a new interpreter.
        args: further arguments, the same on every rank.
        timeout: seconds for the whole run; also the default timeout of operations.
        oversubscribe: allow more than 16 ranks per CPU, or more ranks than fit into free memory by estimate.

    Raises:
        InvalidArgument, InvalidType: `n`, `timeout` or `fn` is invalid.
        CommTimeout: some ranks had not ended after `timeout`; all ranks were stopped.
        Exception: the exception of the first rank that failed, with the remote traceback as a note; `RemoteError` if it
            cannot be pickled, or if a rank was killed.
        KeyboardInterrupt: Ctrl-C was pressed; all ranks have ended. Other signals also have their usual effect here.

    Examples:
        >>> def program(comm, factor):
        ...     x = np.array([factor * (comm.rank + 1.0)])
        ...     comm.all_reduce(x)
        ...     return comm.rank, x[0].item()
        >>> hk.spawn(program, 2, 10.0)
        [(0, 30.0), (1, 30.0)]
    """
    if not callable(fn):
        raise InvalidType(f"fn must be a function, not {fn!r}")
    if not isinstance(n, int) or n < 1:
        raise InvalidArgument(f"n must be a number of ranks of 1 or more, not {n!r}")
    if not isinstance(timeout, (int, float)) or not timeout > 0:
        raise InvalidArgument(f"timeout must be a number of seconds above zero, not {timeout!r}")
    if not oversubscribe:
        check_room(n, "oversubscribe=True")
    try:
        task = _pickled((fn, args))
    except Exception as why:  # the __reduce__ of an object may raise anything
        raise InvalidType(f"cloudpickle cannot pickle fn or its arguments: {why}") from why
    with tempfile.TemporaryDirectory(prefix="hocket-spawn-") as name:
        folder = Path(name)
        (folder / "task").write_bytes(task)
        path = [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]
        (folder / "settings").write_text(json.dumps({"path": path, "timeout_s": timeout}))
        result = run_job(
            runner_command(["-m", "hocket.session.spawned", name]),
            n,
            patience=Patience(timeout_s=timeout),
            folder_too=folder,
        )
        if result.interrupted_by is None:
            return _collect(result, folder, timeout)
    signal.raise_signal(result.interrupted_by)  # has its usual effect, such as KeyboardInterrupt
    raise RemoteError(summarise(result).strip())


def _pickled(task: object) -> bytes:
    """Pickle with cloudpickle, and keep the file name of code for tracebacks (cloudpickle 3.1.3 drops it)."""
    import cloudpickle

    reduce_code = cloudpickle.CloudPickler.dispatch_table[CodeType]

    def reduce_with_file(code: CodeType) -> tuple[Any, tuple[Any, ...]]:
        make, parts = reduce_code(code)
        return make, tuple(code.co_filename if isinstance(each, str) and each == _NO_FILE else each for each in parts)

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        dispatch_table: ClassVar[Any] = ChainMap({CodeType: reduce_with_file}, cloudpickle.CloudPickler.dispatch_table)

    file = io.BytesIO()
    Pickler(file).dump(task)
    return file.getvalue()


def _collect(result: JobResult, folder: Path, timeout: float) -> list[Any]:
    """Return the results that the ranks wrote to the task's folder, or raise the error of the first failed rank.

    Unpickling is safe here: the folder was created for this task with mode 700, so only this user's processes can write
    to it. The caller's function determines the size of a result.
    """
    import cloudpickle

    num_ranks = len(result.outcomes)
    if result.exit_code == 0:
        silent = [rank for rank in range(num_ranks) if not (folder / f"result-{rank}").exists()]
        if silent:
            raise RemoteError(f"rank {silent[0]} exited with code 0 before fn returned")
        return [cloudpickle.loads((folder / f"result-{rank}").read_bytes()) for rank in range(num_ranks)]
    failure = folder / "failure"
    if failure.exists():
        error = cloudpickle.loads(failure.read_bytes())
        cause = result.first_cause
        is_consequence = isinstance(error, (PeerFailure, Aborted, CommTimeout))
        if is_consequence and cause is not None and not (folder / f"failure-{cause.rank}").exists():
            raise RemoteError(summarise(result).strip()) from error  # a rank ended without an exception
        raise error
    if result.timed_out:
        raise CommTimeout(f"spawn timed out after {timeout:g} s: not all of the {num_ranks} ranks had ended")
    raise RemoteError(summarise(result).strip())
