"""Words that a rank sends or receives in each step of sparse sums, by hocket's algorithm and the published ones.

Between virtual ranks (hocket.simulate), whose messages are counted, on streams of gradients: such as stay where they
are, and such as move. The most that any rank sends or receives is shown in units of k, beside 4k, which hocket keeps in
every step, and 6k, which Ok-Topk (arXiv 2201.07598) has on average. Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hocket as hk
from hocket.collectives.sparse.sums import ALGORITHMS
from hocket.measure.pictures import COLORS, check_picture_path, load_pyplot

WORD = 4
STREAMS = ("still", "moving", "narrow")
WORDS = hk.ElementCodec("words")


def gradient(stream: str, rank: int, step: int, size: int) -> np.ndarray:
    """Return gradients with heavy tails: equally spread, in a part that moves on, or in a narrow one."""
    own = np.random.default_rng((rank, step))
    x = (own.standard_normal(size) ** 3).astype(np.float32)
    if stream == "moving":
        begin = step * size // 50 % (size - size // 20)
        x[: max(begin, 0)] *= 1e-3
        x[begin + size // 20 :] *= 1e-3
    elif stream == "narrow":
        x[size // 50 :] *= 1e-3
    return x


def words_of_steps(
    comm: hk.Communicator, algorithm: str, stream: str, size: int, k: int, num_steps: int
) -> list[tuple[float, float]]:
    """Return the words that this rank sends and receives in each step, in units of k."""
    virtual = comm._fabric.virtual
    assert virtual is not None
    state, found = hk.ResidualState(), []
    for step in range(num_steps):
        x = gradient(stream, comm.rank, step, size)
        comm.barrier()
        before = virtual.traffic(comm.rank)
        comm.barrier()
        comm.sparse_all_reduce(x, k, state=state, codec=WORDS, algorithm=algorithm, dense="never")
        comm.barrier()
        after = virtual.traffic(comm.rank)
        found.append(((after[0] - before[0]) / WORD / k, (after[1] - before[1]) / WORD / k))
    return found


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the most words of each step, a panel for each stream."""
    streams = list(dict.fromkeys(row["stream"] for row in rows))
    figure, panels = load_pyplot().subplots(1, len(streams), figsize=(4.2 * len(streams), 3.6), layout="constrained",
                                            sharey=True, squeeze=False)  # fmt: skip
    for axes, stream in zip(panels[0], streams, strict=True):
        for color, row in zip(COLORS, (each for each in rows if each["stream"] == stream), strict=False):
            axes.plot(range(len(row["most"])), row["most"], color=color, label=row["algorithm"],
                      linewidth=2.5 if row["algorithm"] == "exact" else 1.2)  # fmt: skip
        for bound in (4, 6):
            axes.axhline(bound, color="grey", linestyle="--", linewidth=0.8)
            axes.annotate(f"{bound}k", (0, bound), (2, 2), textcoords="offset points", size=8, color="grey")
        axes.set_yscale("log")
        axes.set_title(f"gradients that are {stream}", size=10)
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel(f"most words of a rank / k, {rows[0]['num_ranks']} virtual ranks")
    panels[0][-1].legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--size", type=int, default=100_000, help="elements of the gradient")
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--stream", action="append", choices=STREAMS, help="may be repeated")
    parser.add_argument("--algorithm", action="append", choices=ALGORITHMS, help="may be repeated")
    parser.add_argument("--picture", type=Path, help="where to draw")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.picture is not None:
        check_picture_path(options.picture)
    k, rows = round(options.density * options.size), []
    for stream in options.stream or STREAMS:
        for algorithm in options.algorithm or ALGORITHMS:
            of_ranks = hk.simulate(
                words_of_steps, options.ranks, algorithm, stream, options.size, k, options.steps,
                fabric=hk.sim.Link.of(5, 1.25),
            ).results  # fmt: skip
            most = np.max(np.array(of_ranks), axis=(0, 2))
            row = {"stream": stream, "algorithm": algorithm, "num_ranks": options.ranks, "most": most.tolist()}
            rows.append(row)
            if not options.json:
                print(
                    f"{stream:8} {algorithm:12} largest step {most.max():8.2f} k, median {np.median(most):8.2f} k",
                    flush=True,
                )
    if options.json:
        print(json.dumps(rows))
    if options.picture is not None:
        draw(rows, options.picture)


if __name__ == "__main__":
    main()
