"""The paths of tables, and the policy "auto"."""

from __future__ import annotations

import math
import os
import re
import warnings
from dataclasses import replace
from pathlib import Path

from hocket.comm.policy import Choices, DefaultPolicy, Group, Policy, RankedCarrier
from hocket.errors import InvalidArgument, TableError
from hocket.tune.machine import Machine
from hocket.tune.model import ModelPolicy
from hocket.tune.policy import TablePolicy
from hocket.tune.table import Table, load_table

_OF_HOSTS = re.compile(r"table-([1-9]\d*)-hosts\.json")


def default_path(num_hosts: int = 1) -> Path:
    """Return the table's path for `hocket tune run` and `hocket.init`: $HOCKET_TABLE, or one in the cache folder."""
    named = os.environ.get("HOCKET_TABLE")
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "hocket" / ("table.json" if num_hosts == 1 else f"table-{num_hosts}-hosts.json")


def find_table(num_hosts: int = 1) -> Path | None:
    """Return the path of the user's table, or None; for several hosts, that of the nearest number of hosts.

    Examples:
        >>> import os
        >>> from unittest import mock
        >>> with mock.patch.dict(os.environ, HOCKET_TABLE="table.json"):
        ...     print(hk.tune.find_table())
        table.json
    """
    if os.environ.get("HOCKET_TABLE"):
        return default_path(num_hosts)
    try:
        path = default_path(num_hosts)
        if path.exists() or num_hosts == 1:
            return path if path.exists() else None
        others = {int(found[1]): each for each in path.parent.iterdir() if (found := _OF_HOSTS.fullmatch(each.name))}
        return others[min(others, key=lambda each: (abs(math.log(each / num_hosts)), each))] if others else None
    except (OSError, RuntimeError):  # an unreadable cache folder, or no home
        return None


class PolicyByHosts(Policy):
    """One policy for communicators within a host, and another one across hosts."""

    def __init__(self, one_host: Policy, several_hosts: Policy) -> None:
        self.one_host = one_host
        self.several_hosts = several_hosts

    def identity(self, group: Group) -> dict[str, str]:
        return self._for(group).identity(group)

    def choices(self, group: Group) -> Choices:
        return self._for(group).choices(group)

    def explain(self, group: Group, op: str, dtypes: str, nbytes: int) -> tuple[str, list[RankedCarrier]]:
        return self._for(group).explain(group, op, dtypes, nbytes)

    def _for(self, group: Group) -> Policy:
        return self.one_host if group.num_hosts == 1 else self.several_hosts


def table_of(policy: Policy, num_hosts: int) -> Table | None:
    """Return the table by which a policy chooses on `num_hosts` hosts; None if it chooses by a model.

    Raises:
        InvalidArgument: the policy uses neither a table nor a model.
    """
    if isinstance(policy, PolicyByHosts):
        policy = policy.one_host if num_hosts == 1 else policy.several_hosts
    if isinstance(policy, TablePolicy):
        return policy.table
    if isinstance(policy, (ModelPolicy, DefaultPolicy)):
        return None
    raise InvalidArgument(f"policy must choose by a table or a model, whose choices can be corrected, not {policy!r}")


def automatic_policy(machine: Machine) -> tuple[Policy, str]:
    """Return the policy "auto", and a text that is equal on ranks with equal choices.

    Args:
        machine: the machine of this process.

    Raises:
        TableError: the user's table is malformed.

    Examples:
        >>> import os
        >>> from unittest import mock
        >>> machine = hk.tune.Machine("a processor", 2, 1, {"shm": "shared memory"})
        >>> hk.tune.save_table(hk.tune.Table(machine, rows=()), "table.json")
        >>> with mock.patch.dict(os.environ, HOCKET_TABLE="table.json"):
        ...     policy, word = hk.tune.automatic_policy(machine)
        >>> type(policy).__name__, word == hk.tune.load_table("table.json").hash
        ('TablePolicy', True)
    """
    policy, word = _policy_of_table(machine)
    if machine.num_hosts == 1:
        return policy, word
    one_host, one_word = _policy_of_table(replace(machine, num_hosts=1))
    return PolicyByHosts(one_host, policy), f"{word}; on one host: {one_word}"


def _policy_of_table(machine: Machine) -> tuple[Policy, str]:
    path = find_table(machine.num_hosts)
    if path is None:
        return ModelPolicy(), "no table"
    try:
        table = load_table(path)
    except TableError as error:
        if os.environ.get("HOCKET_TABLE"):
            raise TableError(f"HOCKET_TABLE={error}") from None
        raise
    difference = machine.difference(table.machine, carries_over=True)
    if difference is None:
        return TablePolicy(table), table.hash
    return foreign_table(path, difference), f"foreign table: {difference}"


def foreign_table(path: Path, difference: str) -> ModelPolicy:
    """Return the policy for a table of another machine: the model."""
    return ModelPolicy(f"{path} is of another machine: {difference}")


def warn_of_foreign_table(policy: Policy) -> None:
    """Warn that a table of another machine is not used."""
    if isinstance(policy, PolicyByHosts):
        policy = policy.several_hosts
    if isinstance(policy, ModelPolicy) and policy.reason != ModelPolicy().reason:
        warnings.warn(
            f"hocket: {policy.reason}; choosing by a model. `hocket tune run` measures a new one", stacklevel=3
        )
