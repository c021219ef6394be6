"""Exchange of the parameters of VGG-16 by broadcasts: executed between two hosts, simulated for up to 1,024 ranks.

This repeats the study of "Optimized Broadcast for Deep Learning Workloads on Dense-GPU InfiniBand Clusters: MPI or
NCCL?" (arXiv 1707.09414) on its model: rank 0 broadcasts all 32 arrays, 553 MB, one after the other. The links within a
host and between the two hosts of the laboratory (lab.py) are fitted to measured messages; the numbers of blocks are
chosen for these links.

Executed: four ranks on the two hosts, compared with a simulation of the same schedules on the fitted links.

Simulated: 8 to 1,024 ranks, each on its own host, on the fitted link between hosts. MPI and gloo use the algorithms of
their sources there (MPICH: binomial, then scatter and all_gather by ring; gloo: binomial).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
from claim import Options, PartResults, measure_jobs, option, run_claim
from lab import NUM_HOSTS, Lab
from libraries import lab_job
from ranks import check, serve_all

import hocket as hk
from hocket.collectives import Algorithm, algorithms, find_algorithm
from hocket.collectives.simulate import simulate
from hocket.collectives.source import format_algorithm
from hocket.comm.policy import format_nbytes
from hocket.measure import Comparison, Contender, Measurement, Row, Settings, computed, judge, progress
from hocket.measure.loops import in_order
from hocket.measure.pictures import check_picture_path, load_pyplot
from hocket.sim import Fabric, Hosts, Link, Uniform
from hocket.tune.fit import fit_line

KIB, MIB = 1 << 10, 1 << 20
RANKS_PER_HOST = 2
NUM_RANKS = NUM_HOSTS * RANKS_PER_HOST
# Simonyan and Zisserman (arXiv 1409.1556), configuration D: channels of the 3 x 3 convolutions, fully connected layers.
CHANNELS = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
FULL = ((512 * 7 * 7, 4096), (4096, 4096), (4096, 1000))
# No sizes between: after a pause, the link of the laboratory passes 128 KiB at once, unlike real links.
LINK_SIZES = (64, KIB, MIB, 4 * MIB, 16 * MIB)
STUDIED = ("chain", "k_nomial", "scatter_ring", "circulant")
TUNED = "tuned"
RIVALS = ("MPI", "gloo")
SIMULATED_RANKS = (8, 16, 32, 64, 128, 256, 512, 1024)
MOST_MESSAGES = 1 << 22  # of a simulated schedule; schedules with more messages get fewer and larger blocks
LEAST_GAIN = 0.97
MICROSECOND = 1e-6
MESSAGE = "chain(num_blocks=1)"  # with this algorithm, a broadcast between two ranks is one message


def serve_rank(_: str, what: str) -> None:
    """Run one rank of hocket: serve messages to fit links, or checked exchanges of all parameters.

    Args:
        what: the request in JSON, {"links": [bytes, ...]} or {"sizes": [bytes, ...], "ways": {name: [[backend,
            algorithm], ...]}}.
    """
    request = json.loads(what)
    comm = hk.init(backends=["mpi", "gloo"], policy=hk.Policy.fixed({"*": "mpi"}))
    contenders = link_contenders(comm, request["links"]) if "links" in request else exchange_contenders(comm, **request)
    serve_all(comm, contenders)


def link_contenders(comm: hk.Communicator, sizes: Sequence[int]) -> list[Contender]:
    """Return messages between two ranks of a host, and between two hosts; the other ranks wait."""
    contenders = []
    for name, ranks in (("inner", [0, 1]), ("outer", [0, RANKS_PER_HOST])):
        pair = comm.group(ranks) if comm.rank in ranks else None
        for nbytes in sizes:
            x = np.ones(nbytes, np.uint8)

            def run(iterations: int, pair: hk.Communicator | None = pair, x: np.ndarray = x) -> None:
                for number in range(iterations if pair else 0):  # there and back
                    pair.broadcast(x, number % 2, backend="mpi", algorithm=MESSAGE)

            contenders.append(Contender(f"link {format_nbytes(nbytes)}", name, run))
    return contenders


def exchange_contenders(
    comm: hk.Communicator, sizes: Sequence[int], ways: dict[str, list[list[str]]]
) -> list[Contender]:
    """Return broadcasts of all arrays from rank 0, one after the other, as in training with broadcasts."""
    arrays = [np.zeros(nbytes // 4, np.float32) for nbytes in sizes]
    contenders = []
    for name, of_arrays in ways.items():
        calls = [
            partial(comm.broadcast, x, 0, backend=backend, algorithm=algorithm)
            for x, (backend, algorithm) in zip(arrays, of_arrays, strict=True)
        ]
        run = in_order(calls)
        for number, x in enumerate(arrays):
            x.fill(number if comm.rank == 0 else -1)
        run(1)
        for number, x in enumerate(arrays):
            check(f"{name}, array {number}", x, number)
        contenders.append(Contender("exchange", name, run))
    return contenders


def parameter_nbytes() -> list[int]:
    """Return the bytes of the arrays of VGG-16 in float32: weights and biases of every layer."""
    layers = [*((9 * inputs, outputs) for inputs, outputs in pairwise(CHANNELS)), *FULL]
    return [4 * count for inputs, outputs in layers for count in (inputs * outputs, outputs)]


def parameters_for(algorithm: Algorithm, link: Link, num_ranks: int, nbytes: int) -> dict[str, int]:
    """Return the parameters of an algorithm, with the best number of blocks on this link."""
    parameters = dict(algorithm.parameters)
    if "num_blocks" in parameters:
        del parameters["num_blocks"]
        best = algorithm.best_num_blocks(link, num_ranks, nbytes, **parameters)
        parameters["num_blocks"] = min(best, MOST_MESSAGES // num_ranks, max(1, nbytes // 4))
    return parameters


def format_tuned(name: str, nbytes: int, link: Link) -> str:
    return format_algorithm(name, parameters_for(find_algorithm("broadcast", name), link, NUM_RANKS, nbytes))


def simulated_s(name: str, link: Link, fabric: Fabric, num_ranks: int, nbytes: int) -> float:
    """Simulate one broadcast on a fabric; `link` determines the number of blocks. Return the seconds."""
    algorithm = find_algorithm("broadcast", name)
    schedule = algorithm.schedule(num_ranks, **parameters_for(algorithm, link, num_ranks, nbytes))
    return simulate(schedule, nbytes, fabric).seconds


def run_in_lab(lab: Lab, what: Mapping[str, object], settings: Settings, label: str) -> Measurement:
    job = lab_job("hocket", lab, __file__, [json.dumps(what)], RANKS_PER_HOST)
    return measure_jobs([job], label, settings, start_timeout_s=300.0)


def fit_links(lab: Lab, settings: Settings) -> tuple[dict[str, Link], Measurement]:
    """Fit the links within a host and between hosts to the medians of messages."""
    measurement = run_in_lab(lab, {"links": LINK_SIZES}, replace(settings, again=False), "links")
    links = {}
    for name in ("inner", "outer"):
        times = [(each, median(measurement.times(f"link {format_nbytes(each)}", name))) for each in LINK_SIZES]
        links[name] = Link(*fit_line(times)[:2], 0.0)
    return links, measurement


def executed_rows(lab: Lab, links: Mapping[str, Link], settings: Settings) -> tuple[list[Row], Measurement]:
    """Measure exchanges by each studied algorithm, by the best for every size, and by the libraries themselves."""
    sizes = parameter_nbytes()
    outer, fabric = links["outer"], Hosts(links["inner"], links["outer"], RANKS_PER_HOST)
    usable = [each.name for each in algorithms("broadcast") if each.restriction(NUM_RANKS) is None]
    seconds = {
        nbytes: {name: simulated_s(name, outer, fabric, NUM_RANKS, nbytes) for name in usable} for nbytes in set(sizes)
    }
    names = {name: [name] * len(sizes) for name in STUDIED}
    names[TUNED] = [min(usable, key=seconds[nbytes].__getitem__) for nbytes in sizes]
    ways = {
        way: [["mpi", format_tuned(*each, outer)] for each in zip(of_sizes, sizes, strict=True)]
        for way, of_sizes in names.items()
    }
    own = {backend: [[backend, "native"]] * len(sizes) for backend in ("mpi", "gloo")}
    measurement = run_in_lab(lab, {"sizes": sizes, "ways": ways | own}, settings, "exchanges")
    rows = []
    for way, of_sizes in names.items():
        label = f"executed, {NUM_RANKS} ranks on {NUM_HOSTS} hosts: {way}"
        target = LEAST_GAIN if way == TUNED else None
        rivals = [tuple(own), ("gloo",)] if way == TUNED else [tuple(own)]
        compare = partial(Comparison, "exchange", way, target=target, needs_cores=False, label=label, unit="ms")
        judged = [judge(measurement, compare(each)) for each in rivals]
        simulated_ms = 1e3 * sum(seconds[nbytes][name] for nbytes, name in zip(sizes, of_sizes, strict=True))
        rows += [*judged, computed(label, "simulated on the fitted links", judged[0].ours, simulated_ms, "ms")]
    return rows, measurement


def simulated_rows(link: Link) -> tuple[list[Row], dict[str, list[float]]]:
    """Compare the best algorithm for every size with one for all, MPI and gloo; return rows, and seconds by way."""
    counts, rows = Counter(parameter_nbytes()), []
    lines: dict[str, list[float]] = {}
    with progress("simulating", "numbers of ranks") as on_round:
        for number, num_ranks in enumerate(SIMULATED_RANKS):
            totals = _simulated_totals(link, num_ranks, counts)
            for name, seconds in totals.items():
                lines.setdefault(name, []).append(seconds)
            ours_s, label = totals.pop(TUNED), f"simulated, {num_ranks} ranks: {TUNED}"
            for name, seconds in totals.items():
                target = LEAST_GAIN if seconds == min(totals.values()) else None
                rows.append(computed(label, name, 1e3 * ours_s, 1e3 * seconds, "ms", target))
            on_round(number + 1, len(SIMULATED_RANKS), f"{num_ranks} ranks")
    return rows, lines


def _simulated_totals(link: Link, num_ranks: int, counts: Mapping[int, int]) -> dict[str, float]:
    """Return the simulated seconds of an exchange, by name of the way."""
    totals = Counter[str]()
    usable = [each for each in algorithms("broadcast") if each.restriction(num_ranks) is None]
    for nbytes, count in counts.items():
        formulas = {
            each.name: each.seconds(link, num_ranks, nbytes, **parameters_for(each, link, num_ranks, nbytes))
            for each in usable
        }
        algorithm_of = {name: name for name in STUDIED} | {
            TUNED: min(formulas, key=formulas.__getitem__),  # as the tuner chooses; its time is then simulated
            "MPI": _mpich_algorithm(num_ranks, nbytes),
            "gloo": "binomial",
        }
        seconds = {
            name: simulated_s(name, link, Uniform(link), num_ranks, nbytes) for name in set(algorithm_of.values())
        }
        for way, name in algorithm_of.items():
            totals[way] += count * seconds[name]
    return dict(totals)


def _mpich_algorithm(num_ranks: int, nbytes: int) -> str:
    """Return the choice of MPICH 5.0's collective selection.

    Its scatter and recursive doubling, for powers of two, has the rounds and bytes of scatter_bruck.
    """
    if num_ranks < 8 or nbytes <= 12288:
        return "binomial"
    return "scatter_bruck" if nbytes <= 524288 and num_ranks & (num_ranks - 1) == 0 else "scatter_ring"


def draw(lines: Mapping[str, Sequence[float]], rate: float, path: Path) -> None:
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    for name, seconds in lines.items():
        if name == TUNED:  # behind the other lines, which it overlaps
            axes.plot(SIMULATED_RANKS, seconds, color="#bbbbbb", linewidth=7, label=name, zorder=1)
        else:
            axes.plot(SIMULATED_RANKS, seconds, "--" if name in RIVALS else "-", marker="o", label=name, markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(SIMULATED_RANKS, [str(each) for each in SIMULATED_RANKS])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel("ranks, each on its own host")
    axes.set_ylabel("seconds of an exchange (simulated)")
    axes.set_title(f"VGG-16 by broadcasts, on a link fitted at {rate:g} Gbit/s")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)


def rate(text: str) -> float:
    if float(text) <= 0:
        raise argparse.ArgumentTypeError(f"must be above zero, not {text}")
    return float(text)


def parts(options: Options) -> PartResults:
    if options.picture is not None:
        check_picture_path(options.picture)
    with Lab(options.rate) as lab:
        links, calibration = fit_links(lab, options.settings)
        for name, link in links.items():
            print(f"{name} link: {link.alpha_s / MICROSECOND:.1f} us, {1e-9 / link.beta_s:.3g} GB/s", file=sys.stderr)
        rows, measurement = executed_rows(lab, links, options.settings)
    yield [], calibration
    yield rows, measurement
    rows, lines = simulated_rows(links["outer"])
    if options.picture is not None:
        draw(lines, options.rate, options.picture)
    yield (rows,)


if __name__ == "__main__":
    run_claim(
        "exchange of the parameters of VGG-16",
        parts,
        option("--rate", type=rate, default=1.0, metavar="GBIT", help="link rate in Gbit/s (default 1)"),
        option("--picture", type=Path, metavar="FILE", help="draw the simulated times"),
        needs_lab=lambda options: True,
    )
