"""The frame of every claim: its options, its laboratory if it needs one, its parts one after the other, its report.

A script is a docstring (the first paragraph is its --help), targets, parts that measure and make rows, and one call of
`run_claim`. Its ranks are processes of the same script, started with --rank, which call its `serve_rank` with what
follows.
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
from hocket.measure import Comparison, Coordinator, Job, Measurement, Row, Settings, judge, measure, null_rows, progress
from hocket.measure.report import report
from hocket.measure.script import finish, run_script, script_parser, settings_of

Options = argparse.Namespace
"""Of the command line; also `settings`, of measurements, and `folder`, which lives as long as the script."""

Found = Iterator[tuple[Any, ...]]
"""Tuples of rows, or comparisons to be judged, and of the measurement, if any, that they stand on."""

Part = Callable[[Options], Found]

option = partial(methodcaller, "add_argument")
"""An option of a script, by the arguments of `ArgumentParser.add_argument`."""


def run_claim(
    claim: str,
    parts: Part | Mapping[str, Part],
    *own_options: Callable[[argparse.ArgumentParser], object],
    by: str = "--part",
    by_help: str = "may be repeated",
    needs_lab: Callable[[Options], object] = lambda options: False,
    unit: str = "us",
) -> NoReturn:
    """Run this process's script: as a rank if it was started as one, else all of its parts, and end the process.

    Args:
        claim: what the report is about, in one sentence.
        parts: the script's one part, or all of them by name.
        own_options: beside those that every script takes.
        by: the option that chooses among several parts; the chosen names are `options.parts`.
        by_help: of that option.
        needs_lab: whether the options ask for something between two hosts.
        unit: of the rows that compare a contender with itself.
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
            raise BackendUnavailable(f"{reason}; {by} names what can do without" if len(by_name) > 1 else reason)
        rows: list[Row] = []
        measurements: list[Measurement] = []
        with tempfile.TemporaryDirectory() as folder:
            options.folder = Path(folder)
            for name in (each for each in by_name if each in options.parts):
                for found, *on in by_name[name](options):
                    rows += [judge(*on, each) if isinstance(each, Comparison) else each for each in found]
                    measurements += on
        nulls = [row for each in measurements for row in null_rows(each, unit)]
        return finish(report(claim, [*rows, *nulls], measurements), options)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of the end of the laboratory, and of all processes
    run_script(main)


def measured(jobs: Sequence[Job], words: str, settings: Settings, **timeouts: float) -> Measurement:
    """Measure all contenders of some jobs, and show how far that is.

    Args:
        jobs: of which all live at once.
        words: what is measured, for the progress.
        settings: how much.
        timeouts: of `Coordinator`.
    """
    with Coordinator(jobs, **timeouts) as coordinator, progress(words) as on_round:
        return measure(coordinator, settings, on_round=on_round)


def measured_and_told(
    jobs: Sequence[Job], words: str, settings: Settings, **timeouts: float
) -> tuple[Measurement, Any]:
    """The same, and the facts that rank 0 of the first job has for the script (`ranks.serve_all`)."""
    with Coordinator(jobs, **timeouts) as coordinator, progress(words) as on_round:
        facts = coordinator.ask(jobs[0].name, {"do": "facts"}, [0])[0]["facts"]
        return measure(coordinator, settings, on_round=on_round), facts
