"""`hocket bench check`: performance guidelines. `hocket bench selftest`: whether the suite detects faults."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli._bench_compare import EXIT_UNJUDGED
from hocket.cli._bench_options import (
    DEFAULT_SEED,
    Budget,
    Libraries,
    NumRanks,
    Seed,
    Sizes,
    check_least,
    choose,
    is_first,
    jobs_of,
    number_of_ranks,
    print_warnings,
)
from hocket.cli._output import AsJson
from hocket.cli._sizes import read_size
from hocket.cli._tables import console_of, table_of
from hocket.comm.policy import format_nbytes
from hocket.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hocket.bench.guidelines import GuidelineFinding
    from hocket.bench.point import Point
    from hocket.measure import Key

_SIZES = (8, 4 << 10, 256 << 10)
_VERDICTS = {"broken": "[bold red]broken[/]", "holds": "holds", "not judged": "[dim]not judged[/]"}


def check(
    library: Libraries = "shm",
    num_ranks: NumRanks = None,
    sizes: Sizes = None,
    least: Annotated[float, typer.Option(metavar="PART", help="Ignore a smaller excess.")] = 0.05,
    budget: Budget = 60.0,
    seed: Seed = DEFAULT_SEED,
    as_json: AsJson = False,
) -> int:
    """Find operations that take longer than other operations with the same result.

    Exit code 1 if a guideline is broken; 3 if none is broken, but at least one could not be judged because its interval
    is too wide.

    The guidelines are those of Träff, Gropp and Thakur: all_reduce <= reduce + broadcast, gather <= all_gather, and so
    on. If a library breaks a guideline, replacing the operation makes it faster.

    Examples:
      hocket bench check --library mpi4py:mpich
      hocket bench check --library shm,gloo --sizes 8,64KiB --json
    """
    from hocket.bench.guidelines import check as judge
    from hocket.bench.guidelines import needed_sizes
    from hocket.bench.run import run_points
    from hocket.measure import StopRule, progress

    check_least(least)
    size = number_of_ranks(num_ranks)
    of_all = 4 * size  # bytes: a float32 for each
    given = (
        [-(-each // of_all) * of_all for each in _SIZES] if sizes is None else list(map(read_size, sizes.split(",")))
    )
    wrong = [each for each in given if each % of_all]
    if wrong:
        raise InvalidArgument(f"{wrong[0]} bytes cannot be divided into equal float32 blocks for {size} ranks")
    points: dict[Key, Point] = {}
    for nbytes in given:
        for name, needed in needed_sizes(nbytes, size).items():
            found, targets = choose([name], library, size, ",".join(map(str, needed)), dtype="float32")
            points |= {each.key: each for each in found}
    rule = StopRule(precision=0.05, time_limit_s=budget, together=True, seed=seed)
    with progress(f"{len(points)} points for guidelines", "points", is_first()) as on_round:
        ran = run_points(list(points.values()), targets, size, rule, on_round=on_round)
    print_warnings(ran.warnings)
    findings = judge(ran.results, given, least=least)
    if as_json:
        rows = [{**asdict(each), "guideline": each.guideline.words} for each in findings]
        numbers = {"num_broken": _count(findings, "broken"), "num_not_judged": _count(findings, "not judged")}
        print(json.dumps({"findings": rows, **numbers}))
    else:
        _print(findings, size)
    if _count(findings, "broken"):
        return 1
    return EXIT_UNJUDGED if _count(findings, "not judged") else 0


def _count(findings: Sequence[GuidelineFinding], verdict: str) -> int:
    return sum(each.verdict == verdict for each in findings)


def _print(findings: Sequence[GuidelineFinding], num_ranks: int) -> None:
    headings = ("guideline", "over", "size", "times as long", "interval", "")
    table = table_of(f"performance guidelines, {num_ranks} ranks", headings, left=("guideline", "over", ""))
    for each in findings:
        interval = "-" if each.interval is None else f"{each.interval[0]:.2f} .. {each.interval[1]:.2f}"
        table.add_row(
            each.guideline.words,
            each.way.split()[0],
            format_nbytes(each.nbytes),
            f"{each.ratio:.2f}",
            interval,
            "too few samples" if each.interval is None else _VERDICTS[each.verdict],
        )
    console_of(140).print(table)


def selftest(
    library: Annotated[str, typer.Option("--library", "--backend", metavar="NAME", help="One library.")] = "shm",
    num_ranks: NumRanks = None,
    budget: Budget = 30.0,
    seed: Seed = DEFAULT_SEED,
    as_json: AsJson = False,
) -> int:
    """Inject faults into a library, and check that the suite detects them. Exit code 1 if it does not.

    The trials: one byte of a result is wrong, a rank is late, all operations take 5 % longer, none does, and more ranks
    than CPUs.

    Examples:
      hocket bench selftest
      hocket bench selftest --library gloo --budget 60
    """
    from hocket.bench.selftest import run_trials

    size = jobs_of(num_ranks, "selftest")
    if "," in library or "*" in library or "!" in library:
        raise InvalidArgument(f"--library must name one library, not {library}")
    if size < 2:
        raise InvalidArgument(f"the selftest needs 2 ranks or more, not {size}")
    trials = []
    for trial in run_trials(library, size, budget, seed):
        trials.append(trial)
        if not as_json:
            print(f"{'seen    ' if trial.is_seen else 'NOT SEEN'}  {trial.fault}\n          {trial.words}", flush=True)
    if as_json:
        print(json.dumps([asdict(each) for each in trials]))
    return 0 if all(each.is_seen for each in trials) else 1
