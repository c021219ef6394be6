"""Simulated steps of three published models between 1,024 virtual ranks, on several networks; nothing is measured.

Virtual ranks (hocket.simulate) issue every operation of a step. An operation takes the time of the fastest algorithm
that is known for it; each rank computes at 100 TFLOP/s. The output also shows a lower bound of all algorithms: the time
of the computation, or of the bytes that a rank must send over its connection (Patarasuk and Yuan 2009 for reductions).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hocket.comm.policy import format_seconds, total_nbytes
from hocket.measure import progress
from hocket.measure.pictures import check_picture_path, load_pyplot
from hocket.session.published_steps import dlrm_criteo, gpt_345m, moe_350m
from hocket.session.simulated_step import SimulatedStep, simulate_step
from hocket.sim import Hosts, Link, Uniform
from hocket.trace.traffic import Traffic

FLOPS_PER_S = 100e12
MODELS = (gpt_345m, moe_350m, dlrm_criteo)
FABRICS = {
    "10 Gbit/s, 30 us": Uniform(Link.of(30, 1.25)),
    "100 Gbit/s, 2 us": Uniform(Link.of(2, 12.5)),
    "400 Gbit/s, 2 us": Uniform(Link.of(2, 50)),
    "hosts of 8, 200 GB/s within, 400 Gbit/s between": Hosts(Link.of(1, 200), Link.of(2, 50), 8),
}


def least_seconds(traffic: Traffic, fabric: Uniform | Hosts) -> float:
    """Return a lower bound of a step: its computation, or the time of its bytes on a connection without latency."""
    num_ranks = traffic.num_ranks
    per_host, link = (fabric.ranks_per_host, fabric.outer) if isinstance(fabric, Hosts) else (1, fabric.link)
    num_hosts = num_ranks // per_host
    elsewhere = (num_hosts - 1) / num_hosts
    sent = 0.0  # by all ranks of a host, to other hosts
    for step in traffic.steps:
        array = total_nbytes(step.kind, step.nbytes, num_ranks)
        ranks = per_host if step.kind == "all_to_all" else 1
        sent += (2 if step.kind == "all_reduce" else 1) * elsewhere * array * ranks
    return max(sum(step.compute_s for step in traffic.steps), sent * link.beta_s)


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the steps as bars of computation and of waiting for communication."""
    pyplot = load_pyplot()
    models = list(dict.fromkeys(row["model"] for row in rows))
    figure, every_axes = pyplot.subplots(1, len(models), figsize=(12, 3.6), layout="constrained")
    for axes, model in zip(every_axes, models, strict=True):
        own = [row for row in rows if row["model"] == model]
        compute = [1e3 * row["compute_s"] for row in own]
        waits = [1e3 * max(0.0, row["seconds"] - row["compute_s"]) for row in own]
        names = [row["fabric"].replace(", ", ",\n") for row in own]
        axes.barh(names, compute, color="#4477aa", label="computation")
        axes.barh(names, waits, left=compute, color="#ee6677", label="waiting for communication")
        axes.set(title=f"{model}, {own[0]['num_ranks']} ranks", xlabel="ms a step, simulated")
        axes.invert_yaxis()
        if axes is not every_axes[0]:
            axes.set_yticks([])
    every_axes[0].legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=110)


def as_row(traffic: Traffic, name: str, result: SimulatedStep) -> dict[str, Any]:
    return {
        "model": traffic.name,
        "fabric": name,
        "num_ranks": traffic.num_ranks,
        "seconds": result.seconds,
        "compute_s": result.compute_s,
        "least_s": least_seconds(traffic, FABRICS[name]),
        "algorithms": {f"{each.kind} of {each.nbytes} bytes": each.algorithm for each in result.operations},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--num-ranks", type=int, default=1024, help="number of virtual ranks (default 1024)")
    parser.add_argument("--draw", type=Path, metavar="PICTURE", help="draw the steps, for example into models.png")
    arguments = parser.parse_args()
    if arguments.draw is not None:
        check_picture_path(arguments.draw)
    rows = []
    total = len(MODELS) * len(FABRICS)
    with progress("simulate", "steps") as show:
        for model in MODELS:
            traffic = model(arguments.num_ranks, flops_per_s=FLOPS_PER_S)
            for name, fabric in FABRICS.items():
                show(len(rows), total, f"{traffic.name}, {name}")
                rows.append(as_row(traffic, name, simulate_step(traffic, fabric)))
        show(total, total, "")
    for row in rows:
        print(
            f"{row['model']:12} {row['fabric']:50} {format_seconds(row['seconds']):>9} a step, "
            f"{format_seconds(row['compute_s'])} of it computation; at least {format_seconds(row['least_s'])}"
        )
    if arguments.draw is not None:
        draw(rows, arguments.draw)
    print(json.dumps({"claim": "steps between virtual ranks", "simulated": rows}))
    return 0 if all(row["seconds"] >= row["least_s"] * (1 - 1e-9) for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
