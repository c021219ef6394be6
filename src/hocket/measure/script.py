"""The common options of all benchmark scripts, and how they print their report and exit."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from hocket.errors import HocketError
from hocket.measure.reporting import Report
from hocket.measure.rounds import Settings


def script_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark script.

    Examples:
        >>> parser = hk.measure.script_parser("Compares shm with MPI.")
        >>> options = parser.parse_args(["--quick", "--rounds", "12"])
        >>> options.quick, options.rounds
        (True, 12)
    """
    parser = argparse.ArgumentParser(
        description=description,
        epilog="exit code: 0 all rows hold, 1 a row falls short, 3 the machine was too busy to judge, "
        "2 nothing could be measured",
    )
    parser.add_argument("--quick", action="store_true", help="take fewer and shorter rounds, at most one minute")
    parser.add_argument("--rounds", type=int, metavar="N", help="minimum number of rounds (default 15, quick 9)")
    parser.add_argument("--time-limit", type=float, metavar="S", help="maximum seconds of all rounds (default 600)")
    parser.add_argument("--json", action="store_true", help="print only the JSON line, not the table")
    return parser


def settings_of(options: argparse.Namespace) -> Settings:
    """Return the settings for a script's options.

    Examples:
        >>> options = hk.measure.script_parser("Compares shm with MPI.").parse_args(["--quick", "--rounds", "12"])
        >>> settings = hk.measure.settings_of(options)
        >>> settings.min_rounds, settings.time_limit_s
        (12, 60.0)
    """
    settings = Settings(min_rounds=9, min_sample_s=0.01, time_limit_s=60.0) if options.quick else Settings()
    if options.rounds is not None:
        settings = replace(settings, min_rounds=options.rounds)
    if options.time_limit is not None:
        settings = replace(settings, time_limit_s=options.time_limit)
    return settings


def finish(report: Report, options: argparse.Namespace) -> int:
    """Print the table (unless --json) and the JSON line; return the exit code.

    Examples:
        >>> row = hk.measure.computed("16 B", "mpich", ours=2.0, theirs=3.0, unit="us", target=1.2)
        >>> report = hk.measure.report("shm beats MPI", [row], measurements=[])
        >>> options = hk.measure.script_parser("Compares shm with MPI.").parse_args(["--json"])
        >>> status = hk.measure.finish(report, options)
        {"claim": "shm beats MPI", "rows": [{"case": "16 B", ... "judged": true}
        >>> status
        0
    """
    if not options.json:
        print(report.to_table(), end="\n\n")
    print(report.to_json(), flush=True)
    return report.exit_code


def run_script(main: Callable[[], int]) -> NoReturn:
    """Exit with the status that `main` returns, or with 2 and the message if it raises a `HocketError`.

    Examples:
        >>> hk.measure.run_script(lambda: 0)
        Traceback (most recent call last):
        SystemExit: 0
    """
    try:
        status = main()
    except HocketError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        status = 2
    sys.exit(status)
