"""One operation over two libraries at once, if each has its own link, and if they share one link.

The laboratory (lab.py) has one rank on each of two hosts, joined by one or two links of 1 Gbit/s. MPICH uses the first
link (UCX_NET_DEVICES), gloo the second one, or the only one. The ranks first measure a table, as `hocket tune run`
does. Its choice must be as good as the best of MPICH, gloo and both together, with one link and with two. With two
links, the rows also compare with MPICH in its own job that may use all links: operations need not be split over
libraries if one library can use all links.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, product
from typing import Any

import numpy as np
from claim import Options, PartResults, measure_with_facts, option, run_claim
from lab import Lab
from libraries import lab_job
from ranks import serve_all, zeros

import hocket as hk
from hocket.comm.policy import format_nbytes
from hocket.measure import Comparison, Contender, Job, Process, pin
from hocket.measure.loops import Loop, looped
from hocket.measure.machine import sent_nbytes
from hocket.tune.policy import TablePolicy
from hocket.tune.sweep import Sweep, measure_table

MIB = 1 << 20
SIZES = (64 << 10, MIB, 4 * MIB, 16 * MIB)
RATE_GBIT_S = 1.0
LEAST_GAIN = 1.5
LEAST_GAIN_FROM = 4 * MIB
AS_GOOD = 0.95
ALONE = ("mpi", "gloo")
OPS = ("all_reduce", "broadcast")
BOTH = "mpi+gloo"
CHOICE = "by the table"
ALL_LINKS = "mpi over all links"


def serve_rank(library: str, *sizes: str) -> None:
    """Run one rank: each library, both together, and the choices of a measured table; or MPICH over all links.

    Its facts are, by case, the choice of the table and the bytes that one operation over both sends over each device.
    """
    nbytes = [int(each) for each in sizes]
    if library == "mpich":  # only this library, configured by the environment
        comm = hk.init(backends="mpi", policy=hk.Policy.fixed({"*": "mpi"}))
        pin(comm.rank)
        cases = {f"{op} {format_nbytes(n)}": bind_loop(comm, op, zeros(n // 4)) for op, n in product(OPS, nbytes)}
        serve_all(comm, [Contender(case, ALL_LINKS, run) for case, run in cases.items()])
        return
    comm = hk.init(backends=["mpi", "gloo", BOTH], policy=hk.Policy.fixed({"*": "mpi"}))
    pin(comm.rank)
    comm.policy = TablePolicy(measure_table(comm, Sweep(ops=OPS, sizes=nbytes, busy_sizes=(), schedules=False)))
    contenders = []
    facts = {}
    for op, each in product(OPS, nbytes):
        case = f"{op} {format_nbytes(each)}"
        x = zeros(each // 4)
        for name in (*ALONE, BOTH):
            contenders.append(Contender(case, name, bind_loop(comm, op, x, backend=name, algorithm="native")))
        contenders.append(Contender(case, CHOICE, bind_loop(comm, op, x)))
        comm.barrier()
        before = sent_nbytes()
        contenders[-2].run(1)
        comm.barrier()
        sent = {device: count - before[device] for device, count in sent_nbytes().items()}
        facts[case] = {"chosen": comm.explain(op, each).chosen, "sent": sent}
    serve_all(comm, contenders, facts)


def bind_loop(comm: hk.Communicator, op: str, x: np.ndarray, **how: str) -> Loop:
    return looped(partial(getattr(comm, op), *((x, 0) if op == "broadcast" else (x,)), **how))


def with_variables(job: Job, **variables: str) -> Job:
    return replace(job, processes=tuple(Process(each.argv, {**each.env, **variables}) for each in job.processes))


def parts(options: Options) -> PartResults:
    for num_links in options.links or (2, 1):
        where = f"2 hosts, {num_links} link{'s' if num_links > 1 else ''} of {RATE_GBIT_S:g} Gbit/s"
        with Lab(RATE_GBIT_S, num_links) as lab:
            ours = lab_job("hocket", lab, __file__, SIZES, 1)
            jobs = [with_variables(ours, GLOO_SOCKET_IFNAME=lab.devices[-1], UCX_NET_DEVICES=lab.devices[0])]
            if num_links > 1:
                rival = lab_job("mpich", lab, __file__, SIZES, 1)
                jobs.append(with_variables(rival, MASTER_PORT="29600"))
            measurement, facts = measure_with_facts(jobs, where, options.settings, start_timeout_s=400.0)
        yield chain(*(comparisons(facts, where, num_links, *each) for each in product(OPS, SIZES))), measurement


def comparisons(facts: dict[str, Any], where: str, num_links: int, op: str, nbytes: int) -> Iterator[Comparison]:
    case = f"{op} {format_nbytes(nbytes)}"
    sent = ", ".join(f"{count / 1024:.0f} KiB over {device}" for device, count in sorted(facts[case]["sent"].items()))
    compare = partial(Comparison, case, needs_cores=False)
    both = partial(compare, BOTH, label=f"{where}: {case}, both ({sent})")
    yield both(ALONE, target=LEAST_GAIN if num_links > 1 and nbytes >= LEAST_GAIN_FROM else None)
    if num_links > 1:
        yield both((ALL_LINKS,))
    chosen = f"{where}: {case}, the table's: {facts[case]['chosen']}"
    yield compare(CHOICE, (*ALONE, BOTH), target=AS_GOOD, label=chosen)


if __name__ == "__main__":
    run_claim(
        "one operation over two libraries at once",
        parts,
        option("--links", action="append", type=int, choices=(1, 2), help="may be repeated (default: 2 and 1)"),
        needs_lab=lambda options: True,
    )
