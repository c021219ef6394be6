"""`hocket pipeline`: list, show, simulate, validate, convert, draw and choose pipeline schedules."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.cli._links import Bandwidth, Latency
from hocket.cli._output import AsJson
from hocket.cli._pipeline_choose import register_choose
from hocket.cli._pipeline_options import (
    Activation,
    BufferingText,
    CostOptions,
    Costs,
    Gradients,
    MessageSize,
    Name,
    Names,
    NumMicroBatches,
    NumRanks,
    Params,
    Replicas,
    Sync,
    Weights,
    read_costs,
    read_schedule,
)
from hocket.cli._sizes import read_size
from hocket.cli._tables import format_params, print_table
from hocket.cli._verbs import add_verb, optional
from hocket.comm.policy import format_nbytes, format_seconds
from hocket.errors import InvalidArgument, PipelineDeadlock
from hocket.measure.pictures import ENDINGS, check_picture_path
from hocket.whole_file import check_output

if TYPE_CHECKING:
    from hocket.pipeline import PipelineSchedule, PipelineTimeline

_HELP = "Pipeline schedules as tables: list, show, simulate, validate, convert, draw and choose them."
Output = Annotated[Path, optional("-o", "--output", metavar="FILE", help="File to write.")]


def register(application: typer.Typer) -> None:
    """Add the verb to the command."""
    pipeline = typer.Typer(help=_HELP, no_args_is_help=True)
    add_verb(pipeline, list_all, "list")
    for verb in (show, simulate, validate, convert, draw):
        add_verb(pipeline, verb)
    register_choose(pipeline)
    application.add_typer(pipeline, name="pipeline")


def list_all(
    kinds: Annotated[bool, typer.Option("--kinds", help="List the kinds of actions instead.")] = False,
    as_json: AsJson = False,
) -> int:
    """List all schedules.

    Examples:
      hocket pipeline list
      hocket pipeline list --kinds
      hocket pipeline list --json
    """
    from hocket.pipeline import recipes
    from hocket.pipeline.kind import kinds as known_kinds

    rows: list[dict[str, Any]]
    headings: tuple[str, ...]
    if kinds:
        rows = [{"kind": name, "description": kind.description} for name, kind in sorted(known_kinds().items())]
        title, headings = "kinds of actions", ("kind", "description")
    else:
        rows = [
            {
                "name": each.name,
                "bubble": each.bubble,
                "parameters": dict(each.parameters) if as_json else format_params(each.parameters, shows_unset=True),
                "description": each.description,
                "reference": each.reference,
            }
            for each in recipes()
        ]
        title, headings = "D ranks, N micro-batches", ("name", "bubble", "parameters", "description")
    if as_json:
        print(json.dumps({"kinds" if kinds else "schedules": rows}))
    else:
        print_table(title, headings, [[str(row[heading]) for heading in headings] for row in rows])
    return 0


def show(
    name: Name,
    num_ranks: NumRanks = 4,
    micro_batches: NumMicroBatches = 8,
    param: Params = None,
    table: Annotated[
        bool, typer.Option("--table", help="Print the schedule's table as text instead of its timeline.")
    ] = False,
    cost: Costs = None,
    as_json: AsJson = False,
) -> int:
    """Show a schedule in the terminal.

    Examples:
      hocket pipeline show chimera -n 4 -m 8
      hocket pipeline show zb-v -n 4 -m 8 --table
      hocket pipeline show mine.txt --cost F=1,1,2,1 --cost B=2,2,4,2
    """
    from hocket.pipeline.formats import json as json_form
    from hocket.pipeline.formats import text
    from hocket.pipeline.terminal import draw_text

    schedule = read_schedule(name, num_ranks, micro_batches, param)
    if as_json or table:
        sys.stdout.write(json_form.dump(schedule) if as_json else text.dump(schedule))
        return 0
    from rich.console import Console

    timeline = _simulated(schedule, read_costs(cost, None, None, None, None, 0.0, 1.0, 1), None)
    is_terminal = sys.stdout.isatty()
    print(draw_text(timeline, Console().width if is_terminal else 120, color=is_terminal))
    print(_summary(timeline))
    return 0


def simulate(
    names: Names,
    num_ranks: NumRanks = 8,
    micro_batches: NumMicroBatches = 16,
    param: Params = None,
    cost: Costs = None,
    message: MessageSize = None,
    activation: Activation = None,
    weights: Weights = None,
    gradients: Gradients = None,
    replicas: Replicas = 1,
    sync: Sync = None,
    latency: Latency = 2.0,
    bandwidth: Bandwidth = 12.5,
    as_json: AsJson = False,
) -> int:
    """Run schedules on a virtual clock, and compare their times.

    Costs are for a rank's share of the model: if a schedule has v stages per rank, each stage costs a v-th. So all
    schedules do the same work. Nothing is measured.

    Examples:
      hocket pipeline simulate gpipe 1f1b zb-h1 zb-v chimera dualpipe -n 8 -m 16
      hocket pipeline simulate 1f1b chimera -n 8 -m 8 --message 8MiB --gradients 200M --sync eager-opt --bandwidth 12.5
      hocket pipeline simulate mine.json --json
    """
    from hocket.pipeline.bound import bound_of

    if param and len(names) > 1:
        raise InvalidArgument(f"--param needs exactly one schedule, not {len(names)}")
    costs = read_costs(cost, message, activation, weights, gradients, latency, bandwidth, replicas)
    found = [_simulated(read_schedule(name, num_ranks, micro_batches, param), costs, sync) for name in names]
    if as_json:
        print(json.dumps({"simulated": [_details(timeline) for timeline in found]}))
        return 0
    rows = []
    for timeline in sorted(found, key=lambda each: each.makespan_s):
        peak = float(timeline.peak_nbytes.max())
        bound = bound_of(timeline.schedule, timeline.costs)
        rows.append(
            [
                timeline.schedule.name,
                format_seconds(timeline.makespan_s),
                _over(timeline, bound),
                f"{timeline.bubble('sync'):.1%}",
                f"{timeline.bubble('span'):.1%}",
                f"{peak:g}" if activation is None and weights is None else format_nbytes(round(peak)),
                _path(timeline),
                str(sum(each.num_messages for each in timeline.traffic())),
            ]
        )
    first = found[0].schedule
    print_table(
        f"{first.num_ranks} ranks, {first.num_micro_batches} micro-batches, simulated",
        ("schedule", "step", "over the bound", "bubbles (sync)", "(span)", "peak memory", "critical path", "messages"),
        rows,
    )
    return 0


def validate(
    name: Name,
    num_ranks: NumRanks = 4,
    micro_batches: NumMicroBatches = 8,
    param: Params = None,
    buffering: BufferingText = "tagged",
    activation: Activation = None,
    weights: Weights = None,
    limit: Annotated[str | None, optional(metavar="SIZE", help="Memory limit of a rank.")] = None,
    as_json: AsJson = False,
) -> int:
    """Check that a schedule has every action exactly once and in order, and cannot deadlock.

    With --limit, also check that no rank holds more memory than that, by --weights and --activation.

    Examples:
      hocket pipeline validate mine.txt
      hocket pipeline validate 1f1b -n 4 -m 8 --buffering rendezvous
      hocket pipeline validate gpipe -n 4 -m 64 --activation 256MiB --weights 2GiB --limit 16GiB
    """
    from hocket.pipeline import smallest_buffering
    from hocket.pipeline import validate as check

    schedule = read_schedule(name, num_ranks, micro_batches, param)
    costs = read_costs(None, None, activation, weights, None, 0.0, 1.0, 1).of(schedule)
    try:
        check(schedule, buffering=buffering, costs=costs, limit_nbytes=None if limit is None else read_size(limit))
    except PipelineDeadlock as deadlock:  # its lines show which actions wait for each other
        print(f"hocket pipeline: {deadlock}", file=sys.stderr)
        return 2
    least = {
        "channels by edge": smallest_buffering(schedule),
        "one channel a pair of ranks": smallest_buffering(schedule, tagged=False),
    }
    sizes = {channels: "no number of slots" if size is None else str(size) for channels, size in least.items()}
    if as_json:
        print(json.dumps({"schedule": schedule.name, "actions": len(schedule), "valid": True, "buffering": sizes}))
        return 0
    print(f"valid: {schedule!r}, {len(schedule)} actions")
    for channels, size in sizes.items():
        print(f"smallest buffers, {channels}: {size}")
    return 0


def convert(
    name: Name,
    output: Output,
    num_ranks: NumRanks = 4,
    micro_batches: NumMicroBatches = 8,
    param: Params = None,
    split: Annotated[bool, typer.Option("--split-backward", help="Split backward passes into two parts.")] = False,
    retimed: Annotated[
        bool, typer.Option("--retime", help="Reorder the actions for --cost, if that is faster.")
    ] = False,
    again: Annotated[bool, typer.Option("--recompute", help="Repeat forward passes to use less memory.")] = False,
    sync: Sync = None,
    messages: Annotated[
        str | None,
        optional(metavar="BUFFERS", help="Add the messages as actions, for these buffers."),
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", help="Training steps in the table.")] = 1,
    cost: Costs = None,
    as_json: AsJson = False,
) -> int:
    """Read a schedule, change it, and write it in the format of the output file's suffix.

    .txt is for people, .json for programs, .csv for torch.distributed.pipelining.

    Examples:
      hocket pipeline convert zb-v -n 4 -m 8 -o zb_v.csv
      hocket pipeline convert torch.csv -o mine.txt
      hocket pipeline convert chimera -n 4 -m 8 --sync eager-opt --messages rendezvous --steps 2 -o chimera.json
    """
    check_output(output)
    from hocket import pipeline

    schedule = read_schedule(name, num_ranks, micro_batches, param)
    costs = read_costs(cost, None, None, None, None, 0.0, 1.0, 1).of(schedule)
    if split:
        schedule = pipeline.split_backward(schedule)
    if retimed:
        schedule = pipeline.retime(schedule, costs)
    if again:
        schedule = pipeline.recompute(schedule)
    if sync is not None:
        schedule = pipeline.add_gradient_sync(schedule, sync, costs, with_step=True)
    if steps != 1:
        schedule = pipeline.concatenate(schedule, steps)
    if messages is not None:
        schedule = pipeline.lower_messages(schedule, messages, costs)
    pipeline.save_schedule(schedule, output)
    print(json.dumps({"written": str(output), "actions": len(schedule)}) if as_json else output)
    return 0


def draw(
    names: Names,
    output: Output,
    num_ranks: NumRanks = 4,
    micro_batches: NumMicroBatches = 8,
    param: Params = None,
    cost: Costs = None,
    message: MessageSize = None,
    gradients: Gradients = None,
    sync: Sync = None,
    latency: Latency = 2.0,
    bandwidth: Bandwidth = 12.5,
    arrows: Annotated[bool, typer.Option("--messages", help="Draw an arrow for each message.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Draw the memory of every rank.")] = False,
    as_json: AsJson = False,
) -> int:
    """Draw schedules below each other, on one time scale, as .png, .svg or .pdf.

    With the suffix .json, write a trace for ui.perfetto.dev instead.

    Examples:
      hocket pipeline draw 1f1b chimera -n 4 -m 4 -o compare.png
      hocket pipeline draw zb-v -n 4 -m 8 --memory --cost B=2.5 -o zb_v.svg
      hocket pipeline draw dualpipe -n 8 -m 16 -o trace.json
    """
    from hocket.pipeline.draw import draw_timelines
    from hocket.pipeline.trace_file import write_trace

    if output.suffix == ".json":
        check_output(output)
    elif output.suffix not in ENDINGS:
        raise InvalidArgument(f"{output} must have the suffix {', '.join(ENDINGS)}, or .json for a trace")
    else:
        check_picture_path(output)
    if param and len(names) > 1:
        raise InvalidArgument(f"--param needs exactly one schedule, not {len(names)}")
    costs = read_costs(cost, message, None, None, gradients, latency, bandwidth, 1)
    timelines = [_simulated(read_schedule(name, num_ranks, micro_batches, param), costs, sync) for name in names]
    if output.suffix == ".json":
        write_trace(timelines, output)
    else:
        draw_timelines(timelines, output, messages=arrows, memory=memory)
    print(json.dumps({"written": str(output)}) if as_json else output)
    return 0


def _simulated(schedule: PipelineSchedule, options: CostOptions, sync: str | None) -> PipelineTimeline:
    from hocket import pipeline

    costs = options.of(schedule)
    if sync is not None:
        schedule = pipeline.add_gradient_sync(schedule, sync, costs)
    return pipeline.simulate(schedule, costs)


def _summary(timeline: PipelineTimeline) -> str:
    from hocket.pipeline.bound import bound_of
    from hocket.pipeline.draw import title_of

    bound = bound_of(timeline.schedule, timeline.costs)
    gap = f"; {_over(timeline, bound)} over the bound" if bound else ""
    held = ", ".join(f"{each:g}" for each in timeline.peak_nbytes)
    return f"{title_of(timeline)}{gap}\npeak number of activations, by rank: {held}"


def _over(timeline: PipelineTimeline, bound_s: float | None) -> str:
    """Return by how much a timeline is longer than its lower bound, or a dash if it has no bound."""
    return f"{max(0.0, timeline.makespan_s / bound_s - 1):.1%}" if bound_s else "-"


def _path(timeline: PipelineTimeline) -> str:
    """Return the number of passes of each kind on the critical path, such as 8F 14B."""
    from hocket.pipeline.kind import kinds

    counts = Counter(timeline.schedule.action(row).kind for row in timeline.critical_path())
    return " ".join(f"{number}{kind}" for kind, number in counts.items() if kinds()[kind].is_pass)


def _details(timeline: PipelineTimeline) -> dict[str, Any]:
    from hocket.pipeline.bound import bound_of

    schedule = timeline.schedule
    return {
        "schedule": schedule.name,
        "parameters": dict(schedule.parameters),
        "num_ranks": schedule.num_ranks,
        "num_micro_batches": schedule.num_micro_batches,
        "makespan_s": timeline.makespan_s,
        "lower_bound_s": bound_of(timeline.schedule, timeline.costs),
        "bubble_sync": timeline.bubble("sync"),
        "bubble_span": timeline.bubble("span"),
        "busy_s": timeline.busy_s.tolist(),
        "peak_nbytes": timeline.peak_nbytes.tolist(),
        "critical_path": [str(schedule.action(row)) for row in timeline.critical_path()],
        "gaps": [gap._asdict() for gap in timeline.gaps()],
        "traffic": [each._asdict() for each in timeline.traffic()],
    }
