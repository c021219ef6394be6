"""Hierarchical collectives (shared memory within hosts, a library between them) against flat libraries.

There are two ranks on each of two hosts of the laboratory (lab.py), joined by a link of 1 or 10 Gbit/s. The rivals are
MPICH's and gloo's own algorithms, called through hocket in the same job, and Open MPI in its own job. Open MPI's ranks
spin while they wait, which slows four of them on two processors. The best of our schedules counts, as the tuner would
choose it. The kernel counts the bytes that a host sends over the link, including headers; they are compared with the
minimum.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain, product

from claim import Options, PartResults, measure_with_facts, option, run_claim
from lab import NUM_HOSTS, Lab
from libraries import lab_job
from ranks import arguments, check_loop, make_operands, serve_all

import hocket as hk
from hocket.comm.policy import format_nbytes
from hocket.measure import Comparison, Contender, Measurement, Row, computed, judge, pin
from hocket.measure.loops import looped
from hocket.measure.machine import sent_nbytes

RIVAL_SCRIPT = "collectives_cpu.py"
KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, MIB, 16 * MIB)
RANKS_PER_HOST = 2
RATES_GBIT_S = (1.0, 10.0)
LEAST_GAIN = 1.3
LEAST_GAIN_FROM = MIB
# Headers of Ethernet, IP and TCP on a link with segments of 1,448 bytes, and the libraries' own protocol messages.
MOST_OVERHEAD = 1.08
OPS = ("all_reduce", "all_gather", "all_to_all")
# Our schedules by operation; {} is the number of ranks per host. Large blocks of all_to_all are sent directly to their
# rank, over shared memory within a host.
LEVELS = {
    "all_reduce": ("hierarchical(ranks_per_host={})", "hierarchical(ranks_per_host={}, num_segments=4)"),
    "all_gather": ("hierarchical(ranks_per_host={})", "hierarchical(ranks_per_host={}, num_segments=4)"),
    "all_to_all": ("hierarchical(ranks_per_host={})", "windowed(window=3)"),
}
NUM_COUNTED = 5


def ways(op: str, ranks_per_host: int) -> Iterator[tuple[str, str, str]]:
    """Yield (name, backend, algorithm) of each variant."""
    for backend in ("mpi", "gloo"):
        yield backend, backend, "native"
        for algorithm in LEVELS[op]:
            complete = algorithm.format(ranks_per_host)
            yield f"{backend}/{complete}", backend, complete


def serve_rank(_: str, ops: str, *sizes: str) -> None:
    """Run one rank of hocket: check flat and hierarchical collectives over each library, count bytes, and serve them.

    Its facts are the bytes that one operation sends over the link, by case and name.
    """
    comm = hk.init(backends=["mpi", "gloo"], policy=hk.Policy.fixed({"*": "mpi"}))
    pin(comm.local_rank)
    contenders = []
    counted = []
    for op, nbytes in product(ops.split(","), map(int, sizes)):
        case = f"{op} {format_nbytes(nbytes)}"
        for name, backend, algorithm in ways(op, comm.local_size):
            operands = make_operands(op, nbytes, comm.rank, comm.size)
            own = arguments(op, operands.x, operands.out)
            call = partial(getattr(comm, op), *own, backend=backend, algorithm=algorithm)
            run = check_loop(f"{case}, {name}", looped(call), operands, comm.rank)
            comm.barrier()
            before = sum(sent_nbytes().values())
            comm.barrier()
            run(NUM_COUNTED)
            comm.barrier()
            counted.append([case, name, (sum(sent_nbytes().values()) - before) / NUM_COUNTED])
            contenders.append(Contender(case, name, run))
    serve_all(comm, contenders, counted)


def least_nbytes(op: str, nbytes: int) -> float:
    """Return the minimum of bytes that a host must send if the largest array of a rank has `nbytes` bytes."""
    num_ranks = NUM_HOSTS * RANKS_PER_HOST
    elsewhere = (NUM_HOSTS - 1) / NUM_HOSTS
    return {
        "all_reduce": 2 * elsewhere * nbytes,  # Patarasuk and Yuan 2009, between hosts
        "all_gather": elsewhere * nbytes,
        "all_to_all": elsewhere * nbytes * num_ranks / NUM_HOSTS,
    }[op]


def parts(options: Options) -> PartResults:
    ops = options.op or list(OPS)
    for rate_gbit_s in options.rate or RATES_GBIT_S:
        where = f"{NUM_HOSTS} hosts, {NUM_HOSTS * RANKS_PER_HOST} ranks (oversubscribed), {rate_gbit_s:g} Gbit/s"
        rest = [",".join(ops), *SIZES]
        with Lab(rate_gbit_s) as lab:
            ours = lab_job("hocket", lab, __file__, rest, RANKS_PER_HOST)
            rival = lab_job("openmpi", lab, RIVAL_SCRIPT, rest, RANKS_PER_HOST)
            measurement, facts = measure_with_facts([ours, rival], where, options.settings, start_timeout_s=240.0)
        counted = {(case, name): value for case, name, value in facts}
        yield chain(*(rows_of(measurement, counted, where, *each) for each in product(ops, SIZES))), measurement


def rows_of(
    measurement: Measurement, counted: dict[tuple[str, str], float], where: str, op: str, nbytes: int
) -> list[Row]:
    """Return rows of our best schedule against the best flat algorithm and against each one, and of the bytes sent."""
    case = f"{op} {format_nbytes(nbytes)}"
    names = measurement.names(case)
    flat = tuple(name for name in names if name in ("mpi", "gloo") or name.startswith("openmpi "))
    schedules = [name for name in names if name.startswith("mpi/")]
    target = LEAST_GAIN if nbytes >= LEAST_GAIN_FROM else None

    def compare(name: str, rivals: tuple[str, ...], target: float | None = None) -> Row:
        label = f"{where}: {case}, {name}"
        return judge(measurement, Comparison(case, name, rivals, target=target, needs_cores=False, label=label))

    best = max(schedules, key=lambda name: compare(name, flat).ratio)
    rows = [compare(best, flat, target), *(compare(best, (name,)) for name in flat)]
    least = least_nbytes(op, nbytes) / KIB
    for name in (best, "mpi", "gloo"):
        label = f"{where}: {case}, {name}: bytes from a host"
        limit = 1 / MOST_OVERHEAD if name == best else None
        rows.append(computed(label, "the least", counted[case, name] / KIB, least, "KiB", limit))
    return rows


if __name__ == "__main__":
    run_claim(
        "hierarchical collectives between hosts",
        parts,
        option("--rate", action="append", type=float, metavar="GBIT_S", help="link rate; may be repeated"),
        option("--op", action="append", choices=OPS, help="operation; may be repeated (default: all)"),
        needs_lab=lambda options: True,
    )
