"""The choice between an exchange of hocket and Dask's tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from distributed import Client

from hocket.dask.costs import Estimates
from hocket.dask.gang import Gang, client_of, find_gang, left_to_dask
from hocket.errors import InvalidArgument, UnsupportedCall

Way = Literal["auto", "all_to_all", "dask"]
"""How an operation is done: "auto": by the way that is estimated to be the shorter one."""


@dataclass(frozen=True)
class ExchangeableOperation:
    """An operation on collections of Dask that can be done by an exchange.

    Args:
        name: of the function.
        obstacle: why the collections cannot be exchanged; None: they can.
        by_dask: the result, made by Dask when it is computed.
        exchange: makes the result by an exchange of a gang's workers that begin within some seconds.
        estimate: returns how long both ways would take in a gang.
    """

    name: str
    obstacle: str | None
    by_dask: Any
    exchange: Callable[[Gang, float], Any]
    estimate: Callable[[Gang], Estimates]

    def run(self, client: Client | None, way: Way, timeout_s: float) -> Any:
        """Return the result, or what Dask makes it of.

        Raises:
            InvalidArgument: there is no such way.
            UnsupportedCall: an exchange is asked for, but impossible; or the client is asynchronous.
            InvalidState: no cluster runs.
        """
        choice = self.choose(client, way)
        if choice.gang is not None:
            return self.exchange(choice.gang, timeout_s)
        if choice.is_forced:
            left_to_dask(self.name, choice.reason)
        return self.by_dask

    def choose(self, client: Client | None, way: Way = "auto") -> WayChoice:
        """Choose a way; see `run` for the errors."""
        if way not in get_args(Way):
            raise InvalidArgument(f"way must be one of {', '.join(get_args(Way))}, not {way!r:.80}")
        client = client_of(client)
        if way == "dask":
            return WayChoice(None, "asked for")
        gang = self.obstacle or find_gang(client)
        if isinstance(gang, str):
            if way == "all_to_all":
                raise UnsupportedCall(f"{self.name} by an all_to_all is impossible: {gang}")
            return WayChoice(None, gang, is_forced=True)
        if way == "all_to_all":
            return WayChoice(gang, "asked for")
        try:
            found = self.estimate(gang)
        except Exception as error:  # a worker is busy, or has ended: Dask can live with that
            why = f"the costs cannot be measured now: {type(error).__name__}: {error}"
            return WayChoice(None, why, is_forced=True)
        reason = f"{found.basis} {found.exchange_s:.2g} s by an exchange and {found.dask_s:.2g} s by Dask"
        return WayChoice(gang if found.exchange_s < found.dask_s else None, reason, found)


@dataclass(frozen=True)
class WayChoice:
    """A way that was chosen.

    Args:
        gang: the workers that exchange; None: Dask does it.
        reason: why.
        estimates: of both ways; None: nothing was to be estimated.
        is_forced: whether Dask does it because an exchange is impossible.
    """

    gang: Gang | None
    reason: str
    estimates: Estimates | None = None
    is_forced: bool = False
