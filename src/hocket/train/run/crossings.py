"""The actions of a table that receive values or gradients of other stages, as their kinds declare."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from hocket.pipeline.kind import CROSSINGS, Crossing, Kind, kinds


@dataclass(frozen=True)
class Crossings:
    """What the kinds of a table's actions receive and send.

    Args:
        taken: for each kind, whether it takes outputs of forward passes (False), gradients of them (True), or both.
        are_sends_named: whether the table has actions that send outputs of forward passes, and actions that send
            gradients; without such actions, the action that computes a value sends it.
        receives: kinds that only receive.
    """

    taken: Mapping[str, tuple[bool, ...]]
    are_sends_named: tuple[bool, bool]
    receives: frozenset[str]

    def is_receive(self, kind: str) -> bool:
        """Return whether actions of a kind only receive a message."""
        return kind in self.receives


def crossings_of(names: Iterable[str]) -> Crossings:
    """Return what the kinds with these names receive and send in one table."""
    by_name = {name: kinds()[name] for name in names}
    messages = {(kind.message, kind.carries) for kind in by_name.values()}
    return Crossings(
        {
            name: tuple(carried == "gradient" for carried in CROSSINGS if _takes(kind, carried, messages))
            for name, kind in by_name.items()
        },
        (("send", "activation") in messages, ("send", "gradient") in messages),
        frozenset(name for name, kind in by_name.items() if kind.message == "receive"),
    )


def _takes(kind: Kind, carried: Crossing, messages: Collection[tuple[object, object]]) -> bool:
    if kind.message is not None:
        return kind.message == "receive" and kind.carries == carried
    waits_for_it = any(need.carries == carried for need in kind.needs)
    return waits_for_it and ("receive", carried) not in messages
