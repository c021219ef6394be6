"""Run the ranks of a verb: each rank runs a module of the command, with the verb's options as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hocket.boot.launcher import run_job
from hocket.boot.nodes import Nodes
from hocket.boot.rank_process import runner_command
from hocket.boot.summary import summarise


def run_ranks(
    module: str,
    options: Mapping[str, Any],
    num_ranks: int,
    nodes: Nodes | None = None,
    explained: Collection[int] = (),
) -> int:
    """Run ranks, print a summary of failures, and return their exit code.

    Args:
        module: name of a module of `hocket.cli` that takes the options as its argument.
        options: options of the module.
        num_ranks: number of ranks on this host.
        nodes: the hosts; None: this host alone.
        explained: exit codes that a rank explains itself; they get no summary.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # inherited by the ranks: one thread each
    result = run_job(runner_command(["-m", f"hocket.cli.{module}", json.dumps(options)]), num_ranks, nodes=nodes)
    if result.exit_code not in explained:
        sys.stderr.write(summarise(result))
    return result.exit_code


def result_of_ranks(module: str, options: Mapping[str, Any], num_ranks: int) -> tuple[int, Any]:
    """Run ranks that write a result as JSON into ``options["output"]``; return their exit code and the result."""
    with tempfile.TemporaryDirectory(prefix="hocket-ranks-") as folder:
        output = Path(folder) / "result.json"
        exit_code = run_ranks(module, {**options, "output": str(output)}, num_ranks)
        return exit_code, None if exit_code else json.loads(output.read_text())
