"""A rank of a test job, without any communication library: `job.py NAME BEHAVIOUR`."""

import os
import subprocess
import sys
import time

from hocket.measure import Contender, serve

name, behaviour = sys.argv[1:]
rank = int(os.environ["RANK"])
now = 0.0


def advance(iterations: int) -> None:
    """Takes (rank + 1) ms an iteration, by this process's own clock."""
    global now
    now += 1e-3 * (rank + 1) * iterations


def raising(_iterations: int) -> None:
    raise ValueError("a contender that raises")


def dying(_iterations: int) -> None:
    print("last words of rank", rank, file=sys.stderr, flush=True)
    os._exit(7)


def hanging(_iterations: int) -> None:
    time.sleep(600)


runs = {"ok": advance, "raise": raising, "die": dying, "hang": hanging, "late": advance, "orphan": hanging}
if behaviour == "never":
    sys.exit("refuses to start")
if behaviour == "mutter":  # letter by letter, as a traceback is written under PYTHONUNBUFFERED
    for letter in f"words of rank {rank}\n":
        os.write(2, letter.encode())
        time.sleep(0.001)
    sys.exit(1)
if behaviour == "late":
    time.sleep(600)
if behaviour == "orphan":  # a grandchild in a session of its own must not outlive the job either
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
serve([Contender("case", name, runs[behaviour])], rank, lambda: None, clock=lambda: now)
