"""The common frame of all claims: the options, the laboratory if the claim needs it, the parts in order, the report.

A script consists of a docstring (the first paragraph is its --help), targets, parts that measure and make rows, and one
call of `run_claim`. Its ranks are processes of the same script that are started with --rank. They call the script's
`serve_rank` with the arguments after --rank.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, NoReturn

from lab import find_obstacle

from hocket.errors import BackendUnavailable
from hocket.measure import (
    Comparison,
    Coordinator,
    Job,
    Measurement,
    Row,
    Settings,
    judge,
    measure,
    null_rows,
    progress,
    report,
)
from hocket.measure.script import finish, run_script, script_parser, settings_of

Options = argparse.Namespace
"""The options of the command line, the `settings` of measurements, and a temporary `folder`, removed at the end."""

PartResults = Iterator[tuple[Any, ...]]
"""Tuples of rows, or comparisons to judge, and the measurement that they are based on, if any."""

Part = Callable[[Options], PartResults]

option = partial(methodcaller, "add_argument")
"""Makes an option of a script from the arguments of `ArgumentParser.add_argument`."""


def run_claim(
    claim: str,
    parts: Part | Mapping[str, Part],
    *own_options: Callable[[argparse.ArgumentParser], object],
    by: str = "--part",
    by_help: str = "may be repeated",
    needs_lab: Callable[[Options], object] = lambda options: False,
    unit: str = "us",
) -> NoReturn:
    """Run this process's script and exit: serve as a rank if it was started with --rank, otherwise run its parts.

    Args:
        claim: the claim that the report judges, in one sentence.
        parts: the only part of the script, or all parts by name.
        own_options: options of this script, in addition to the common ones.
        by: the option that selects parts if there are several; the selected names are `options.parts`.
        by_help: help text of that option.
        needs_lab: function that returns whether the options require the laboratory of two hosts.
        unit: unit of the rows that compare a contender with itself.
    """
    script: Any = sys.modules["__main__"]
    if sys.argv[1:2] == ["--rank"]:
        script.serve_rank(*sys.argv[2:])
        sys.exit()
    parser = script_parser(script.__doc__.split("\n\n")[0])
    by_name = parts if isinstance(parts, Mapping) else {"": parts}
    parser.set_defaults(parts=None)
    if len(by_name) > 1:
        parser.add_argument(by, dest="parts", action="append", choices=list(by_name), help=by_help)
    for add in own_options:
        add(parser)
    options = parser.parse_args()
    options.settings = settings_of(options)
    options.parts = options.parts or list(by_name)

    def main() -> int:
        if needs_lab(options) and (reason := find_obstacle()) is not None:
            raise BackendUnavailable(f"{reason}; with {by}, choose other parts" if len(by_name) > 1 else reason)
        rows: list[Row] = []
        measurements: list[Measurement] = []
        with tempfile.TemporaryDirectory() as folder:
            options.folder = Path(folder)
            for name in (each for each in by_name if each in options.parts):
                for found, *basis in by_name[name](options):
                    rows += [judge(*basis, each) if isinstance(each, Comparison) else each for each in found]
                    measurements += basis
        nulls = [row for each in measurements for row in null_rows(each, unit)]
        return finish(report(claim, [*rows, *nulls], measurements), options)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # closes the laboratory and ends all processes
    run_script(main)


def measure_jobs(jobs: Sequence[Job], words: str, settings: Settings, **timeouts: float) -> Measurement:
    """Measure all contenders of some jobs, and show the progress.

    Args:
        jobs: jobs that run at the same time.
        words: description of the measurement, for the progress display.
        settings: settings of the measurement.
        timeouts: timeouts of `Coordinator`.
    """
    with Coordinator(jobs, **timeouts) as coordinator, progress(words) as on_round:
        return measure(coordinator, settings, on_round=on_round)


def measure_with_facts(
    jobs: Sequence[Job], words: str, settings: Settings, **timeouts: float
) -> tuple[Measurement, Any]:
    """Do the same; also return the facts that rank 0 of the first job passes to the script (`ranks.serve_all`)."""
    with Coordinator(jobs, **timeouts) as coordinator, progress(words) as on_round:
        facts = coordinator.ask(jobs[0].name, {"do": "facts"}, [0])[0]["facts"]
        return measure(coordinator, settings, on_round=on_round), facts
