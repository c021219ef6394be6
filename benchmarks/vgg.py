"""Parameters of VGG-16 exchanged by broadcasts: executed between two hosts, simulated for up to 1,024 ranks.

The study of "Optimized Broadcast for Deep Learning Workloads on Dense-GPU InfiniBand Clusters: MPI or NCCL?" (arXiv
1707.09414) on its model: rank 0 broadcasts all 32 arrays, 553 MB, one after the other. Links are fitted to messages
within a host and between the two hosts of the laboratory (lab.py); blocks are cut for them. Executed by four ranks on
the two hosts, and the same schedules simulated on the fitted links beside it. Simulated for 8 to 1,024 ranks, each on a
host of its own, on the fitted link between hosts: MPI and gloo there as their sources have it (MPICH: binomial, then
scatter and all_gather by ring; gloo: binomial).
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
from claim import Found, Options, measured, option, run_claim
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
# Simonyan and Zisserman (arXiv 1409.1556), configuration D: channels of the 3 x 3 convolutions, then full layers.
CHANNELS = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
FULL = ((512 * 7 * 7, 4096), (4096, 4096), (4096, 1000))
# None between: the laboratory's link lets 128 KiB pass at once after a pause, as no real one does.
LINK_SIZES = (64, KIB, MIB, 4 * MIB, 16 * MIB)
STUDIED = ("chain", "k_nomial", "scatter_ring", "circulant")
TUNED = "tuned"
RIVALS = ("MPI", "gloo")
SIMULATED_RANKS = (8, 16, 32, 64, 128, 256, 512, 1024)
MOST_MESSAGES = 1 << 22  # of a simulated schedule: blocks are fewer and larger where they would be more
LEAST_GAIN = 0.97
MICROSECOND = 1e-6
MESSAGE = "chain(num_blocks=1)"  # a broadcast between two ranks by this is one message


def serve_rank(_: str, what: str) -> None:
    """One rank of hocket: links to fit, or exchanges of all parameters, checked, then served.

    What it serves is given as JSON: {"links": [bytes, ...]}, or {"sizes": [bytes, ...], "ways": {name: [[backend,
    algorithm], ...]}}.
    """
    given = json.loads(what)
    comm = hk.init(backends=["mpi", "gloo"], policy=hk.Policy.fixed({"*": "mpi"}))
    offered = link_contenders(comm, given["links"]) if "links" in given else exchange_contenders(comm, **given)
    serve_all(comm, offered)


def link_contenders(comm: hk.Communicator, sizes: Sequence[int]) -> list[Contender]:
    """A message between two ranks of a host, and between two hosts; the other ranks wait."""
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
    """All arrays from rank 0 to all ranks, one after the other as training with broadcasts does."""
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
    """Bytes of the arrays of VGG-16 in float32: weights and biases of every layer."""
    layers = [*((9 * inputs, outputs) for inputs, outputs in pairwise(CHANNELS)), *FULL]
    return [4 * count for inputs, outputs in layers for count in (inputs * outputs, outputs)]


def parameters_for(algorithm: Algorithm, link: Link, num_ranks: int, nbytes: int) -> dict[str, int]:
    """The algorithm's own, with the best number of blocks on this link."""
    parameters = dict(algorithm.parameters)
    if "num_blocks" in parameters:
        del parameters["num_blocks"]
        best = algorithm.best_num_blocks(link, num_ranks, nbytes, **parameters)
        parameters["num_blocks"] = min(best, MOST_MESSAGES // num_ranks, max(1, nbytes // 4))
    return parameters


def spelled(name: str, nbytes: int, link: Link) -> str:
    return format_algorithm(name, parameters_for(find_algorithm("broadcast", name), link, NUM_RANKS, nbytes))


def simulated_s(name: str, link: Link, fabric: Fabric, num_ranks: int, nbytes: int) -> float:
    """Seconds of one broadcast, cut for a link."""
    algorithm = find_algorithm("broadcast", name)
    schedule = algorithm.schedule(num_ranks, **parameters_for(algorithm, link, num_ranks, nbytes))
    return simulate(schedule, nbytes, fabric).seconds


def run_in_lab(lab: Lab, what: Mapping[str, object], settings: Settings, label: str) -> Measurement:
    job = lab_job("hocket", lab, __file__, [json.dumps(what)], RANKS_PER_HOST)
    return measured([job], label, settings, start_timeout_s=300.0)


def fit_links(lab: Lab, settings: Settings) -> tuple[dict[str, Link], Measurement]:
    """Links within a host and between hosts, by the medians of messages."""
    measurement = run_in_lab(lab, {"links": LINK_SIZES}, replace(settings, again=False), "links")
    links = {}
    for name in ("inner", "outer"):
        times = [(each, median(measurement.times(f"link {format_nbytes(each)}", name))) for each in LINK_SIZES]
        links[name] = Link(*fit_line(times)[:2], 0.0)
    return links, measurement


def executed(lab: Lab, links: Mapping[str, Link], settings: Settings) -> tuple[list[Row], Measurement]:
    """Exchanges by each studied algorithm, by the best for every size, and by the libraries themselves."""
    sizes = parameter_nbytes()
    outer, fabric = links["outer"], Hosts(links["inner"], links["outer"], RANKS_PER_HOST)
    usable = [each.name for each in algorithms("broadcast") if each.restriction(NUM_RANKS) is None]
    seconds = {
        nbytes: {name: simulated_s(name, outer, fabric, NUM_RANKS, nbytes) for name in usable} for nbytes in set(sizes)
    }
    names = {name: [name] * len(sizes) for name in STUDIED}
    names[TUNED] = [min(usable, key=seconds[nbytes].__getitem__) for nbytes in sizes]
    ways = {
        way: [["mpi", spelled(*each, outer)] for each in zip(of_sizes, sizes, strict=True)]
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


def simulated(link: Link) -> tuple[list[Row], dict[str, list[float]]]:
    """The best algorithm for every size against one for all, and against MPI and gloo; seconds of an exchange."""
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
    """Seconds of an exchange by name of the way."""
    totals = Counter[str]()
    able = [each for each in algorithms("broadcast") if each.restriction(num_ranks) is None]
    for nbytes, count in counts.items():
        formulas = {
            each.name: each.seconds(link, num_ranks, nbytes, **parameters_for(each, link, num_ranks, nbytes))
            for each in able
        }
        algorithm_of = {name: name for name in STUDIED} | {
            TUNED: min(formulas, key=formulas.__getitem__),  # as the tuner chooses; what it comes to is simulated
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
    """MPICH 5.0's own choice (its collective selection; scatter and recursive doubling only between powers of two)."""
    if num_ranks < 8 or nbytes <= 12288:
        return "binomial"
    return "scatter_bruck" if nbytes <= 524288 and num_ranks & (num_ranks - 1) == 0 else "scatter_ring"


def draw(lines: Mapping[str, Sequence[float]], rate: float, path: Path) -> None:
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    for name, seconds in lines.items():
        if name == TUNED:  # behind the others, which it follows
            axes.plot(SIMULATED_RANKS, seconds, color="#bbbbbb", linewidth=7, label=name, zorder=1)
        else:
            axes.plot(SIMULATED_RANKS, seconds, "--" if name in RIVALS else "-", marker="o", label=name, markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(SIMULATED_RANKS, [str(each) for each in SIMULATED_RANKS])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel("ranks, each on a host of its own")
    axes.set_ylabel("seconds of an exchange (simulated)")
    axes.set_title(f"VGG-16 by broadcasts, on a link fitted at {rate:g} Gbit/s")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)


def rate(text: str) -> float:
    if float(text) <= 0:
        raise argparse.ArgumentTypeError(f"must be above zero, not {text}")
    return float(text)


def parts(options: Options) -> Found:
    if options.picture is not None:
        check_picture_path(options.picture)
    with Lab(options.rate) as lab:
        links, calibration = fit_links(lab, options.settings)
        for name, link in links.items():
            print(f"{name} link: {link.alpha_s / MICROSECOND:.1f} us, {1e-9 / link.beta_s:.3g} GB/s", file=sys.stderr)
        rows, measurement = executed(lab, links, options.settings)
    yield [], calibration
    yield rows, measurement
    rows, lines = simulated(links["outer"])
    if options.picture is not None:
        draw(lines, options.rate, options.picture)
    yield (rows,)


if __name__ == "__main__":
    run_claim(
        "parameters of VGG-16 exchanged",
        parts,
        option("--rate", type=rate, default=1.0, metavar="GBIT", help="Gbit/s between the hosts (1)"),
        option("--picture", type=Path, metavar="FILE", help="draw what was simulated"),
        needs_lab=lambda options: True,
    )
