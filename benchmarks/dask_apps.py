"""Two applications of Dask over hocket's protocol against distributed's TCP: those of MPI4Dask (arXiv 2101.08878).

"array": the sum of a random matrix with its transpose. "merge": an inner join of two tables, whose rows are spread over
all partitions. Data are made afresh in each round, and their time counts, as in the paper. One process has a cluster
for each protocol, with as many workers of one thread, and runs an application on one after the other. "transfer" rows
are the seconds per GiB of the data that workers fetch from each other, from their logs. "exchange" is the join by
`hocket.dask.merge`.

The paper reports 3.47 and 3.11 times, on clusters with GPUs, against TCP over InfiniBand; here workers share a host's
processors, and more workers than processors are oversubscribed. "modelled" rows are computed from those that were
measured with two workers, for 32 workers with a processor each.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
from claim import Options, PartResults, option, run_claim
from libraries import job

import hocket as hk
from hocket.measure import Comparison, Contender, Coordinator, Row, computed, judge_values, measure, progress, serve
from hocket.measure.machine import usable_cpus

TCP, OURS, EXCHANGE = "tcp", "hocket", "hocket, exchange"
ARRAY, MERGE = "array", "merge"
PAPER = {ARRAY: 3.47, MERGE: 3.11}
GIB = 1 << 30
MATRIX, CHUNK = 6000, 1000
ROWS, PARTITIONS = 2_000_000, 2
"""Of each worker."""
MATCHING = 0.3
"""Share of the rows of the right table whose keys the left one has."""
MODELLED = 32
_seeds = itertools.count()


@dataclass(frozen=True)
class Sample:
    """What one run of an application moved.

    Args:
        nbytes: that workers have fetched from each other.
        transfer_s: seconds of these transfers, added up over the workers.
        seconds: of the application.
    """

    nbytes: int
    transfer_s: float
    seconds: float


def array_app(client: distributed.Client, _: int) -> None:
    """Compute a random matrix and the sum with its transpose."""
    random = da.random.default_rng(next(_seeds))
    x = random.standard_normal((MATRIX, MATRIX), chunks=CHUNK)
    found = client.persist(x + x.T)
    distributed.wait(found)
    check_status(found)


def merge_app(client: distributed.Client, num_workers: int, merge: Callable[..., Any]) -> None:
    """Make two tables, and join them."""
    num_partitions, seed = PARTITIONS * num_workers, next(_seeds)
    tables = [
        dd.from_map(partial(make_partition, seed, num_partitions, ROWS // PARTITIONS), range(num_partitions), side=side)
        for side in ("left", "right")
    ]
    left, right = client.persist(tables)
    found = client.persist(merge(left, right))
    distributed.wait(found)
    check_status(found)


def make_partition(seed: int, num_partitions: int, num_rows: int, number: int, side: str) -> pd.DataFrame:
    """Return a partition of a table; its keys are in random order.

    Of the right table a share of the rows has keys of the left one, of all of its partitions.
    """
    random = np.random.default_rng((seed, number, side == "left"))
    own = np.arange(number * num_rows, (number + 1) * num_rows)
    if side == "left":
        return pd.DataFrame({"key": random.permutation(own), "left_value": random.random(num_rows)})
    num_matching = round(MATCHING * num_rows)
    matching = np.arange(num_matching) * num_partitions * num_rows // num_matching + number
    beyond = own[num_matching:] + num_partitions * num_rows
    return pd.DataFrame({"key": np.concatenate([matching, beyond]), "right_value": random.random(num_rows)})


def check_status(found: Any) -> None:
    for each in distributed.client.futures_of(found):
        if each.status != "finished":
            each.result()


def transfers(client: distributed.Client) -> list[tuple[float, int, float]]:
    """Return start, bytes and seconds of what the workers have fetched from each other."""

    def of_worker(dask_worker: Any) -> list[tuple[float, int, float]]:
        log = dask_worker.transfer_incoming_log
        return [(each["start"], each["total"], each["duration"]) for each in log]

    return [each for of_one in client.run(of_worker).values() for each in of_one]


class Arm:
    """A cluster, and what the runs on it moved."""

    def __init__(self, protocol: str, num_workers: int) -> None:
        self.cluster = distributed.LocalCluster(
            protocol=protocol, n_workers=num_workers, threads_per_worker=1, dashboard_address=None, memory_limit=0
        )
        self.client = distributed.Client(self.cluster, set_as_default=False)
        self.num_workers = num_workers
        self.samples: dict[str, list[Sample]] = {}

    def run(self, name: str, app: Callable[[distributed.Client, int], None], iterations: int) -> None:
        for _ in range(iterations):
            begun_s, begin_s = time.time(), time.perf_counter()
            with self.client.as_current():
                app(self.client, self.num_workers)
            seconds = time.perf_counter() - begin_s
            self.begun = name, begun_s, seconds

    def note(self) -> None:
        """Note what the last run moved; not within its time."""
        name, begun_s, seconds = self.begun
        own = [each for each in transfers(self.client) if each[0] >= begun_s]
        sample = Sample(sum(each[1] for each in own), sum(each[2] for each in own), seconds)
        self.samples.setdefault(name, []).append(sample)


def serve_rank(_: str, num_workers: str) -> None:
    """Run the process that has both clusters."""
    dask.config.set({"distributed.worker.memory.rebalance.measure": "managed"})
    arms = {TCP: Arm("tcp://", int(num_workers)), OURS: Arm("hocket://", int(num_workers))}
    joined = partial(merge_app, merge=partial(dd.merge, on="key", how="inner", shuffle_method="tasks"))
    exchanged = partial(merge_app, merge=partial(hk.dask.merge, on="key", how="inner"))
    apps: dict[tuple[str, str], tuple[Arm, Callable[[distributed.Client, int], None]]] = {
        (ARRAY, TCP): (arms[TCP], array_app), (ARRAY, OURS): (arms[OURS], array_app),
        (MERGE, TCP): (arms[TCP], joined), (MERGE, OURS): (arms[OURS], joined),
        (MERGE, EXCHANGE): (arms[OURS], exchanged),
    }  # fmt: skip
    contenders = []
    for (case, name), (arm, app) in apps.items():
        label = f"{case}: {name}"
        contenders.append(Contender(case_of(case, int(num_workers)), name, partial(arm.run, label, app)))

    def barrier() -> None:
        """Before a sample: note what the one before has moved."""
        for arm in arms.values():
            if hasattr(arm, "begun"):
                arm.note()
                del arm.begun

    def told(_: Any) -> Any:
        barrier()
        return {
            "samples": {
                label: [[each.nbytes, each.transfer_s, each.seconds] for each in samples]
                for arm in arms.values()
                for label, samples in arm.samples.items()
            }
        }

    serve(contenders, 0, barrier, actions={"samples": told})
    for arm in arms.values():
        arm.client.close()
        arm.cluster.close()


def case_of(app: str, num_workers: int) -> str:
    how = "" if num_workers <= usable_cpus() else ", oversubscribed"
    return f"{app}, {num_workers} worker{'' if num_workers == 1 else 's'}{how}"


def rows_of(num_workers: int, found: dict[str, list[Sample]]) -> Iterator[Row]:
    """Return the rows about transfers."""
    for app in (ARRAY, MERGE):
        theirs, ours = (
            [each.transfer_s / each.nbytes * GIB for each in found[f"{app}: {name}"] if each.nbytes]
            for name in (TCP, OURS)
        )
        count = min(len(theirs), len(ours))
        if num_workers > 1 and count:
            case = f"{case_of(app, num_workers)}: transfer of 1 GiB"
            yield judge_values(case, TCP, ours[-count:], theirs[-count:], target=2.0, unit="ms")
        for name in (TCP, OURS):
            samples = found[f"{app}: {name}"]
            seconds = float(np.median([each.seconds for each in samples]))
            in_transfers = float(np.median([each.transfer_s for each in samples])) / num_workers
            if in_transfers:
                case = f"{case_of(app, num_workers)}, {name}: time of a worker in transfers, and of all"
                yield computed(case, "whole", in_transfers * 1e3, seconds * 1e3, "ms")


def modelled_rows(found: dict[str, list[Sample]]) -> Iterator[Row]:
    """Return the times of 32 workers with a processor each, from those that were measured with two.

    A worker computes as long as one of two; the array is as large for each worker, and so are its tables. What it
    fetches grows with the share that others have, (n - 1) / n, and takes as long for each byte.
    """
    for app in (ARRAY, MERGE):
        times = {}
        for name in (TCP, OURS):
            samples = found[f"{app}: {name}"]
            seconds = float(np.median([each.seconds for each in samples]))
            fetching = float(np.median([each.transfer_s for each in samples])) / 2
            times[name] = seconds - fetching + fetching * ((MODELLED - 1) / MODELLED) / (1 / 2)
        case = f"{app}, modelled, {MODELLED} workers (the paper: {PAPER[app]})"
        yield computed(case, TCP, times[OURS] * 1e3, times[TCP] * 1e3, "ms")


def comparisons(num_workers: int) -> Iterator[Comparison]:
    for app in (ARRAY, MERGE):
        case = case_of(app, num_workers)
        yield Comparison(
            case, OURS, (TCP,), label=f"{case}: time (the paper: {PAPER[app]})", unit="ms", needs_cores=False
        )
    case = case_of(MERGE, num_workers)
    yield Comparison(case, EXCHANGE, (TCP,), label=f"{case}: time with exchange", unit="ms", needs_cores=False)


def parts(options: Options) -> PartResults:
    for num_workers in options.workers or (1, 2, 4, 8):
        jobs = [job(f"dask{num_workers}", __file__, [num_workers], 1)]
        with (
            Coordinator(jobs, start_timeout_s=120.0) as coordinator,
            progress(f"{num_workers} workers") as on_round,
        ):
            measurement = measure(coordinator, options.settings, on_round=on_round)
            told = coordinator.ask(jobs[0].name, {"do": "samples"}, [0])[0]["samples"]
        found = {label: [Sample(*each) for each in samples] for label, samples in told.items()}
        rows: list[Any] = [*comparisons(num_workers), *rows_of(num_workers, found)]
        if num_workers == 2:
            rows += modelled_rows(found)
        yield rows, measurement


if __name__ == "__main__":
    run_claim(
        "Dask's workers fetch data from each other in half of the time of TCP",
        parts,
        option("--workers", type=int, action="append", help="number of workers; may be repeated (default: 1, 2, 4, 8)"),
        unit="ms",
    )
