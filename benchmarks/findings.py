"""Whether `hocket observe findings` names causes that were put in: the rank, the layer, and nothing in controls.

Two ranks make 60 steps of computation and an all_reduce: over hocket or over gloo on this host, or over gloo on two
hosts of the laboratory, which needs root. In each run one rank, chosen by a seed, computes longer, writes a file
and waits for the disk, sleeps, is frozen or is killed; on two hosts it computes longer while the clocks of the hosts
differ by hours, it sends a checkpoint over the link that is shaped, or its host's end of the link is slower than the
other one. In controls there is nothing. A run is recorded from outside, and its first finding must be of that rank or
host with that cause. Load of other programs is a finding of its own and does not count.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from shutil import rmtree

import numpy as np
from claim import Options, PartResults, option, run_claim
from lab import Host, Lab

from hocket.measure import Row, progress
from hocket.observe import RunFinding, findings, foreign_loads, open_run, record_run

NUM_STEPS, CRITICAL_STEP = 60, 40
WORK_S, LATE_S = 0.002, 0.008
FILE_NBYTES = 8 << 20
TIMEOUT_S = 4.0
LEAST_RECALL = 0.9
CONTROL = "control"
STRAGGLER, LINK = ("straggler", "computation"), ("bottleneck", "network")
# What each cause must be found as: kind and layer.
CAUSES = {
    "slow": STRAGGLER,
    "disk": ("straggler", "I/O"),
    "asleep": ("straggler", "not running"),
    "frozen": ("hang", "not running"),
    "killed": ("death", "not running"),
}
CAUSES_OF_HOSTS = {"clock": STRAGGLER, "checkpoint": LINK, "link": LINK}
HOSTS = "hosts"
PROGRAMS = {"hocket": CAUSES, "gloo": CAUSES, HOSTS: CAUSES_OF_HOSTS}
NUM_RANKS = 2
RATES_GBIT_S = {"checkpoint": 0.1, "link": 2.0}
SLOW_GBIT_S, FAST_GBIT_S = 0.1, 10.0
AHEAD_S = 10_000
NUM_FLOATS, NUM_FLOATS_OF_LINKS = 1000, 125_000
OBSERVER_PORT, SINK_PORT = 29777, 5001


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


def send_checkpoint(address: str) -> None:
    """Send to a file server until this process ends."""
    with suppress(OSError), socket.create_connection((address, SINK_PORT)) as end:
        while True:
            end.sendall(bytes(1 << 16))


def act(cause: str, step: int, place: str) -> None:
    """Do in one step what makes this rank late; `place` is a file, or the address of the file server."""
    if cause in ("slow", "clock"):
        compute(LATE_S)
    elif cause == "asleep":
        time.sleep(LATE_S)
    elif cause == "disk":
        write_to_disk(Path(place))
    elif cause == "checkpoint" and step == 0:
        threading.Thread(target=send_checkpoint, args=(place,), daemon=True).start()
    elif cause in ("frozen", "killed") and step == CRITICAL_STEP:
        os.kill(os.getpid(), signal.SIGSTOP if cause == "frozen" else signal.SIGKILL)


def reduction_of(program: str, num_floats: int) -> tuple[int, Callable[[], object]]:
    """Return the rank and an all_reduce."""
    if program == "hocket":
        import hocket as hk

        comm = hk.init(timeout=TIMEOUT_S)
        return comm.rank, partial(comm.all_reduce, np.ones(num_floats, np.float32), "max")
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=30 if program == HOSTS else TIMEOUT_S))
    return dist.get_rank(), partial(dist.all_reduce, torch.ones(num_floats), dist.ReduceOp.MAX)


def serve_rank(program: str, cause: str, seed: str, place: str) -> None:
    """Run one rank of a recorded program."""
    rank, reduce = reduction_of(program, NUM_FLOATS_OF_LINKS if cause in RATES_GBIT_S else NUM_FLOATS)
    is_culprit = rank == culprit_of(int(seed))
    own = np.random.default_rng((int(seed), rank))
    try:
        for step in range(NUM_STEPS):
            compute(WORK_S * own.uniform(0.8, 1.2))
            if is_culprit:
                act(cause, step, place)
            reduce()
    except RuntimeError:  # another rank died or did not come
        os._exit(3)
    if program != "hocket":  # torch 2.13 may abort at exit, or wait for a thread of its own
        os._exit(0)


def record_here(program: str, cause: str, seed: int, folder: Path, target: Path) -> None:
    launch = [sys.executable, "-m", "hocket.cli", "run", "-n", f"{NUM_RANKS}"]
    command = [*launch, __file__, "--rank", program, cause, f"{seed}", str(folder / "file")]
    recording = record_run(command, target, interval_s=0.1, environment={**os.environ, "OMP_NUM_THREADS": "1"})
    assert recording.num_lost == 0


def record_hosts(program: str, cause: str, seed: int, target: Path) -> None:
    """Run one rank on each of two hosts, recorded by agents that join."""
    culprit = culprit_of(seed)
    with ExitStack() as started:
        lab = started.enter_context(Lab(RATES_GBIT_S.get(cause, FAST_GBIT_S)))
        first = lab.hosts[0]
        if cause == "link":
            lab.hosts[culprit].set_rate(SLOW_GBIT_S)
        sink = lab.hosts[1 - culprit]
        if cause == "checkpoint":
            serve_files(sink, started)
        rank = [sys.executable, __file__, "--rank", program, cause, f"{seed}", sink.address]
        agents = [
            subprocess.Popen(
                agent_command(first, host, cause, target, rank), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            for host in lab.hosts
        ]
        outputs = [agent.communicate(timeout=120)[0].decode(errors="replace") for agent in agents]
        if [agent.returncode for agent in agents] != [0, 0]:
            raise RuntimeError("".join(outputs))


def serve_files(host: Host, started: ExitStack) -> None:
    program = f"import socket; print(1, flush=True)\nend, _ = socket.create_server(('', {SINK_PORT})).accept()\n"
    command = host.command([sys.executable, "-c", program + "while end.recv(1 << 20): pass"])
    server = started.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    started.callback(server.kill)
    assert server.stdout is not None
    server.stdout.readline()


def agent_command(first: Host, host: Host, cause: str, target: Path, rank: list[str]) -> list[str]:
    variables = ("GLOO_SOCKET_IFNAME=eth0", "OMP_NUM_THREADS=1", "WORLD_SIZE=2", "MASTER_PORT=29500",
                 f"MASTER_ADDR={first.address}", f"RANK={host.number}")  # fmt: skip
    clock = ["unshare", "--time", "--fork", "--monotonic", f"{AHEAD_S}"] if cause == "clock" and host.number else []
    here = f"{first.address}:{OBSERVER_PORT}"
    place = ["--join", here] if host.number else ["--listen", here, "--output", str(target)]
    observe = [sys.executable, "-m", "hocket.cli", "observe", "run", "--interval", "0.1", *place, "--"]
    return host.command([*clock, "env", *variables, *observe, *rank])


def verdict_of(
    program: str, cause: str, seed: int, folder: Path
) -> tuple[tuple[str, str, int | None] | None, str, float]:
    """Return kind, layer and culprit of the first finding of a run, its text, and the share of other programs."""
    target = folder / "run"
    if program == HOSTS:
        record_hosts(program, cause, seed, target)
    else:
        record_here(program, cause, seed, folder, target)
    run = open_run(target)
    share = max((load.share for load in foreign_loads(run)), default=0.0)
    found = [each for each in findings(run) if each.kind != "foreign load"]
    ranks = [process.snapshot.owner.rank for process in run.processes]
    rmtree(target)
    if not found:
        return None, "", share
    return (found[0].kind, found[0].layer, culprit_in(found[0], ranks)), found[0].text, share


def culprit_in(found: RunFinding, ranks: list[int | None]) -> int | None:
    """The rank that is named; of a link whose bytes are all messages of ranks, the number of the host."""
    if found.process is not None:
        return ranks[found.process]
    host = str(found.evidence.get("host", ""))
    return int(host[-1]) if host.startswith("lab") else None


def runs_of(program: str, causes: list[str], options: Options) -> Iterator[Row]:
    for cause in [*causes, CONTROL]:
        right, shares, wrong = 0, [], []
        with progress(f"{program}, {cause}", "runs") as show:
            for seed in range(options.seeds):
                verdict, text, share = verdict_of(program, cause, seed, options.folder)
                culprit = culprit_of(seed)
                expected = None if cause == CONTROL else (*PROGRAMS[program][cause], culprit)
                right += verdict == expected
                shares.append(share)
                if verdict != expected:
                    wrong.append(f"seed {seed}, rank {culprit}: {text or 'no finding'}")
                show(seed + 1, options.seeds, f"{right} right")
        for line in wrong:
            print(f"{program}, {cause}: {line}", file=sys.stderr)
        recall = right / options.seeds
        least = 1.0 if cause == CONTROL else LEAST_RECALL
        label = f"{program}, {cause}: {right} of {options.seeds} right, other programs {max(shares):.0%} at most"
        yield Row(label, "all right", recall, 1.0, "runs", recall, None, least, recall >= least)


def parts(options: Options) -> PartResults:
    for program in options.program or PROGRAMS:
        known = PROGRAMS[program]
        for row in runs_of(program, [cause for cause in options.cause or known if cause in known], options):
            yield ([row],)


if __name__ == "__main__":
    run_claim(
        "findings name the rank and the layer of causes that were put in, and nothing in controls",
        parts,
        option("--program", action="append", choices=list(PROGRAMS), help="may be repeated (default: all)"),
        option("--cause", action="append", choices=[*CAUSES, *CAUSES_OF_HOSTS], help="may be repeated (default: all)"),
        option("--seeds", type=int, default=20, metavar="N", help="runs of each cause (default 20)"),
        unit="runs",
    )
