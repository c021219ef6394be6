"""How long a sweep over all ports of an InfiniBand fabric takes, and what that means for one of 20,000 nodes.

The fabric is simulated by ibsim: a fat tree of two levels, whose discovery and sweeps are timed. The simulator works in
the same process, so what is measured is the time of the processor for a question and its answer; on a real fabric the
time that packets travel comes to it, divided by the number that is under way. Times of 20,000 nodes are modelled: so
many questions, each as long as here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from claim import Options, PartResults, option, run_claim

from hocket.measure import Row

DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""Whoever is killed would leave a simulator that takes a whole core."""
PRELOAD = "/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so"
NUM_SPINES, NUM_LEAVES, HOSTS_OF_LEAF = 18, 24, 18
NODES, LINKS_OF_NODE = 20_000, 3
TRAVEL_S, MOST_UNDER_WAY = 20e-6, 64
MOST_S = 1.0
NUM_SWEEPS = 9


def topology() -> str:
    """Every leaf has a link to every spine: as many up as down."""
    blocks = []
    for leaf in range(NUM_LEAVES):
        ports = [f'[{host + 1}] "host{leaf}-{host}"[1]' for host in range(HOSTS_OF_LEAF)]
        ports += [f'[{HOSTS_OF_LEAF + spine + 1}] "spine{spine}"[{leaf + 1}]' for spine in range(NUM_SPINES)]
        blocks.append([f'Switch 36 "leaf{leaf}"', *ports])
    for spine in range(NUM_SPINES):
        ports = [f'[{leaf + 1}] "leaf{leaf}"[{HOSTS_OF_LEAF + spine + 1}]' for leaf in range(NUM_LEAVES)]
        blocks.append([f'Switch 36 "spine{spine}"', *ports])
    for leaf in range(NUM_LEAVES):
        for host in range(HOSTS_OF_LEAF):
            blocks.append([f'Hca 1 "host{leaf}-{host}"', f'[1] "leaf{leaf}"[{host + 1}]'])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


@contextmanager
def simulated(folder: Path) -> Iterator[dict[str, str]]:
    """A fabric whose subnet manager has given addresses; yield the environment of its programs."""
    (folder / "net").write_text(topology())
    environment = {**os.environ, "IBSIM_SOCKNAME": f"sweep-{os.getpid()}", "SIM_HOST": "host0-0"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    simulator = subprocess.Popen(
        [*DIES_WITH_US, "ibsim", "-s", str(folder / "net")], stdin=subprocess.PIPE, env=environment, **quiet
    )
    try:
        time.sleep(2)
        inside = {**environment, "LD_PRELOAD": PRELOAD}
        subprocess.run(["opensm", "-o", "-f", str(folder / "log")], env=inside, check=True, timeout=300, **quiet)
        yield inside
    finally:
        simulator.kill()
        simulator.wait(10)


def sweep_in_process() -> None:
    """Time sweeps, and print what they took."""
    from hocket.observe import FabricCounters, discover_fabric

    begin_s = time.perf_counter()
    fabric = discover_fabric()
    found = {"discovery": time.perf_counter() - begin_s, "nodes": len(fabric.nodes)}
    # One end of a link counts what goes in both directions.
    ends = [key for key, port in fabric.ports.items() if port.peer and key < port.peer]
    for name, ports, with_errors in (("links", ends, False), ("ports", None, True)):
        with FabricCounters(fabric, ports, most_under_way=MOST_UNDER_WAY) as counters:
            counters.sweep()
            sweeps = [counters.sweep(with_errors=with_errors) for _ in range(NUM_SWEEPS)]
            assert all(len(each.counters) == counters.num_ports for each in sweeps)
            found[name] = counters.num_ports
            found[f"{name}_s"] = median(each.seconds for each in sweeps)
    print(json.dumps(found))


def parts(options: Options) -> PartResults:
    with simulated(options.folder) as environment:
        command = [sys.executable, __file__, "--sweep"]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=300)
    found = json.loads(done.stdout)
    print(f"{found['nodes']} nodes simulated, discovered in {found['discovery'] * 1e3:.0f} ms", file=sys.stderr)
    for name, text, num_questions in (("links", "data of each link", 1), ("ports", "data and errors of each end", 4)):
        seconds = found[f"{name}_s"]
        shown_ms, case = seconds * 1e3, f"{found[name]} {name}, simulated: {text}"
        yield ([Row(case, "nothing", shown_ms, shown_ms, "ms", 1.0, None, None, None)],)
        per_question_s = seconds / found[name] / (1 if num_questions == 1 else 2)
        count = options.nodes * LINKS_OF_NODE * num_questions
        modelled_s = count * max(per_question_s, TRAVEL_S / MOST_UNDER_WAY)
        label = f"MODELLED: {options.nodes} nodes, {text}, {count:,} questions of {per_question_s * 1e6:.1f} us"
        holds = modelled_s <= MOST_S if num_questions == 1 else None
        yield ([Row(label, "limit", modelled_s * 1e3, MOST_S * 1e3, "ms", MOST_S / modelled_s, None,
                    1.0 if holds is not None else None, holds)],)  # fmt: skip


if __name__ == "__main__" and sys.argv[1:2] == ["--sweep"]:
    sweep_in_process()
elif __name__ == "__main__":
    run_claim(
        "the data counters of all links of 20,000 nodes are read in less than a second, modelled from simulated ports",
        parts,
        option("--nodes", type=int, default=NODES, metavar="N", help="nodes of the modelled fat tree (default 20000)"),
        unit="ms",
    )
