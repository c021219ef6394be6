"""What a shell completes where the name of something is expected; imported late, as a shell waits for it."""

from __future__ import annotations

from collections.abc import Iterable


def operations(incomplete: str) -> list[str]:
    """Of a communicator."""
    from hocket.comm.policy import CHOOSABLE

    return _beginning_with(incomplete, CHOOSABLE)


def benchmarks(incomplete: str) -> list[str]:
    """Of `hocket bench run`, by themselves and in groups."""
    from hocket.bench import registry

    found = registry.benchmarks()
    groups = {each.family.replace(" ", "-") for each in found.values()}
    return _beginning_with(incomplete, [*found, *sorted(groups), "omb-py", "all"])


def collectives(incomplete: str) -> list[str]:
    """That there are schedules of."""
    from hocket.collectives.semantics import SEMANTICS

    return _beginning_with(incomplete, SEMANTICS)


def pipelines(incomplete: str) -> list[str]:
    """Schedules of pipelines."""
    from hocket.pipeline import recipes

    return _beginning_with(incomplete, [each.name for each in recipes()])


def _beginning_with(incomplete: str, names: Iterable[str]) -> list[str]:
    return [each for each in names if each.startswith(incomplete)]
