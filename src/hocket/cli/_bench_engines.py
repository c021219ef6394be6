"""`hocket bench engines`: measure the gradient engines of `hocket.train` on the gradients of well-known models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli._bench_options import DEFAULT_SEED, Budget, NumRanks, Seed, jobs_of
from hocket.cli._output import AsJson
from hocket.cli._tables import console_of, table_of
from hocket.cli._verbs import optional
from hocket.errors import InvalidArgument
from hocket.suggestions import unknown
from hocket.whole_file import check_output, write_text

if TYPE_CHECKING:
    from hocket.bench.engine_times import EngineTimes

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
        float, typer.Option(metavar="MS", help="Milliseconds of computation in a step, as in a backward pass.")
    ] = 0.0,
    budget: Budget = 60.0,
    seed: Seed = DEFAULT_SEED,
    output: Annotated[Path | None, optional("-o", "--output", metavar="FILE", help="JSON file to write.")] = None,
    picture: Annotated[Path | None, optional(metavar="PATH", help="Draw the times here.")] = None,
    as_json: AsJson = False,
) -> int:
    """Measure how long gradient engines take to sum all gradients of a model, in the same rounds.

    The sums are checked first. The engine that is the fastest of its row, and whose interval overlaps no other, is
    bold.

    Examples:
      hocket bench engines
      hocket bench engines --model mobilenet --engine 'mix;ring;parameter-server num_servers=2' --budget 20
      hocket bench engines --compute 50 -o engines.json --picture engines.png
    """
    from hocket.bench.engine_pictures import draw_engines
    from hocket.bench.engine_times import EngineTimes
    from hocket.bench.gradient_shapes import MODELS
    from hocket.cli._engine_names import read_engine
    from hocket.cli._rank_job import result_of_ranks
    from hocket.measure.pictures import check_picture_path

    models, names = model.split(","), [" ".join(each.split()) for each in engine.split(";")]
    for each in models:
        if each not in MODELS:
            raise InvalidArgument(unknown("model", each, MODELS))
    for each in names:
        if not each or read_engine(each).updates:
            raise InvalidArgument(f"--engine must have engines that sum, not {each!r}")
    for name, given in (("--model", models), ("--engine", names)):
        if len(set(given)) < len(given):
            raise InvalidArgument(f"{name} has something twice: {', '.join(given)}")
    if not 0 <= compute <= 10_000:
        raise InvalidArgument(f"--compute must be from 0 to 10000 milliseconds, not {compute:g}")
    for path, check in ((output, check_output), (picture, check_picture_path)):
        if path is not None:
            check(path)
    options = {
        "models": models, "engines": names, "backends": library.split(",") if library else None,
        "compute_ms": compute, "budget_s": budget, "seed": seed,
    }  # fmt: skip
    exit_code, found = result_of_ranks("_engines_rank", options, jobs_of(num_ranks, "engines"))
    if exit_code:
        return exit_code
    text = json.dumps(found)
    times = EngineTimes.from_json(text, "the ranks' results")
    if output is not None:
        write_text(output, text + "\n")
    if picture is not None:
        draw_engines(times, picture)
    if as_json:
        print(text)
    else:
        _print(times)
    return 0


def _print(times: EngineTimes) -> None:
    from hocket.bench.result import format_value

    first = times.rows[0]
    title = f"exchange of all gradients, {first.num_ranks} ranks on {first.num_hosts} host{'s' * (first.num_hosts > 1)}"
    headings = ("model", "engine", "ms", "interval", "x the fastest", "ns a byte")
    table = table_of(title, headings, left=headings[:2])
    for model in dict.fromkeys(each.model for each in times.rows):
        rows = [each for each in times.rows if each.model == model]
        best = min(rows, key=lambda each: each.ms)
        is_clear = all(best.high_ms < each.low_ms for each in rows if each is not best)
        for each in rows:
            name = f"[bold]{each.engine}[/bold]" if each is best and is_clear else each.engine
            table.add_row(
                model, name, format_value(each.ms), f"{format_value(each.low_ms)} to {format_value(each.high_ms)}",
                f"{each.ms / best.ms:.2f}", f"{each.ns_per_byte:.2f}",
            )  # fmt: skip
    console_of(120).print(table)
    busy = f"core factor {times.core_factor:.2f}, foreign work {times.foreign_busy:.0%}"
    print(f"medians with their 95 % intervals; {busy}")
