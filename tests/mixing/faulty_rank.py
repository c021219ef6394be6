"""One rank of a random program in which ranks die, leave, hang or abort; the survivors run another program.

faulty_rank.py PLAN, a JSON object: seed, backends, steps, faults (by rank: how and at which step)
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from programs import Runner, Step, make_communicators, random_program

import hocket as hk

PLAN = json.loads(sys.argv[1])
FAULTS = {int(rank): fault for rank, fault in PLAN["faults"].items()}
FAILURES = (hk.PeerFailure, hk.Aborted, hk.CommTimeout)
STOPPED = [rank for rank, (how, _) in FAULTS.items() if how == "stop"]


class FaultyRunner(Runner):
    """Commits the fault of the plan at the planned step."""

    def _issue(self, number: int, step: Step, *arguments: Any) -> hk.Work | None:
        self.strike(number)
        return super()._issue(number, step, *arguments)

    def strike(self, number: int | None = None) -> None:
        how, at = FAULTS.get(self.rank, (None, None))
        if how is None or (number is not None and number < at):
            return
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)  # until the launcher ends the job
        if how == "raise":
            raise ValueError("this rank fails on purpose")
        if how == "leave":
            world = self.communicators[0]
            assert world is not None
            world.finalize()
            sys.exit(0)
        if number is not None:  # "abort": it continues with the others
            give_up(self)
            raise hk.Aborted("aborted by its own program")


def give_up(runner: Runner) -> None:
    """Abort, so that no rank waits for this one in a program that it does not continue."""
    for comm in runner.communicators:
        if comm is not None:
            comm.abort(f"rank {runner.rank} does not continue")


def go_through() -> tuple[int, list[int]]:
    """Return this rank of the world, and the surviving ranks."""
    seed = PLAN["seed"]
    world = hk.init(backends=PLAN["backends"], timeout=PLAN["timeout"], progress=PLAN["progress"])
    own = world.rank
    runner = FaultyRunner([world], [], own)
    try:
        runner.communicators, runner.members = make_communicators(world)  # others may die meanwhile
        runner.run(random_program(seed, list(world.backends), runner.members, PLAN["steps"]), seed)
    except FAILURES:
        give_up(runner)
    runner.strike()  # another rank may have run the step of the fault, or a failure came before it
    for _ in range(world.size):
        try:
            rest = world.shrink(exclude=STOPPED, timeout=30)
            rest.barrier()
            break
        except FAILURES:
            continue
    left = [rank for rank in range(world.size) if FAULTS.get(rank, ("abort",))[0] == "abort"]
    assert rest.all_gather_object(own) == left
    communicators, members = make_communicators(rest)
    second = Runner(communicators, members, rest.rank)
    for number in range(seed, seed + 3):
        num_steps = random.Random(number).randint(3, 20)
        second.run(random_program(number, list(rest.backends), members, num_steps), number)
    rest.barrier()
    rest.finalize()
    return own, left


def main() -> None:
    num_descriptors = len(os.listdir("/proc/self/fd"))
    own, left = go_through()
    gc.collect()
    if PLAN["backends"] == ["shm"]:  # libraries keep theirs
        links = list(map(os.readlink, filter(os.path.islink, Path("/proc/self/fd").iterdir())))
        assert len(os.listdir("/proc/self/fd")) <= num_descriptors + 1, (
            links
        )  # the event descriptor of the process stays
    os.write(1, f"{own} done\n".encode())
    Path(f"done-{own}").touch()
    if STOPPED and own == left[0]:
        deadline = time.monotonic() + 60
        while not all(Path(f"done-{rank}").exists() for rank in left) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getppid(), signal.SIGTERM)  # nothing else ends the stopped rank


if __name__ == "__main__":
    main()
