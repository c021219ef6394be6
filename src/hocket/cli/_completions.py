"""Shell completions for names; imports are inside the functions, since the shell waits for them."""

from __future__ import annotations

from collections.abc import Iterable


def operations(incomplete: str) -> list[str]:
    """Return operations of a communicator."""
    from hocket.comm.policy import CHOOSABLE

    return _beginning_with(incomplete, CHOOSABLE)


def benchmarks(incomplete: str) -> list[str]:
    """Return benchmarks of `hocket bench run`, and their groups."""
    from hocket.bench import registry

    found = registry.benchmarks()
    groups = {each.family.replace(" ", "-") for each in found.values()}
    return _beginning_with(incomplete, [*found, *sorted(groups), "omb-py", "all"])


def collectives(incomplete: str) -> list[str]:
    """Return collectives that have schedules."""
    from hocket.collectives.semantics import SEMANTICS

    return _beginning_with(incomplete, SEMANTICS)


def pipelines(incomplete: str) -> list[str]:
    """Return pipeline schedules."""
    from hocket.pipeline import recipes

    return _beginning_with(incomplete, [each.name for each in recipes()])


def _beginning_with(incomplete: str, names: Iterable[str]) -> list[str]:
    return [each for each in names if each.startswith(incomplete)]
