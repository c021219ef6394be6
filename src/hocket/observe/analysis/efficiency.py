"""How much of a job's time was useful: the efficiencies of POP.

Reference: POP Standard Metrics for Parallel Performance Analysis, pop-coe.eu/node/69.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.observe.analysis.communicators import numbers_of_program
from hocket.observe.analysis.intervals import IntervalSet

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.analysis.operations import RunOperations
    from hocket.observe.analysis.waits import WaitStates


@dataclass(frozen=True)
class JobEfficiency:
    """The efficiencies of one job. Shares are 0 to 1, and `parallel` is the product of the other two.

    Useful is the time of a rank outside of communication; asynchronous operations count with the time in which callers
    waited, where that is known.

    Args:
        job: its number in the run.
        num_ranks: number of recorded ranks that communicated.
        runtime_s: from the first operation of any rank to the end of the last one.
        load_balance: mean useful time over the longest one.
        communication: longest useful time over the runtime.
        parallel: mean useful time over the runtime.
        wait_share: of the ranks' time, how much they spent waiting for late ranks; in asynchronous operations at most
            as long as callers are known to have waited.
        transfer_share: of the ranks' time, how much they spent in communication without such waits.
        is_upper_bound: whether it is not known how long callers waited for asynchronous operations, as over gloo: then
            the efficiencies are the most that they can be, and the shares the least.

    Examples:
        >>> from hocket import observe
        >>> observe.JobEfficiency(0, 4, 10.0, 0.8, 0.9, 0.72, 0.2, 0.08).parallel
        0.72
    """

    job: int
    num_ranks: int
    runtime_s: float
    load_balance: float
    communication: float
    parallel: float
    wait_share: float
    transfer_share: float
    is_upper_bound: bool = False


def efficiencies(operations: RunOperations, waits: WaitStates) -> tuple[JobEfficiency, ...]:
    """Return the efficiencies of each job that communicated.

    Args:
        operations: from `operations_of`.
        waits: from `wait_states`.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["true"], "run-without-jobs")
        >>> run = observe.open_run("run-without-jobs")
        >>> operations = observe.operations_of(run)
        >>> observe.efficiencies(operations, observe.wait_states(run, operations))
        ()
    """
    import numpy as np

    rows = operations.rows
    jobs = np.array([each.job for each in operations.communicators] or [0])
    of_program = np.isin(rows["comm"], numbers_of_program(operations.communicators))
    waited = waits.rows["wait"] - hidden_waits(operations, waits)
    found = []
    for job in np.unique(jobs[rows["comm"][of_program]]):
        own = rows[of_program & (jobs[rows["comm"]] == job)]
        last = np.fmax(own["begin"], own["end"])
        runtime_s = float(last.max() - own["begin"].min())
        processes = np.unique(own["process"])
        if runtime_s <= 0:
            continue
        in_communication = np.array([_seconds_in(own[own["process"] == process], last.max()) for process in processes])
        useful = np.clip(runtime_s - in_communication, 0.0, None)
        wait_s = float(waited[np.isin(waits.rows["process"], processes)].sum())
        total_s = runtime_s * len(processes)
        found.append(
            JobEfficiency(
                job=int(job),
                num_ranks=len(processes),
                runtime_s=runtime_s,
                load_balance=float(useful.mean() / useful.max()) if useful.max() > 0 else 1.0,
                communication=float(useful.max() / runtime_s),
                parallel=float(useful.mean() / runtime_s),
                wait_share=wait_s / total_s,
                transfer_share=max(float(in_communication.sum()) - wait_s, 0.0) / total_s,
                is_upper_bound=bool(np.isnan(own["blocked"][own["is_async"]]).any()),
            )
        )
    return tuple(found)


def hidden_waits(operations: RunOperations, waits: WaitStates) -> NDArray[np.float64]:
    """Return of each wait how many seconds may be hidden behind computation: the caller of an asynchronous operation
    goes on, and waits later or never. Where it is not known how long callers waited, it is the whole wait."""
    import numpy as np

    rows = operations.rows[waits.rows["row"]]
    known = np.where(rows["is_async"], np.nan_to_num(rows["blocked"]), np.inf)
    return np.asarray(np.clip(waits.rows["wait"] - known, 0.0, None))


def _seconds_in(rows: NDArray[np.void], end_s: float) -> float:
    """How long one rank was in communication; what never completed lasts until the end of the job."""
    import numpy as np

    ends = np.where(np.isnan(rows["end"]), end_s, rows["end"])
    blocking = ~rows["is_async"]
    return IntervalSet(rows["begin"][blocking], ends[blocking]).seconds + float(np.nansum(rows["blocked"][~blocking]))
