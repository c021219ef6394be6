"""`hocket simulate`: predict the time of a training step on links and numbers of ranks that you do not have."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli._links import (
    Bandwidth,
    HostBandwidth,
    HostLatency,
    Latency,
    RanksPerHost,
    Reduce,
    describe_fabric,
    read_fabric,
)
from hocket.cli._output import AsJson
from hocket.cli._verbs import argument
from hocket.comm.policy import format_nbytes, format_seconds
from hocket.errors import InvalidArgument

if TYPE_CHECKING:
    from hocket.session.simulated_step import SimulatedStep
    from hocket.trace.traffic import Traffic

_MODELS = ("gpt-345m", "moe-350m", "dlrm-criteo")
_HELP = f"""Predict the time of a training step between many ranks, on given links.

The step is that of a published model ({", ".join(_MODELS)}), or a recorded one (examples/gpt.py --traffic FILE), which
can be converted to another number of ranks: the arrays of each rank keep their lengths. Virtual ranks issue its
operations on a virtual clock; each operation takes the time of its fastest known algorithm. Nothing is measured."""
_EXAMPLES = """\b
Examples:
  hocket simulate gpt-345m -n 1024 --latency 2 --bandwidth 12.5
  hocket simulate moe-350m -n 1024 --ranks-per-host 8 --bandwidth 50 --host-latency 5 --host-bandwidth 50 --json
  hocket simulate step.json -n 64 --latency 30 --bandwidth 0.125"""


def register(application: typer.Typer) -> None:
    """Add the verb to the command."""
    application.command("simulate", help=_HELP, epilog=_EXAMPLES)(simulate)


def simulate(
    step: Annotated[str, argument(metavar="MODEL|FILE", help="The step to simulate.")],
    num_ranks: Annotated[
        int | None,
        typer.Option("-n", "--num-ranks", metavar="N", help="Number of ranks. Default: as in the file, or 8."),
    ] = None,
    tflops: Annotated[float, typer.Option(metavar="TFLOP/S", help="Speed of a rank, for a published model.")] = 100.0,
    latency: Latency = 2.0,
    bandwidth: Bandwidth = 12.5,
    reduce: Reduce = float("inf"),
    ranks_per_host: RanksPerHost = None,
    host_latency: HostLatency = 30.0,
    host_bandwidth: HostBandwidth = 1.25,
    as_json: AsJson = False,
) -> int:
    """Simulate the step and print its times."""
    from hocket.measure.progress_bar import progress
    from hocket.session.simulated_step import simulate_step
    from hocket.session.simulation_file import SimulationFile

    fabric = read_fabric(latency, bandwidth, reduce, ranks_per_host, host_latency, host_bandwidth)
    traffic = _read_step(step, num_ranks, tflops)
    with progress("simulate", "ranks") as show:
        show(0, traffic.num_ranks, "computing the times of operations")
        ran = simulate_step(traffic, fabric, lambda done: show(done, traffic.num_ranks, "done"))
    if as_json:
        print(SimulationFile(traffic.name, traffic.num_ranks, traffic.source, describe_fabric(fabric), ran).to_json())
    else:
        _print(traffic, ran)
    return 0


def _read_step(step: str, num_ranks: int | None, tflops: float) -> Traffic:
    if num_ranks is not None and num_ranks < 1:
        raise InvalidArgument(f"-n must be 1 or more, not {num_ranks}")
    if not tflops > 0:
        raise InvalidArgument(f"--tflops must be above zero, not {tflops}")
    if step in _MODELS:
        from hocket.session import published_steps

        makers = (published_steps.gpt_345m, published_steps.moe_350m, published_steps.dlrm_criteo)
        return makers[_MODELS.index(step)](num_ranks or 8, flops_per_s=tflops * 1e12)
    if not Path(step).exists():
        raise InvalidArgument(f"{step!r} is neither an existing file nor one of {', '.join(_MODELS)}")
    from hocket.trace.traffic import Traffic

    traffic = Traffic.load(step)
    return traffic if num_ranks is None or num_ranks == traffic.num_ranks else traffic.between(num_ranks)


def _print(traffic: Traffic, ran: SimulatedStep) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    console = Console(width=None if sys.stdout.isatty() else 120)
    grid = Grid(title=f"{traffic.name} between {traffic.num_ranks} ranks, simulated")
    for heading in ("operation", "bytes", "per step", "issue to end", "algorithm"):
        grid.add_column(heading, justify="left" if heading in ("operation", "algorithm") else "right", overflow="fold")
    for each in ran.operations:
        grid.add_row(
            each.kind, format_nbytes(each.nbytes), str(each.count), format_seconds(each.seconds), each.algorithm
        )
    console.print(grid)
    waits_s = max(0.0, ran.seconds - ran.compute_s)
    console.print(
        f"a step takes {format_seconds(ran.seconds)}: {format_seconds(ran.compute_s)} of computation, "
        f"{format_seconds(waits_s)} of waiting for communication (simulated, not measured)",
        highlight=False,
    )
