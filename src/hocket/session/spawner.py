"""Run a function on several fresh processes and collect what it returns; for notebooks and tests."""

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
        fn: any function that cloudpickle can carry; a lambda or one made in a notebook as well. Modules are found
            where this process finds them.
        n: ranks to start, each in a fresh interpreter.
        args: further arguments, the same on every rank.
        timeout: seconds for the whole; also the default of the communicator's operations.
        oversubscribe: start more than 16 ranks for each CPU, or more than free memory seems to allow.

    Raises:
        InvalidArgument, InvalidType: `n`, `timeout` or `fn` cannot work.
        CommTimeout: not all ranks had ended in time; they have been ended.
        Exception: what `fn` raised on the first rank that failed, with the remote traceback as a note; `RemoteError`
            where it cannot be carried here, or where a rank was killed.
        KeyboardInterrupt: Ctrl-C was pressed; all ranks have ended. Any other signal has its usual effect here as well.
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
    except Exception as why:  # whatever the __reduce__ of some object raises
        raise InvalidType(f"fn and its arguments must be such that cloudpickle can carry them: {why}") from why
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
    signal.raise_signal(result.interrupted_by)  # has its usual effect: KeyboardInterrupt, for one
    raise RemoteError(summarise(result).strip())


def _pickled(task: object) -> bytes:
    """Pickle with cloudpickle; code keeps its file, which tracebacks name, and which cloudpickle 3.1.3 leaves out."""
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
    """Return the results that the ranks wrote to the task's folder, or raise the error of the first that failed.

    Unpickling is safe here: the folder was made for this task, with mode 700, so only this user's processes can write
    to it. How large a result is depends on the caller's own function.
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
        raise CommTimeout(f"spawn: not all of the {num_ranks} ranks had ended after {timeout:g} s")
    raise RemoteError(summarise(result).strip())
