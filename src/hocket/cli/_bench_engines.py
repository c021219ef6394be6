"""`hocket bench engines`: measure the gradient engines of `hocket.train` on the gradients of well-known models."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli._bench_options import DEFAULT_SEED, NumRanks, Seed, jobs_of
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
from hocket.cli._sizes import check_once, read_counts
from hocket.cli._tables import console_of, table_of
from hocket.cli._verbs import optional
from hocket.errors import InvalidArgument
from hocket.suggestions import unknown
from hocket.whole_file import check_output, write_text

if TYPE_CHECKING:
    from hocket.bench.engine_times import EngineTimes

_MOST_SAMPLES, _MOST_VIRTUAL = 1 << 20, 1024
_INTERRUPTED = 128 + signal.SIGINT
_ENGINES = "mix;ddp;fused;ring;pipelined-ring;parameter-server;parameter-server payload=shm"


def engines(
    model: Annotated[
        str, typer.Option("--model", metavar="A,B", help="Whose gradients: resnet50, mobilenet, gpt.")
    ] = "resnet50,mobilenet,gpt",
    engine: Annotated[
        str, typer.Option("--engine", metavar="A;B", help="Engines, each with options: 'ring;fused cycle_ms=5'.")
    ] = _ENGINES,
    num_ranks: NumRanks = None,
    library: Annotated[
        str | None, optional("--library", "--backend", metavar="A,B", help="Libraries of the communicator.")
    ] = None,
    compute: Annotated[
        float, typer.Option(metavar="MS", help="Milliseconds of computation for each sample, as in a backward pass.")
    ] = 0.0,
    batch: Annotated[
        str, typer.Option(metavar="A,B", help="Samples of each rank in a step; each batch size is measured.")
    ] = "1",
    scale: Annotated[
        str | None,
        optional(
            metavar="A,B",
            help="Simulate the engines between so many ranks, too; it takes seconds to minutes more than --budget, and "
            "Ctrl-C keeps what is there.",
        ),
    ] = None,
    latency: Latency = 5.0,
    bandwidth: Bandwidth = 1.25,
    reduce: Reduce = float("inf"),
    ranks_per_host: RanksPerHost = None,
    host_latency: HostLatency = 30.0,
    host_bandwidth: HostBandwidth = 1.25,
    budget: Annotated[
        float,
        typer.Option(
            metavar="S", min=0.01, help="Seconds of measuring after which no new round starts; --scale comes on top."
        ),
    ] = 60.0,
    seed: Seed = DEFAULT_SEED,
    output: Annotated[Path | None, optional("-o", "--output", metavar="FILE", help="JSON file to write.")] = None,
    picture: Annotated[Path | None, optional(metavar="PATH", help="Draw the times here.")] = None,
    as_json: AsJson = False,
) -> int:
    """Measure how long gradient engines take to sum all gradients of a model, in the same rounds.

    The sums are checked first. The fastest engine for a model and batch size is bold if its interval overlaps no other.
    With --scale, the engines run on virtual ranks, too, over links of the given latency and bandwidth; a server then
    works as long for each byte as was measured here.

    Examples:
      hocket bench engines
      hocket bench engines --model mobilenet --engine 'mix;ring;parameter-server num_servers=2' --budget 20
      hocket bench engines --engine 'ddp backend=shm;ddp backend=gloo' --library shm,gloo
      hocket bench engines --compute 2 --batch 8,32 --scale 4,8,16,32 --latency 5 --bandwidth 1.25
      hocket bench engines --compute 50 -o engines.json --picture engines.png
    """
    from hocket.bench.engine_pictures import draw_engines
    from hocket.bench.engine_times import EngineTimes, to_text
    from hocket.bench.gradient_shapes import MODELS
    from hocket.cli._engine_names import read_engine
    from hocket.cli._engine_values import check_libraries, check_servers, check_values
    from hocket.cli._engines_simulated import simulate_rows
    from hocket.cli._rank_job import result_of_ranks
    from hocket.measure.pictures import check_picture_path
    from hocket.train.engines.timing import float32_specs

    models, names = model.split(","), [" ".join(each.split()) for each in engine.split(";")]
    for each in models:
        if each not in MODELS:
            raise InvalidArgument(unknown("model", each, MODELS))
    for each in names:
        if not each or read_engine(each).updates:
            raise InvalidArgument(f"--engine must have engines that sum, not {each!r}")
    batches = read_counts(batch, "--batch", _MOST_SAMPLES)
    numbers = [] if scale is None else read_counts(scale, "--scale", _MOST_VIRTUAL)
    libraries = library.split(",") if library else None
    for name, given in (
        ("--model", models), ("--engine", names), ("--batch", batch.split(",")), ("--scale", (scale or "").split(",")),
        ("--library", libraries or []),
    ):  # fmt: skip
        check_once(given, name)
    if not 0 <= compute <= 10_000:
        raise InvalidArgument(f"--compute must be from 0 to 10000 milliseconds, not {compute:g}")
    if len(batches) > 1 and not compute:
        raise InvalidArgument("--batch has several sizes, and without --compute they do not differ: give both")
    fabric = read_fabric(latency, bandwidth, reduce, ranks_per_host, host_latency, host_bandwidth)
    for path, check in ((output, check_output), (picture, check_picture_path)):
        if path is not None:
            check(path)
    num_started = jobs_of(num_ranks, "engines")
    check_libraries(libraries or [])
    choices = [read_engine(each) for each in names]
    for choice in choices:
        check_values(choice, libraries)
    check_servers(choices, {each: float32_specs(MODELS[each]()) for each in models})
    options = {
        "models": models, "engines": names, "backends": libraries,
        "compute_ms": compute, "batches": batches, "budget_s": budget, "seed": seed,
    }  # fmt: skip
    exit_code, found = result_of_ranks("_engines_rank", options, num_started, "hocket bench")
    if exit_code:
        return exit_code
    times = EngineTimes.from_json(json.dumps(found), "the ranks' results")
    num_missing = 0
    if numbers:
        simulated, num_missing = simulate_rows(times.rows, numbers, fabric)
        if simulated:
            times = replace(times, rows=(*times.rows, *simulated), link=describe_fabric(fabric))
        if num_missing:
            whole = num_missing + len(simulated)
            told = f"interrupted by SIGINT: {num_missing} of {whole} simulated steps are missing"
            print(f"hocket bench: {told}", file=sys.stderr)
    text = to_text(times)
    if output is not None:
        write_text(output, text + "\n")
    if picture is not None:
        draw_engines(times, picture)
    if as_json:
        print(text)
    else:
        _print(times)
    return _INTERRUPTED if num_missing else 0


def _print(times: EngineTimes) -> None:
    from hocket.bench.engine_times import rivals_of
    from hocket.bench.result import format_value

    rows = times.rows
    first = rows[0]
    ranks = f"{first.num_ranks} rank{'s' * (first.num_ranks > 1)}"
    hosts = f"{first.num_hosts} host{'s' * (first.num_hosts > 1)}"
    headings = ["model", "batch", "ranks", "engine", "ms", "interval", "x the fastest", "ns a byte", "samples/s"]
    left_out = {heading for heading, is_told in (("batch", first.compute_ms), ("ranks", times.link)) if not is_told}
    if not first.compute_ms:
        left_out.add("samples/s")
    headings = [each for each in headings if each not in left_out]
    title = f"exchange of all gradients, {ranks} on {hosts}"
    table = table_of(title, headings, left=("model", "engine"))
    for _, group in groupby(rows, key=lambda each: (each.model, each.batch, each.num_ranks, each.is_simulated)):
        same = list(group)
        best, rivals = rivals_of(same)
        is_clear = len(same) > 1 and not rivals
        for each in same:
            cells = {
                "model": each.model, "batch": str(each.batch), "ranks": str(each.num_ranks),
                "engine": f"[bold]{each.engine}[/bold]" if each is best and is_clear else each.engine,
                "ms": format_value(each.ms),
                "interval": "simulated"
                if each.is_simulated
                else f"{format_value(each.low_ms)} to {format_value(each.high_ms)}",
                "x the fastest": f"{each.ms / best.ms:.2f}", "ns a byte": f"{each.ns_per_byte:.2f}",
                "samples/s": format_value(each.samples_per_s),
            }  # fmt: skip
            table.add_row(*(cells[heading] for heading in headings))
    console_of(120).print(table)
    busy = f"core factor {times.core_factor:.2f}, foreign work {times.foreign_busy:.0%}"
    print(f"medians with their 95 % intervals; {busy}")
    if times.link:
        print(f"simulated over {times.link}: links and servers take time, copies within a rank take none")
