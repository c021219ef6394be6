"""Whether `hocket observe findings` names causes that were put in: the rank, the layer, and nothing in controls.

Three ranks make 60 steps of computation and an all_reduce, over hocket or torch over gloo. In each run one rank, chosen
by a seed, computes longer, writes a file and waits for the disk, sleeps, is frozen or is killed; in controls none does.
A run is recorded from outside, and its first finding must be of that rank with that cause. Load of other programs is a
finding of its own and does not count.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from shutil import rmtree

import numpy as np
from claim import Options, PartResults, option, run_claim

from hocket.measure import Row, progress
from hocket.observe import findings, foreign_loads, open_run, record_run

NUM_RANKS, NUM_STEPS, CRITICAL_STEP = 3, 60, 40
WORK_S, LATE_S = 0.002, 0.008
FILE_NBYTES = 8 << 20
TIMEOUT_S = 4.0
LEAST_RECALL = 0.9
PROGRAMS = ("hocket", "gloo")
CONTROL = "control"
# What each cause must be found as: kind and layer.
CAUSES = {
    "slow": ("straggler", "computation"),
    "disk": ("straggler", "I/O"),
    "asleep": ("straggler", "not running"),
    "frozen": ("hang", "not running"),
    "killed": ("death", "not running"),
}


def culprit_of(seed: int) -> int:
    return int(np.random.default_rng(seed).integers(NUM_RANKS))


def compute(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


def write_to_disk(path: Path) -> None:
    with path.open("wb") as file:
        file.write(bytes(FILE_NBYTES))
        file.flush()
        os.fsync(file.fileno())


def act(cause: str, step: int, path: Path) -> None:
    """Do in one step what makes this rank late."""
    if cause == "slow":
        compute(LATE_S)
    elif cause == "asleep":
        time.sleep(LATE_S)
    elif cause == "disk":
        write_to_disk(path)
    elif cause in ("frozen", "killed") and step == CRITICAL_STEP:
        os.kill(os.getpid(), signal.SIGSTOP if cause == "frozen" else signal.SIGKILL)


def reduction_of(program: str) -> tuple[int, Callable[[], object]]:
    """Return the rank and an all_reduce of 4 KB."""
    if program == "hocket":
        import hocket as hk

        comm = hk.init(timeout=TIMEOUT_S)
        return comm.rank, partial(comm.all_reduce, np.ones(1000, np.float32), "max")
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    return dist.get_rank(), partial(dist.all_reduce, torch.ones(1000), dist.ReduceOp.MAX)


def serve_rank(program: str, cause: str, seed: str, path: str) -> None:
    """Run one rank of a recorded program."""
    rank, reduce = reduction_of(program)
    is_culprit = rank == culprit_of(int(seed))
    own = np.random.default_rng((int(seed), rank))
    try:
        for step in range(NUM_STEPS):
            compute(WORK_S * own.uniform(0.8, 1.2))
            if is_culprit:
                act(cause, step, Path(path))
            reduce()
    except RuntimeError:  # another rank died or did not come
        os._exit(3)


def verdict_of(
    program: str, cause: str, seed: int, folder: Path
) -> tuple[tuple[str, str, int | None] | None, str, float]:
    """Return kind, layer and rank of the first finding of a run, its text, and the share of other programs."""
    target = folder / "run"
    launch = [sys.executable, "-m", "hocket.cli", "run", "-n", f"{NUM_RANKS}"]
    command = [*launch, __file__, "--rank", program, cause, f"{seed}", str(folder / "file")]
    recording = record_run(command, target, interval_s=0.1, environment={**os.environ, "OMP_NUM_THREADS": "1"})
    run = open_run(target)
    share = max((load.share for load in foreign_loads(run)), default=0.0)
    found = [each for each in findings(run) if each.kind != "foreign load"]
    rmtree(target)
    assert recording.num_lost == 0
    if not found:
        return None, "", share
    process = found[0].process
    rank = None if process is None else run.processes[process].snapshot.owner.rank
    return (found[0].kind, found[0].layer, rank), found[0].text, share


def parts(options: Options) -> PartResults:
    for program in options.program or PROGRAMS:
        for cause in [*(options.cause or CAUSES), CONTROL]:
            right, shares, wrong = 0, [], []
            with progress(f"{program}, {cause}", "runs") as show:
                for seed in range(options.seeds):
                    verdict, text, share = verdict_of(program, cause, seed, options.folder)
                    expected = None if cause == CONTROL else (*CAUSES[cause], culprit_of(seed))
                    right += verdict == expected
                    shares.append(share)
                    if verdict != expected:
                        wrong.append(f"seed {seed}, rank {culprit_of(seed)}: {text or 'no finding'}")
                    show(seed + 1, options.seeds, f"{right} right")
            for line in wrong:
                print(f"{program}, {cause}: {line}", file=sys.stderr)
            recall = right / options.seeds
            least = 1.0 if cause == CONTROL else LEAST_RECALL
            label = f"{program}, {cause}: {right} of {options.seeds} right, other programs {max(shares):.0%} at most"
            yield ([Row(label, "all right", recall, 1.0, "runs", recall, None, least, recall >= least)],)


if __name__ == "__main__":
    run_claim(
        "findings name the rank and the layer of causes that were put in, and nothing in controls",
        parts,
        option("--program", action="append", choices=PROGRAMS, help="may be repeated (default: both)"),
        option("--cause", action="append", choices=list(CAUSES), help="may be repeated (default: all)"),
        option("--seeds", type=int, default=20, metavar="N", help="runs of each cause (default 20)"),
        unit="runs",
    )
