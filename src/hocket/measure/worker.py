"""The side of a measurement that lives in a rank of a job: waits in a read, works when its turn comes."""

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
    """Offers contenders to the coordinator that started this job, and runs them on demand until it says exit.

    Args:
        contenders: Set up and checked; the same names in the same order on all ranks of the job.
        rank: This process's rank in its job.
        barrier: Returns when all ranks of this job have called it.
        clock: Seconds; tests give their own.
        actions: What else the coordinator may ask for, by the name under "do": of the request, returns the reply.

    Raises:
        InvalidState: This process was not started by a coordinator.
        EOFError: The coordinator is gone.

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

    def asked(message: Message) -> Contender:
        return by_key[Key(message["case"], message["name"])]

    def run(message: Message) -> Message:
        return {"seconds": sample(asked(message), message["iterations"], barrier, clock)}

    def windows(message: Message) -> Message:
        start_s, period_s, count = message["start_s"], message["period_s"], message["count"]
        return {"seconds": sample_windows(asked(message), start_s, period_s, count, barrier, clock)}

    def compute(_message: Message) -> Message:
        return {"seconds": kernel_seconds()}

    known = {"run": run, "windows": windows, "compute": compute, **(actions or {})}
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
                reply = known[message["do"]](message)
            except Exception:
                line.send({"error": traceback.format_exc()})
                raise
            line.send(reply or {})
