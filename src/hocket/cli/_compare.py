"""`hocket tune compare`: measure whether a mix of libraries is faster for a program's own traffic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hocket.cli._names import Backends, read_backends
from hocket.cli._output import AsJson
from hocket.cli._rank_job import result_of_ranks
from hocket.cli._tables import console_of, table_of
from hocket.cli._verbs import argument
from hocket.comm.policy import format_nbytes, format_seconds
from hocket.errors import InvalidArgument
from hocket.measure.comparison import MAX_FOREIGN_BUSY
from hocket.measure.statistics import Ratio
from hocket.trace.traffic import Traffic
from hocket.tune.trial import format_speed


def compare(
    traffics: Annotated[list[Path], argument(metavar="TRAFFIC...", help="Traffic files.")],
    backends: Backends = None,
    rounds: Annotated[int, typer.Option(metavar="N", help="Number of rounds, 6 or more.")] = 9,
    as_json: AsJson = False,
) -> int:
    """Replay the traffic of a training step over each single library and over the tuned mix of them.

    First measures a table for the operations of the traffic. The examples (--traffic FILE) and
    hocket.trace.traffic.Traffic write traffic files.

    Examples:
      hocket run -n 2 examples/moe.py --traffic moe.json
      hocket tune compare moe.json
      hocket tune compare moe.json --backends gloo,mpi --json
    """
    loaded = [Traffic.load(path) for path in traffics]
    num_ranks = loaded[0].num_ranks
    for path, each in zip(traffics, loaded, strict=True):
        if each.num_ranks != num_ranks:
            raise InvalidArgument(
                f"all traffic must have the same number of ranks, but {traffics[0]} has {num_ranks} and {path} has "
                f"{each.num_ranks}"
            )
    if num_ranks < 2:
        raise InvalidArgument(f"traffic must have 2 ranks or more, but {traffics[0]} has {num_ranks}")
    names = read_backends(backends)
    if rounds < 6:
        raise InvalidArgument(f"--rounds must be 6 or more, not {rounds}: an interval needs 6 values")
    options = {"traffics": [str(path.absolute()) for path in traffics], "backends": names, "rounds": rounds}
    exit_code, result = result_of_ranks("_mix_rank", options, num_ranks)
    if exit_code:
        return exit_code
    for each in result["traffics"]:
        each["verdict"], each["conclusion"] = conclude(each, result["foreign_busy"])
    if as_json:
        print(json.dumps(result))
        return 0
    for each in result["traffics"]:
        print_comparison(each)
    return 0


def print_comparison(traffic: dict[str, Any]) -> None:
    """Print two tables: the time over each library and over the mix, and the choices of the mix."""
    console = console_of(120, highlight=False)
    headings = ("over", "measured", "predicted")
    grid = table_of(f"one step of {traffic['name']}", headings, left=headings[:1], no_wrap=True)
    for name, times in traffic["variants"].items():
        predicted = times["predicted_seconds"]
        grid.add_row(name, format_seconds(times["seconds"]), "-" if predicted is None else format_seconds(predicted))
    console.print(grid)
    left = ("operation", "type", "library")
    choices = table_of("what the mix chose", (*left[:2], "size", "times", left[2]), left, no_wrap=True)
    for each in traffic["chosen"]:
        choices.add_row(each["op"], each["dtype"], format_nbytes(each["nbytes"]), str(each["count"]), each["carrier"])
    console.print(choices)
    console.print(f"{traffic['conclusion']}\n")


def conclude(traffic: dict[str, Any], foreign_busy: float) -> tuple[str, str]:
    """Judge whether the mix is faster; return a verdict for programs and a sentence for people.

    Args:
        traffic: one of the results that the ranks wrote.
        foreign_busy: share of the CPU time, 0 to 1, that other programs took meanwhile.
    """
    best, used = traffic["best_single"], {each["carrier"] for each in traffic["chosen"]}
    if used == {best}:
        return "one library", f"{best} wins every operation here, so the mix is that one library."
    unjudged = f"Whether the mix is faster than {best}, the best single library, is not judged"
    if foreign_busy > MAX_FOREIGN_BUSY:
        return "not judged", f"{unjudged}: other programs took {foreign_busy:.0%} of the machine meanwhile."
    if traffic["interval"] is None:
        return "not judged", f"{unjudged}: only {traffic['rounds']} rounds fitted into the time limit."
    low, high = traffic["interval"]
    speed = Ratio(traffic["ratio"], low, high, traffic["rounds"])
    if speed.verdict == "not distinguishable":
        both = f"The mix and {best}, the best single library"
        return speed.verdict, f"{both}, are {speed.verdict}: {format_speed(speed)}."
    misjudged = "" if speed.verdict == "faster" else "; the table misjudges this traffic"
    return speed.verdict, f"The mix is {format_speed(speed)} as {best}, the best single library{misjudged}."
