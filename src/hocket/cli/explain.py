"""`hocket explain`: print which backend would carry an operation, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hocket import _native
from hocket.backends import backends_among, find_backends
from hocket.cli._completions import operations
from hocket.cli._output import AsJson
from hocket.cli._sizes import read_size
from hocket.cli._verbs import add_verb, argument, optional
from hocket.comm.policy import CHOOSABLE, Explanation, Group, Policy, dtype_class, format_nbytes
from hocket.errors import InvalidArgument
from hocket.session.schedules import LazySchedules
from hocket.suggestions import check_known
from hocket.tune.find import find_table, foreign_table
from hocket.tune.machine import this_machine
from hocket.tune.model import ModelPolicy, links_for
from hocket.tune.policy import TablePolicy
from hocket.tune.table import load_table

_SIZES = [4**power for power in range(1, 14)]  # 4 B to 64 MiB


def register(application: typer.Typer) -> None:
    """Add the verb to the command."""
    add_verb(application, explain)


def explain(
    op: Annotated[
        str,
        argument(metavar="OPERATION", help=f"Operation: {', '.join(CHOOSABLE)}.", autocompletion=operations),
    ],
    size: Annotated[
        str | None,
        argument(
            metavar="SIZE",
            help="Size of the array, or of one block for gathers and exchanges. Default: a line for each of 13 sizes.",
        ),
    ] = None,
    num_ranks: Annotated[int, typer.Option("-n", "--num-ranks", metavar="N", help="Ranks of the communicator.")] = 2,
    num_hosts: Annotated[int, typer.Option("--hosts", metavar="N", help="Number of hosts of the ranks.")] = 1,
    dtype: Annotated[str, typer.Option(metavar="TYPE", help="Type of the elements.")] = "float32",
    table: Annotated[Path | None, optional(metavar="TABLE", help="File of a table. Default: the user's.")] = None,
    as_json: AsJson = False,
) -> int:
    """Print which backend would carry an operation, why, and which one is second.

    Reads the table that `hocket tune run` wrote; without a table, a model decides. In a program, comm.explain() returns
    the same for its communicator.

    Examples:
      hocket explain all_reduce
      hocket explain all_reduce 1MiB
      hocket explain all_to_all 64KiB -n 4 --dtype bfloat16 --json
    """
    check_known("operation", op, CHOOSABLE)
    check_known("type", dtype, _native.DTYPE_NAMES)
    if num_ranks < 1:
        raise InvalidArgument(f"-n must be 1 or more, not {num_ranks}")
    if not 1 <= num_hosts <= num_ranks:
        raise InvalidArgument(f"--hosts must be from 1 to the number of ranks ({num_ranks}), not {num_hosts}")
    policy: Policy = ModelPolicy()
    common = {"shm", *backends_among(None)}
    backends = [name for name in links_for(num_hosts) if name in common]
    if (path := table or find_table(num_hosts)) is not None:
        loaded = load_table(path)
        # As in hocket.init, but without the libraries' versions, which only init knows.
        difference = None if table else this_machine({}, num_hosts).difference(loaded.machine, carries_over=True)
        policy = TablePolicy(loaded) if difference is None else foreign_table(path, difference)
        backends = list(loaded.machine.backends)
    refused = {name: why for name in backends if (why := _why_not_here(name)) is not None}
    backends = [name for name in backends if name not in refused] or ["shm"]
    group = Group(num_ranks, backends, num_hosts)

    def explained(nbytes: int) -> Explanation:
        reason, candidates = policy.explain(group, op, dtype_class(op, dtype), nbytes)
        candidates = LazySchedules().complete_candidates(candidates, op, nbytes, group, policy)
        return Explanation(op, nbytes, dtype, num_ranks, candidates[0].carrier, reason, tuple(candidates), refused)

    if size is not None or op == "barrier":
        explanation = explained(read_size(size or "0"))
        print(json.dumps(asdict(explanation)) if as_json else explanation)
        return 0
    explanations = [explained(nbytes) for nbytes in _SIZES]
    if as_json:
        print(json.dumps({"explanations": [asdict(each) for each in explanations]}))
    else:
        _print_sizes(explanations)
    return 0


def _print_sizes(explanations: Sequence[Explanation]) -> None:
    """Print a line for each size with the fastest and the next one; and the reason wherever it changes."""
    first = explanations[0]
    print(f"{first.op} of {first.dtype} between {first.num_ranks} ranks, by size")
    reason = ""
    for each in explanations:
        if each.reason != reason:
            print(f"  why: {each.reason}")
            reason = each.reason
        best, *others = each.candidates
        print(f"  {format_nbytes(each.nbytes):>7}  {best}" + (f", then {others[0]}" if others else ""))
    for name, why in first.refused.items():
        print(f"  not {name}: {why}")


def _why_not_here(name: str) -> str | None:
    """Return why a backend, or one of a pair "a+b", is not available here; None if it is."""
    known = find_backends()
    for part in name.split("+"):
        if part not in known:  # shared memory, or a backend of another installation that a table names
            if part == "shm":
                continue
            return f"hocket has no backend {part!r} here"
        missing = known[part].requires.missing()
        if missing is not None:
            return missing
        # The check of torch itself takes longer than all others together.
        if "torch" not in known[part].requires.modules and (obstacle := known[part].find_obstacle()) is not None:
            return obstacle
    return None
