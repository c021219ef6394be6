"""The traffic of three published models over one library, and over a mix with the fastest library for each operation.

There are four setups: one host, one host without shared memory, and two hosts joined by a link of 1 or of 10 Gbit/s
(lab.py: network namespaces of this machine, needs root). In each setup, one job of two ranks has all libraries. The job
first measures its own table. Then it replays the traffic of one training step (its communication alone) over every
single library, over the best library per operation (coarse), and over the best per operation and size (fine), in
interleaved rounds. The rows also show the gain that the table predicts.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from claim import Options, PartResults, measure_jobs, run_claim
from lab import NUM_HOSTS, Lab
from libraries import job, lab_job

import hocket as hk
from hocket.measure import Comparison, serve
from hocket.session.published_steps import dlrm_criteo, gpt_345m, moe_350m
from hocket.trace.traffic import Traffic
from hocket.tune.mix import COARSE, FINE, mix_contenders, predicted_seconds, sweep_of
from hocket.tune.sweep import measure_table
from hocket.tune.table import Table, load_table, save_table

NUM_RANKS = 2


@dataclass(frozen=True)
class Setup:
    """The hosts of the ranks, and the libraries that may carry their traffic.

    Args:
        backends: names of the libraries.
        rate_gbit_s: rate of the link between two hosts; None: one host.
        scale: factor by which each model is reduced, so that a replay takes a fraction of a second.
    """

    backends: tuple[str, ...]
    rate_gbit_s: float | None = None
    scale: Mapping[str, int] = field(default_factory=lambda: {"gpt-345m": 12, "moe-350m": 6, "dlrm-criteo": 1})

    def traffics(self, num_ranks: int = NUM_RANKS) -> list[Traffic]:
        """Return the three steps; the `source` of each describes how it was reduced."""
        builders = {"gpt-345m": gpt_345m, "moe-350m": moe_350m, "dlrm-criteo": dlrm_criteo}
        return [build(num_ranks, scale=self.scale[name]) for name, build in builders.items()]


SMALL = {"gpt-345m": 48, "moe-350m": 48, "dlrm-criteo": 8}
SETUPS = {
    "one host": Setup(("shm", "gloo", "mpi")),
    "one host, foreign libraries": Setup(("gloo", "mpi")),
    "two hosts, 1 Gbit/s": Setup(("gloo", "mpi"), 1.0, SMALL),
    "two hosts, 10 Gbit/s": Setup(("gloo", "mpi"), 10.0, {"gpt-345m": 24, "moe-350m": 12, "dlrm-criteo": 2}),
}
LEAST, PREDICTED_GAIN, LEAST_WHERE_PREDICTED = 0.97, 1.15, 1.15


def serve_rank(name: str, path: str) -> None:
    """Run one rank of a setup: measure a table, then serve the replays."""
    setup = SETUPS[name]
    comm = hk.init(backends=setup.backends, policy=hk.Policy.fixed({}), progress="caller", timeout=300)
    steps = setup.traffics(comm.size)
    table = measure_table(comm, sweep_of(steps))
    if comm.rank == 0:
        save_table(table, path)
    comm.barrier()
    serve(mix_contenders(comm, table, steps), comm.rank, comm.barrier)
    comm.finalize()


def comparisons(setup: str, table: Table) -> Iterator[Comparison]:
    backends = SETUPS[setup].backends
    for traffic in SETUPS[setup].traffics():
        singles = {name: predicted_seconds(table, traffic, backends, name) for name in backends}
        known = {name: seconds for name, seconds in singles.items() if seconds is not None}
        mixed = predicted_seconds(table, traffic, backends, FINE)
        best = min(known, key=lambda name: known[name])
        gain = known[best] / mixed if mixed else 0.0
        target = LEAST_WHERE_PREDICTED if gain >= PREDICTED_GAIN else LEAST
        case = traffic.name
        label = f"{setup}: {case} (best single by the table: {best}; predicted {gain:.2f})"
        yield Comparison(case, FINE, tuple(backends), target, label=label)
        yield Comparison(case, FINE, (COARSE,), label=f"{setup}: {case}, per size against per operation")


def measure_setup(name: str, options: Options) -> PartResults:
    table = options.folder / f"{name.replace('/', ' per ')}.json"
    # Several steps per sample: one step takes hundredths of a second, so a short disturbance would affect all of it.
    settings = replace(options.settings, min_sample_s=0.1)
    rate = SETUPS[name].rate_gbit_s
    with contextlib.nullcontext() if rate is None else Lab(rate) as lab:
        ranks = lab_job(name, lab, __file__, [table], NUM_RANKS // NUM_HOSTS) if lab else None
        ranks = ranks or job(name, __file__, [table], NUM_RANKS)
        measurement = measure_jobs([ranks], name, settings, start_timeout_s=600.0)
    yield comparisons(name, load_table(table)), measurement
    for traffic in SETUPS[name].traffics():
        print(f"{name}: {traffic.name}: {traffic.source}", file=sys.stderr)


if __name__ == "__main__":
    run_claim(
        "the traffic of one step over the tuned mix of libraries against the best single library",
        {name: partial(measure_setup, name) for name in SETUPS},
        by="--setup",
        by_help="run only this setup; may be repeated",
        needs_lab=lambda options: any(SETUPS[name].rate_gbit_s for name in options.parts),
    )
