"""Broadcast by schedules: executed against Open MPI and MPICH, and simulated for up to 1,024 ranks.

Executed between two ranks of this host (the libraries' own Bcast through mpi4py, each in a job of its own), and
between two and four ranks on two hosts (lab.py) joined by a link of 1 Gbit/s: there MPICH's and gloo's own broadcasts,
through hocket in the same job, and Open MPI's in a job of its own are the rivals. Open MPI's ranks spin while they
wait, which four of them on two processors pay for. Simulated on a link of 2 us and 12.5 GB/s: what the model chooses
against the best of all algorithms at their own best numbers of blocks.
"""

from __future__ import annotations

import signal
import sys
from functools import partial
from pathlib import Path

from lab import NUM_HOSTS, Lab, find_obstacle
from libraries import job, lab_job, openmpi_lab_job, size_name

from hocket.collectives import algorithms
from hocket.collectives.simulate import simulate
from hocket.collectives.source import parse_algorithm
from hocket.comm.policy import Group
from hocket.errors import BackendUnavailable
from hocket.measure import (
    Comparison,
    Coordinator,
    Measurement,
    Row,
    Settings,
    finish,
    judge,
    measure,
    null_rows,
    progress,
    report,
    run_script,
    script_parser,
    settings_of,
)
from hocket.sim import Link
from hocket.tune.contest import candidates
from hocket.tune.fit import Fit

RANK_SCRIPT = Path(__file__).with_name("bcast_rank.py")
RIVAL_SCRIPT = Path(__file__).with_name("collectives_rank.py")
KIB, MIB = 1 << 10, 1 << 20
ONE_HOST_SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB)
TWO_HOSTS_SIZES = (4 * KIB, 64 * KIB, MIB, 4 * MIB)
RANKS_PER_HOST = (1, 2)
RATE_GBIT_S = 1.0
SCHEDULES = ("chain", "circulant")
LINK = Link.of(2.0, 12.5)
SIMULATED_RANKS = (8, 16, 33, 64, 100, 256, 511, 1024)
SIMULATED_SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)
MOST_WORSE = 1.03


def one_host(settings: Settings) -> tuple[list[Row], Measurement]:
    sizes = [str(nbytes) for nbytes in ONE_HOST_SIZES]
    jobs = [job("hocket", RANK_SCRIPT, ["shm", *sizes], 2)]
    jobs += [job(library, RIVAL_SCRIPT, ["broadcast", *sizes], 2) for library in ("openmpi", "mpich")]
    with Coordinator(jobs) as coordinator, progress("one host") as on_round:
        measurement = measure(coordinator, settings, on_round=on_round)
    rows = []
    for nbytes in ONE_HOST_SIZES:
        case = f"broadcast {size_name(nbytes)}"
        rivals = tuple(
            key.name for key in measurement.iterations if key.case == case and not key.name.startswith("shm ")
        )
        for ours in ("native", *SCHEDULES):
            label = f"one host, 2 ranks: {size_name(nbytes)}, shm {ours}"
            rows.append(judge(measurement, Comparison(case, f"shm {ours}", rivals, label=label)))
    return rows, measurement


def two_hosts(settings: Settings, ranks_per_host: int) -> tuple[list[Row], Measurement]:
    sizes = [str(nbytes) for nbytes in TWO_HOSTS_SIZES]
    num_ranks = NUM_HOSTS * ranks_per_host
    where = f"two hosts, {num_ranks} ranks{' (oversubscribed)' * (ranks_per_host > 1)}, {RATE_GBIT_S:g} Gbit/s"
    argv = (sys.executable, str(RANK_SCRIPT), "hocket", "mpi,gloo", *sizes)
    with Lab(RATE_GBIT_S) as lab:
        ranks = lab_job("hocket", lab, argv, ranks_per_host)
        rival = openmpi_lab_job(
            lab, (sys.executable, str(RIVAL_SCRIPT), "openmpi", "broadcast", *sizes), ranks_per_host
        )
        with Coordinator([ranks, rival], start_timeout_s=120.0) as coordinator, progress(where) as on_round:
            measurement = measure(coordinator, settings, on_round=on_round)
    rows = []
    for nbytes in TWO_HOSTS_SIZES:
        case = f"broadcast {size_name(nbytes)}"
        of_openmpi = tuple(
            key.name for key in measurement.iterations if key.case == case and key.name.startswith("openmpi ")
        )
        for ours in SCHEDULES:
            label = f"{where}: {size_name(nbytes)}, mpi {ours}"
            for rivals in (("mpi native", "gloo native"), of_openmpi):
                comparison = Comparison(case, f"mpi {ours}", rivals, needs_cores=False, label=label)
                rows.append(judge(measurement, comparison))
    return rows, measurement


def simulated() -> list[Row]:
    """The chosen algorithm against the best of all, both in the simulation."""
    fits = [Fit("link", LINK.alpha_s, LINK.beta_s, LINK.gamma_s, 0.0)]
    rows = []
    for num_ranks in SIMULATED_RANKS:
        for nbytes in SIMULATED_SIZES:
            first = candidates(("broadcast", "moved", nbytes), Group(num_ranks, ["mpi"]), fits)[0]
            algorithm, parameters = parse_algorithm("broadcast", first.partition("/")[2])
            chosen = simulate(algorithm.schedule(num_ranks, **parameters), nbytes, LINK).seconds
            times = {}
            for each in algorithms("broadcast"):
                own = (
                    {"num_blocks": each.best_num_blocks(LINK, num_ranks, nbytes)}
                    if "num_blocks" in each.parameters
                    else {}
                )
                times[each.name] = simulate(each.schedule(num_ranks, **own), nbytes, LINK).seconds
            best = min(times, key=lambda name: times[name])
            rows.append(
                Row(
                    case=f"simulated, {num_ranks} ranks: {size_name(nbytes)}, chosen: {algorithm.name}",
                    rival=f"{best} (the best of {len(times)})",
                    ours=1e6 * chosen,
                    theirs=1e6 * times[best],
                    unit="us",
                    ratio=times[best] / chosen,
                    interval=None,
                    target=1 / MOST_WORSE,
                    holds=chosen <= MOST_WORSE * times[best],
                )
            )
    return rows


def main() -> int:
    parser = script_parser(__doc__.split("\n\n")[0])
    parser.add_argument(
        "--part", action="append", choices=("one host", "two hosts", "simulated"), help="may be repeated"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of the laboratory's end
    settings = settings_of(options)
    parts = options.part or ["one host", "two hosts", "simulated"]
    if "two hosts" in parts and (reason := find_obstacle()) is not None:
        raise BackendUnavailable(f"{reason}; --part names what can do without")
    rows: list[Row] = []
    measurements: list[Measurement] = []
    runs = [("one host", one_host)]
    runs += [("two hosts", partial(two_hosts, ranks_per_host=each)) for each in RANKS_PER_HOST]
    for part, run in runs:
        if part in parts:
            found, measurement = run(settings)
            rows += found
            measurements.append(measurement)
    for measurement in measurements:
        rows += null_rows(measurement)
    if "simulated" in parts:
        rows += simulated()
    return finish(report("broadcast by schedules, executed and simulated", rows, measurements), options)


if __name__ == "__main__":
    run_script(main)
