"""Random programs over all backends that can be tested here; each rank waits in its own order."""

from __future__ import annotations

import importlib
import os
import random
import subprocess
import sys

import pytest

import hocket as hk
from hocket.tune import learn, trial
from hocket.tune.learn import Learner

from ..backends import ALL
from ..load import scaled
from ..tier import full, is_full
from .programs import Runner, make_communicators, random_program

NUM_SEEDS = 4000 if os.environ.get("HOCKET_SOAK") else 300 if is_full() else 60
LEAST_TO_LEARN = 200  # with fewer programs the learner does not try anything

# Repeatedly stops one of the processes for a moment, until it is told to end.
PAUSE = """
import os, random, select, signal, sys, time
rng, pids = random.Random(0), [int(pid) for pid in sys.argv[1:]]
while not select.select([sys.stdin], [], [], rng.random() * 0.3)[0]:
    pid = rng.choice(pids)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(rng.random() * 0.15)
    os.kill(pid, signal.SIGCONT)
"""


def _run(comm: hk.Communicator, seeds: range, progress: str, pauses: bool, learns: bool) -> tuple[int, set[str]]:
    comm.finalize()
    importlib.import_module("torch").set_num_threads(1)
    comm = hk.init(backends=ALL, timeout=scaled(60), progress=progress)
    communicators, members = make_communicators(comm)
    learners = [_make_learner(each) for each in communicators if each is not None and learns]
    runner = Runner(communicators, members, comm.rank)
    pauser = _start_pauser(comm) if pauses else None
    try:
        for seed in seeds:
            runner.run(random_program(seed, list(comm.backends), members, random.Random(seed).randint(3, 25)), seed)
        comm.barrier()
        assert not learners or any(learner.lessons for learner in learners)
    finally:
        if pauser is not None:
            pauser.communicate("over")
    return len(seeds), {record.backend for each in communicators if each for record in each.records()}


def _make_learner(comm: hk.Communicator) -> Learner:
    """A learner with short windows that tries everything, so that choices change often."""
    learn._MIN_OPERATIONS, learn._LEAST_SHARE, learn._LONGEST_PAUSE, trial._MIN_TIMES = 1, 1e-9, 1, 1
    return Learner(comm, window=16)


def _start_pauser(comm: hk.Communicator) -> subprocess.Popen[str] | None:
    import numpy as np

    pids = np.empty(comm.size, np.int64)
    comm.all_gather(pids, np.array([os.getpid()]))
    if comm.rank != 0:
        return None
    return subprocess.Popen([sys.executable, "-c", PAUSE, *map(str, pids)], stdin=subprocess.PIPE, text=True)


@pytest.mark.own_ranks  # a learner sets constants of the tuner
@pytest.mark.timeout(3600 if os.environ.get("HOCKET_SOAK") else 300)
@pytest.mark.parametrize(
    ("num_ranks", "progress", "share", "pauses", "learns"),
    [
        (2, "caller", 0.5, False, False),
        (2, "thread", 0.2, False, False),
        (3, "caller", 0.2, False, False),
        (2, "caller", 0.1, True, False),
        (2, "caller", 0.5, False, True),
        pytest.param(3, "thread", 0.5, False, True, marks=full),
    ],
    ids=["2 ranks", "progress thread", "3 ranks and groups", "stopped now and then", "learning", "3 ranks learning"],
)
def test_random_programs(num_ranks: int, progress: str, share: float, pauses: bool, learns: bool) -> None:
    count = max(round(NUM_SEEDS * share), LEAST_TO_LEARN if learns else 1)
    seeds = range(num_ranks * 10**6, num_ranks * 10**6 + count)
    timeout = 3500 if os.environ.get("HOCKET_SOAK") else 280
    for done, used in hk.spawn(_run, num_ranks, seeds, progress, pauses, learns, timeout=timeout):
        assert done == len(seeds) and used == set(ALL)
