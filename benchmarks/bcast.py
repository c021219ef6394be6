"""Broadcast by schedules: executed against Open MPI and MPICH, and simulated for up to 1,024 ranks.

One host: two ranks; the rivals are the libraries' own Bcast through mpi4py, each in its own job.

Two hosts (lab.py), joined by a link of 1 Gbit/s: two and four ranks. The rivals are the broadcasts of MPICH and gloo,
called through hocket in the same job, and that of Open MPI in its own job. Open MPI's ranks spin while they wait, which
slows four of them on two processors.

Simulated, on a link of 2 us and 12.5 GB/s: the algorithm that the model chooses against the best of all algorithms,
each with its best number of blocks.
"""

from __future__ import annotations

from functools import partial
from itertools import product

from claim import Options, PartResults, measure_jobs, run_claim
from lab import NUM_HOSTS, Lab
from libraries import job, lab_job
from ranks import check_loop, make_operands, serve_all

import hocket as hk
from hocket.collectives import algorithms
from hocket.collectives.simulate import simulate
from hocket.collectives.source import parse_algorithm
from hocket.comm.policy import Group, format_nbytes
from hocket.measure import Comparison, Contender, Row, computed, pin
from hocket.measure.loops import looped
from hocket.session.schedules import LazySchedules
from hocket.sim import Link
from hocket.tune.contest import candidates
from hocket.tune.fit import Fit

RIVAL_SCRIPT = "collectives_cpu.py"
KIB, MIB = 1 << 10, 1 << 20
ONE_HOST_SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB)
TWO_HOSTS_SIZES = (4 * KIB, 64 * KIB, MIB, 4 * MIB)
RANKS_PER_HOST = (1, 2)
RATE_GBIT_S = 1.0
SERVED = ("chain", "circulant", "binomial", "scatter_ring")
SCHEDULES = SERVED[:2]
LINK = Link.of(2.0, 12.5)
SIMULATED_RANKS = (8, 16, 33, 64, 100, 256, 511, 1024)
SIMULATED_SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)
MOST_WORSE = 1.03


def serve_rank(_: str, backend_list: str, *sizes: str) -> None:
    """Run one rank of hocket: check its broadcasts over each library and by several schedules, and serve them."""
    backends = backend_list.split(",")
    comm = hk.init(backends=backends, policy=hk.Policy.fixed({"*": backends[0]}))
    pin(comm.local_rank)
    contenders = []
    for nbytes in map(int, sizes):
        operands = make_operands("broadcast", nbytes, comm.rank, comm.size)
        for backend, algorithm in product(backends, ways(comm, nbytes)):
            run = looped(partial(comm.broadcast, operands.x, 0, backend=backend, algorithm=algorithm))
            check_loop(f"{backend}, {algorithm}", run, operands, comm.rank)
            name = f"{backend} {algorithm.partition('(')[0]}"
            contenders.append(Contender(f"broadcast {format_nbytes(nbytes)}", name, run))
    serve_all(comm, contenders)


def ways(comm: hk.Communicator, nbytes: int) -> list[str]:
    """Return the library's own algorithm, and schedules with the best number of blocks by the model."""
    source = LazySchedules()
    named = [source.complete("broadcast", name, comm._chooser.group, nbytes) for name in SERVED]
    return ["native", *map(str, named)]


def one_host(options: Options) -> PartResults:
    jobs = [job("hocket", __file__, ["shm", *ONE_HOST_SIZES], 2)]
    jobs += [job(library, RIVAL_SCRIPT, ["broadcast", *ONE_HOST_SIZES], 2) for library in ("openmpi", "mpich")]
    measurement = measure_jobs(jobs, "one host", options.settings)
    comparisons = []
    for nbytes in ONE_HOST_SIZES:
        case = f"broadcast {format_nbytes(nbytes)}"
        rivals = tuple(name for name in measurement.names(case) if not name.startswith("shm "))
        for ours in ("native", *SCHEDULES):
            label = f"one host, 2 ranks: {format_nbytes(nbytes)}, shm {ours}"
            comparisons.append(Comparison(case, f"shm {ours}", rivals, label=label))
    yield comparisons, measurement


def two_hosts(options: Options) -> PartResults:
    for ranks_per_host in RANKS_PER_HOST:
        num_ranks = NUM_HOSTS * ranks_per_host
        where = f"two hosts, {num_ranks} ranks{' (oversubscribed)' * (ranks_per_host > 1)}, {RATE_GBIT_S:g} Gbit/s"
        with Lab(RATE_GBIT_S) as lab:
            ranks = lab_job("hocket", lab, __file__, ["mpi,gloo", *TWO_HOSTS_SIZES], ranks_per_host)
            rival = lab_job("openmpi", lab, RIVAL_SCRIPT, ["broadcast", *TWO_HOSTS_SIZES], ranks_per_host)
            measurement = measure_jobs([ranks, rival], where, options.settings)
        comparisons = []
        for nbytes, ours in product(TWO_HOSTS_SIZES, SCHEDULES):
            case, label = f"broadcast {format_nbytes(nbytes)}", f"{where}: {format_nbytes(nbytes)}, mpi {ours}"
            of_openmpi = tuple(name for name in measurement.names(case) if name.startswith("openmpi "))
            for rivals in (("mpi native", "gloo native"), of_openmpi):
                comparisons.append(Comparison(case, f"mpi {ours}", rivals, needs_cores=False, label=label))
        yield comparisons, measurement


def simulated(options: Options) -> PartResults:
    """Compare the chosen algorithm with the best of all, both simulated."""
    fits = [Fit("link", LINK.alpha_s, LINK.beta_s, LINK.gamma_s, 0.0)]
    yield ([simulated_row(*each, fits) for each in product(SIMULATED_RANKS, SIMULATED_SIZES)],)


def simulated_row(num_ranks: int, nbytes: int, fits: list[Fit]) -> Row:
    first = candidates(("broadcast", "moved", nbytes), Group(num_ranks, ["mpi"]), fits)[0]
    algorithm, parameters = parse_algorithm("broadcast", first.partition("/")[2])
    chosen = simulate(algorithm.schedule(num_ranks, **parameters), nbytes, LINK).seconds
    times = {}
    for each in algorithms("broadcast"):
        has_blocks = "num_blocks" in each.parameters
        own = {"num_blocks": each.best_num_blocks(LINK, num_ranks, nbytes)} if has_blocks else {}
        times[each.name] = simulate(each.schedule(num_ranks, **own), nbytes, LINK).seconds
    best = min(times, key=lambda name: times[name])
    case = f"simulated, {num_ranks} ranks: {format_nbytes(nbytes)}, chosen: {algorithm.name}"
    rival = f"{best} (the best of {len(times)})"
    return computed(case, rival, 1e6 * chosen, 1e6 * times[best], "us", 1 / MOST_WORSE)


if __name__ == "__main__":
    run_claim(
        "broadcast by schedules, executed and simulated",
        {"one host": one_host, "two hosts": two_hosts, "simulated": simulated},
        needs_lab=lambda options: "two hosts" in options.parts,
    )
