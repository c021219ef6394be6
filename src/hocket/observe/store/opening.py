"""Opens a store, wherever its rows are."""

from __future__ import annotations

from pathlib import Path

from hocket.observe.store.clickhouse.address import is_clickhouse, parse_address
from hocket.observe.store.interface import RunStore
from hocket.observe.store.owner import Retention, StoreOwner


def open_store(place: str | Path, retention: Retention | None = None) -> RunStore:
    """Own a store until it is closed.

    Args:
        place: its folder, or an address as of `parse_address`.
        retention: what is removed when.

    Raises:
        AuthenticationError, PeerFailure: ClickHouse refuses the password, or cannot be reached.
        InvalidArgument: the place is neither.
        InvalidState: another process owns the store; names it.
        MissingPackage: a package that the store needs is not installed.
        RecorderError: the store is of another version; names both.
    """
    if isinstance(place, str) and is_clickhouse(place):
        from hocket.observe.store.clickhouse.owner import ClickHouseOwner

        return ClickHouseOwner(parse_address(place), retention=retention)
    return StoreOwner(place, retention=retention)
