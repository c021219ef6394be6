"""Start the libraries of a job: all ranks get the same ones, or the reason why one is missing."""

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
    """The libraries that started, why the others did not, and the policy that chooses between them."""

    started: list[Backend] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    policy: Policy = field(default_factory=DefaultPolicy)


def start_libraries(job: BackendJob, requested: Sequence[str] | None) -> Libraries:
    """Start libraries; called by all ranks of the job.

    Args:
        job: the job that uses them.
        requested: names of libraries that must start; None: start all that are useful and available.

    Raises:
        BackendUnavailable: a requested library is not available on some rank; raised on all ranks.
    """
    adapters = backends_among(requested)
    if requested is not None:
        requested = [*requested, *(part for name in requested if "+" in name for part in name.split("+"))]
    obstacles = _exchange_reasons(
        job, {name: _find_obstacle(adapter, job, requested) for name, adapter in adapters.items()}
    )
    libraries = Libraries()
    for name in adapters:  # before any starts
        if requested is not None and name in requested and obstacles[name] is not None:
            raise BackendUnavailable(f"backend {name!r} is not available: {obstacles[name]}")
    for name, adapter in adapters.items():
        reason = obstacles[name]
        if reason is None and (requested is None or name in requested):
            reason = _start(adapter, job, libraries)
        if reason is None:
            continue
        if requested is not None and name in requested:
            for library in reversed(libraries.started):
                library.close(is_broken=False)
            raise BackendUnavailable(f"backend {name!r} is not available: {reason}")
        libraries.left_out[name] = reason
    return libraries


def agree_on_policy(job: BackendJob, libraries: Libraries, num_hosts: int) -> Policy:
    """Return the policy that "auto" stands for; called by all ranks.

    Args:
        job: the job whose ranks agree.
        libraries: the started libraries.
        num_hosts: number of hosts of the ranks.

    Raises:
        TableError: the table of some rank is malformed; raised on all ranks.
        TableMismatch: the ranks have different tables.
    """
    descriptions = {"shm": describe_shared_memory()} | {each.name: each.description for each in libraries.started}
    policy: Policy | None = None
    failure: TableError | None = None
    try:
        policy, summary = automatic_policy(this_machine(descriptions, num_hosts))
    except TableError as error:
        failure, summary = error, f"error {error}"
    if is_learning_asked_for():
        summary += ", corrected while running (HOCKET_LEARN)"
    of_ranks = job.exchange(summary)
    if failure is not None:
        raise failure
    errors = [each.removeprefix("error ") for each in of_ranks if each.startswith("error ")]
    if errors:
        raise TableError(errors[0])
    if len(set(of_ranks)) > 1:
        tables = "; ".join(f"rank {rank}: {each}" for rank, each in enumerate(of_ranks))
        raise TableMismatch(f"the ranks have different tuning tables: {tables}")
    assert policy is not None
    if job.rank == 0:
        warn_of_foreign_table(policy)
    return policy


def _find_obstacle(adapter: type[Backend], job: BackendJob, requested: Sequence[str] | None) -> str | None:
    if requested is not None and adapter.name not in requested:
        return NOT_ASKED_FOR
    if requested is None:
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
    """Start a library on all ranks or on none; return None, or the reason."""
    library = None
    reason: str | None = None
    try:
        library = adapter.start(replace(job, up=tuple(libraries.started)))
    except HocketError as error:
        reason = f"{type(error).__name__}: {error}"
    reason = _exchange_reasons(job, {adapter.name: reason})[adapter.name]
    if library is not None and reason is None:
        libraries.started.append(library)
    elif library is not None:
        library.close(is_broken=True)
    return reason


def _exchange_reasons(job: BackendJob, reasons: Mapping[str, str | None]) -> dict[str, str | None]:
    """Exchange reasons between all ranks; return for each name the reason of the first rank that has one."""
    of_ranks = [json.loads(text) for text in job.exchange(json.dumps(reasons))]
    joined: dict[str, str | None] = {}
    for name in reasons:
        given = [(rank, of_rank[name]) for rank, of_rank in enumerate(of_ranks) if of_rank[name] is not None]
        same = len({reason for _, reason in given}) == 1 and len(given) == job.size
        joined[name] = None if not given else given[0][1] if same else f"rank {given[0][0]}: {given[0][1]}"
    return joined
