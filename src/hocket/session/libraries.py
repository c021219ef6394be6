"""Brings up the libraries of a job, so that every rank has the same ones or knows why not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hocket.backends import Backend, BackendJob, backends_among
from hocket.comm import Policy
from hocket.comm.fabric import describe_shared_memory
from hocket.comm.policy import DefaultPolicy
from hocket.comm.unavailable import NOT_ASKED_FOR
from hocket.errors import BackendUnavailable, HocketError, TableError, TableMismatch
from hocket.session.learning import is_learning_asked_for
from hocket.tune.find import automatic_policy, warn_of_foreign_table
from hocket.tune.machine import this_machine


@dataclass
class Libraries:
    """What came up, why the others did not, and how one is chosen."""

    up: list[Backend] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    policy: Policy = field(default_factory=DefaultPolicy)


def bring_up(job: BackendJob, wanted: Sequence[str] | None) -> Libraries:
    """Start libraries; called by all ranks of the job.

    Args:
        job: who they are for.
        wanted: names of those that have to be there; None: all that are worth it and can be had.

    Raises:
        BackendUnavailable: one asked for by name cannot be had on some rank; raised on all of them.
    """
    adapters = backends_among(wanted)
    if wanted is not None:
        wanted = [*wanted, *(part for name in wanted if "+" in name for part in name.split("+"))]
    obstacles = _exchange_reasons(
        job, {name: _find_obstacle(adapter, job, wanted) for name, adapter in adapters.items()}
    )
    libraries = Libraries()
    for name in adapters:  # before any is started
        if wanted is not None and name in wanted and obstacles[name] is not None:
            raise BackendUnavailable(f"backend {name!r} is not available: {obstacles[name]}")
    for name, adapter in adapters.items():
        reason = obstacles[name]
        if reason is None and (wanted is None or name in wanted):
            reason = _start(adapter, job, libraries)
        if reason is None:
            continue
        if wanted is not None and name in wanted:
            for library in reversed(libraries.up):
                library.close(is_broken=False)
            raise BackendUnavailable(f"backend {name!r} is not available: {reason}")
        libraries.left_out[name] = reason
    return libraries


def agree_on_policy(job: BackendJob, libraries: Libraries, num_hosts: int) -> Policy:
    """Settle what policy "auto" stands for; called by all ranks.

    Args:
        job: whose ranks agree.
        libraries: that are up.
        num_hosts: that the ranks are on.

    Raises:
        TableError: a rank's table is malformed; raised on all of them.
        TableMismatch: the ranks have different tables.
    """
    words = {"shm": describe_shared_memory()} | {each.name: each.description for each in libraries.up}
    policy: Policy | None = None
    failure: TableError | None = None
    try:
        policy, word = automatic_policy(this_machine(words, num_hosts))
    except TableError as error:
        failure, word = error, f"error {error}"
    if is_learning_asked_for():
        word += ", corrected while running (HOCKET_LEARN)"
    of_ranks = job.exchange(word)
    if failure is not None:
        raise failure
    errors = [each.removeprefix("error ") for each in of_ranks if each.startswith("error ")]
    if errors:
        raise TableError(errors[0])
    if len(set(of_ranks)) > 1:
        tables = "; ".join(f"rank {rank}: {each}" for rank, each in enumerate(of_ranks))
        raise TableMismatch(f"the ranks would choose backends by different tables: {tables}")
    assert policy is not None
    if job.rank == 0:
        warn_of_foreign_table(policy)
    return policy


def _find_obstacle(adapter: type[Backend], job: BackendJob, wanted: Sequence[str] | None) -> str | None:
    if wanted is not None and adapter.name not in wanted:
        return NOT_ASKED_FOR
    if wanted is None:
        reason = adapter.find_reason_against(job)
        if reason is not None:
            return reason
    reason = adapter.find_obstacle()
    if reason is not None:
        return reason
    try:
        adapter.prepare()
    except BackendUnavailable as error:
        return str(error)
    return None


def _start(adapter: type[Backend], job: BackendJob, libraries: Libraries) -> str | None:
    """Start one on all ranks, or on none; return why not."""
    library = None
    reason: str | None = None
    try:
        library = adapter.start(replace(job, up=tuple(libraries.up)))
    except HocketError as error:
        reason = f"{type(error).__name__}: {error}"
    reason = _exchange_reasons(job, {adapter.name: reason})[adapter.name]
    if library is not None and reason is None:
        libraries.up.append(library)
    elif library is not None:
        library.close(is_broken=True)
    return reason


def _exchange_reasons(job: BackendJob, reasons: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return for each name the reason of the first rank that has one."""
    of_ranks = [json.loads(text) for text in job.exchange(json.dumps(reasons))]
    joined: dict[str, str | None] = {}
    for name in reasons:
        found = [(rank, of_rank[name]) for rank, of_rank in enumerate(of_ranks) if of_rank[name] is not None]
        same = len({reason for _, reason in found}) == 1 and len(found) == job.size
        joined[name] = None if not found else found[0][1] if same else f"rank {found[0][0]}: {found[0][1]}"
    return joined
