"""A rank of a job that is measured: it waits in a read, and runs a contender on request."""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections.abc import Callable, Mapping, Sequence

from hocket.errors import InvalidState
from hocket.measure.contender import Contender, Key, sample
from hocket.measure.core_factor import kernel_seconds
from hocket.measure.windows import sample_windows
from hocket.measure.wire import ADDRESS_VARIABLE, JOB_VARIABLE, Line, Message


def serve(
    contenders: Sequence[Contender],
    rank: int,
    barrier: Callable[[], object],
    *,
    clock: Callable[[], float] = time.perf_counter,
    actions: Mapping[str, Callable[[Message], Message | None]] | None = None,
) -> None:
    """Offer contenders to the coordinator that started this job, and run them on request until it sends exit.

    Args:
        contenders: Contenders that are set up and checked; the same names in the same order on all ranks of the job.
        rank: This process's rank in its job.
        barrier: Returns when all ranks of this job have called it.
        clock: Returns seconds; tests pass their own.
        actions: Handlers of more requests by their name under "do"; each takes a request and returns the reply.

    Raises:
        InvalidState: This process was not started by a coordinator.
        EOFError: The coordinator has closed the connection.

    Examples:
        >>> contender = hk.measure.Contender.of_call("16 B", "sum", lambda: sum([1, 2]))
        >>> hk.measure.serve([contender], rank=0, barrier=lambda: None)  # a Coordinator has to start this process
        Traceback (most recent call last):
        hocket.errors.InvalidState: 'HOCKET_MEASURE_ADDRESS' is not set: this process was not started by a Coordinator
    """
    try:
        address, job = os.environ[ADDRESS_VARIABLE], os.environ[JOB_VARIABLE]
    except KeyError as missing:
        raise InvalidState(f"{missing} is not set: this process was not started by a Coordinator") from None
    by_key = {contender.key: contender for contender in contenders}

    def contender_of(message: Message) -> Contender:
        return by_key[Key(message["case"], message["name"])]

    def run(message: Message) -> Message:
        return {"seconds": sample(contender_of(message), message["iterations"], barrier, clock)}

    def windows(message: Message) -> Message:
        start_s, period_s, count = message["start_s"], message["period_s"], message["count"]
        return {"seconds": sample_windows(contender_of(message), start_s, period_s, count, barrier, clock)}

    def compute(_message: Message) -> Message:
        return {"seconds": kernel_seconds()}

    handlers = {"run": run, "windows": windows, "compute": compute, **(actions or {})}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        line = Line(connection)
        line.send({"job": job, "rank": rank, "pid": os.getpid(), "contenders": [list(key) for key in by_key]})
        while True:
            message = line.receive()
            if message is None:
                continue
            if message["do"] == "exit":
                return
            try:
                reply = handlers[message["do"]](message)
            except Exception:
                line.send({"error": traceback.format_exc()})
                raise
            line.send(reply or {})
