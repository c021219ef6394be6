"""The selection of the elements of largest magnitude, threshold included, against torch.topk.

2^24 floats of several distributions, of which 0.1, 1 and 10 % are selected. torch.topk gets the magnitudes ready made,
returns them unsorted, and breaks ties as it happens; ours reads the floats, and takes of equal ones the first. The
copies for AVX2 and without vector instructions run beside ours, each in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from claim import Options, PartResults, measure_jobs, option, run_claim
from libraries import job

from hocket import _native
from hocket.measure import Comparison, Contender, Job, pin, serve
from hocket.measure.loops import looped

SIZE = 1 << 24
KINDS = ("normal", "heavy tails", "clustered", "narrow", "three values", "ascending")
DENSITIES = (0.001, 0.01, 0.1)
TORCH = "torch.topk"
OURS, AVX2, SCALAR = "avx512", "avx2", "scalar"
LEAST_THRESHOLD, LEAST_TOGETHER = 25.0, 15.0
TARGET_DENSITY = 0.01


def floats(kind: str) -> np.ndarray:
    """Return floats of a distribution: those of gradients, and those that mislead a sample or have ties."""
    random = np.random.default_rng(0)
    if kind == "three values":
        return random.integers(-1, 2, SIZE).astype(np.float32)
    if kind == "ascending":
        return np.arange(SIZE, dtype=np.float32)
    x = random.standard_normal(SIZE, np.float32)
    if kind == "heavy tails":
        return x**3 * np.exp(random.standard_normal(SIZE, np.float32))
    if kind == "clustered":
        x[SIZE // 50 :] *= np.float32(1e-4)
    elif kind == "narrow":
        x = 1 + np.float32(1e-5) * x
    return x


def case_name(kind: str, density: float) -> str:
    return f"{kind}, {density:.1%}"


def serve_rank(isa: str, kinds: str) -> None:
    """Run one process: the selection by an instruction set, and torch beside the best one."""
    torch.set_num_threads(1)
    pin(0)
    contenders = []
    for kind in kinds.split(","):
        x = floats(kind)
        magnitudes = torch.from_numpy(np.abs(x)) if isa == OURS else None
        for density in DENSITIES:
            k = round(density * SIZE)
            contenders.append(Contender(case_name(kind, density), isa, looped(partial(_native.select_largest, x, k))))
            if magnitudes is not None:
                theirs = looped(partial(torch.topk, magnitudes, k, sorted=False))
                contenders.append(Contender(case_name(kind, density), TORCH, theirs))
    serve(contenders, 0, lambda: None)


def job_of(isa: str, kinds: list[str]) -> Job:
    """Return the process of an instruction set."""
    (process,) = (made := job(isa, __file__, [",".join(kinds)], 1)).processes
    return replace(made, processes=(replace(process, env={**process.env, "HOCKET_ISA": isa}),))


def comparisons(kinds: list[str]) -> Iterator[Comparison]:
    for kind in kinds:
        for density in DENSITIES:
            case = case_name(kind, density)
            least = LEAST_THRESHOLD if density <= TARGET_DENSITY else LEAST_TOGETHER
            label = f"{case}: threshold and selection, AVX-512"
            yield Comparison(case, OURS, (TORCH,), least, label=label, unit="ms", needs_cores=False)
            for isa in (AVX2, SCALAR):
                label = f"{case}: threshold and selection, {isa}"
                yield Comparison(case, isa, (TORCH,), label=label, unit="ms", needs_cores=False)


def parts(options: Options) -> PartResults:
    kinds = options.kind or list(KINDS)
    jobs = [job_of(isa, kinds) for isa in (OURS, AVX2, SCALAR)]
    yield comparisons(kinds), measure_jobs(jobs, "selection", options.settings)


if __name__ == "__main__":
    run_claim(
        "the largest of 2^24 floats are selected 25 times as fast as by torch.topk",
        parts,
        option("--kind", action="append", choices=KINDS, help="may be repeated"),
        unit="ms",
    )
