"""Run the ranks of a verb: each rank runs a module of the command, with the verb's options as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hocket.boot.job_result import JobResult
from hocket.boot.launcher import run_job
from hocket.boot.nodes import Nodes
from hocket.boot.rank_process import runner_command
from hocket.boot.summary import summarise

_BAD_INPUT = 2
_ERRORS_OF_INPUT = ("InvalidArgument", "BackendUnavailable")
_TAKEN = "ResourceExhausted"  # such as a port
_OWN_FILES = f"{Path(__file__).parents[1]}/"


def run_ranks(
    module: str,
    options: Mapping[str, Any],
    num_ranks: int,
    nodes: Nodes | None = None,
    explained: Collection[int] = (),
    command: str | None = None,
) -> int:
    """Run ranks, print a summary of failures, and return their exit code.

    Args:
        module: name of a module of `hocket.cli` that takes the options as its argument.
        options: options of the module.
        num_ranks: number of ranks on this host.
        nodes: the hosts; None: this host alone.
        explained: exit codes that a rank explains itself; they get no summary.
        command: such as "hocket train": it tells in one line that it was interrupted, or that a rank has found bad
            input, with exit code 2, or a port that is taken. None: every failure gets a summary.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # inherited by the ranks: one thread each
    result = run_job(runner_command(["-m", f"hocket.cli.{module}", json.dumps(options)]), num_ranks, nodes=nodes)
    if command is not None and (line := _line_of(result)) and not os.environ.get("HOCKET_TRACEBACK"):
        print(f"{command}: {line}", file=sys.stderr)
        return _exit_code_of(result)
    if result.exit_code not in explained:
        sys.stderr.write(summarise(result))
    return result.exit_code


def result_of_ranks(
    module: str, options: Mapping[str, Any], num_ranks: int, command: str | None = None
) -> tuple[int, Any]:
    """Run ranks that write a result as JSON into ``options["output"]``; return their exit code and the result.

    Args:
        module, options, num_ranks, command: as for `run_ranks`.
    """
    with tempfile.TemporaryDirectory(prefix="hocket-ranks-") as folder:
        output = Path(folder) / "result.json"
        exit_code = run_ranks(module, {**options, "output": str(output)}, num_ranks, command=command)
        return exit_code, None if exit_code else json.loads(output.read_text())


def _line_of(result: JobResult) -> str:
    """Return what one line says as well as a summary; "" if a traceback may help, as in code of the user."""
    cause = result.first_cause
    report = None if cause is None else result.report_of(cause)
    if result.interrupted_by is not None and result.exit_code:
        is_expected = report is None or report.consequence or report.type_name == "KeyboardInterrupt"
        return f"interrupted by {signal.Signals(result.interrupted_by).name}" if is_expected else ""
    is_known = report is not None and report.type_name in (*_ERRORS_OF_INPUT, _TAKEN)
    if report is None or not is_known or not report.where.startswith(_OWN_FILES):
        return ""
    message = " ".join(report.message.split())
    return message if message.startswith("rank ") else f"rank {report.rank}: {message}"


def _exit_code_of(result: JobResult) -> int:
    """Return the exit code where `_line_of` returns a line."""
    cause = result.first_cause
    report = None if cause is None else result.report_of(cause)
    is_input = result.interrupted_by is None and report is not None and report.type_name in _ERRORS_OF_INPUT
    return _BAD_INPUT if is_input else result.exit_code
