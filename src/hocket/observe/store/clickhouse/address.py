"""The address of a store in ClickHouse, as the command and `serve_store` take it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hocket.errors import InvalidArgument

PASSWORD_VARIABLE = "HOCKET_CLICKHOUSE_PASSWORD"
SCHEMES = {"clickhouse": 8123, "clickhouses": 8443}
"""Schemes of addresses, the second one for TLS, and the ports that ClickHouse has for them."""
WANTED = "clickhouse://USER@HOST:8123/DATABASE"
_DATABASE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,255}")


@dataclass(frozen=True)
class ClickHouseAddress:
    """Where a database is, and who asks it.

    Args:
        host, port: of the server's HTTP interface.
        user: of ClickHouse.
        password: of the user; never shown.
        database: its name, which needs no quotes.
        is_secure: whether it is reached by TLS.
    """

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    is_secure: bool

    @property
    def shown(self) -> str:
        """The address without the password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"clickhouse{'s' * self.is_secure}://{self.user}@{host}:{self.port}/{self.database}"

    @property
    def folder(self) -> Path:
        """A folder of this user for what is kept on this host: the token and the address of the server."""
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        host = self.host.replace(":", ".")
        return Path(state) / "hocket" / "stores" / f"{host}-{self.port}-{self.database}"


def is_clickhouse(place: str) -> bool:
    """Return whether a store is named by an address of ClickHouse, valid or not, and not by a folder."""
    return re.match(r"clickhouses?:", place) is not None


def parse_address(text: str) -> ClickHouseAddress:
    """Return what an address says.

    The password may be in the environment variable HOCKET_CLICKHOUSE_PASSWORD instead, where the list of processes does
    not show it.

    Args:
        text: such as ``clickhouse://user@host:8123/runs``.

    Raises:
        InvalidArgument: it is not valid; names the part that is wrong, never the password.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise InvalidArgument(f"the address of ClickHouse must be as in {WANTED}: its host or port is wrong") from None
    if parts.scheme not in SCHEMES:
        raise InvalidArgument(f"an address of ClickHouse begins with {' or '.join(SCHEMES)}, as in {WANTED}")
    host, database = parts.hostname or "", parts.path.removeprefix("/")
    if not _HOST.fullmatch(host):
        raise InvalidArgument(f"the address of ClickHouse must be as in {WANTED}: its host is {host!r:.80}")
    if not _DATABASE.fullmatch(database):
        raise InvalidArgument(f"a database is named by letters, digits and _, as in {WANTED}, not {database!r:.80}")
    if parts.query or parts.fragment:
        raise InvalidArgument(f"the address of ClickHouse has neither ? nor #: it must be as in {WANTED}")
    password = unquote(parts.password) if parts.password is not None else os.environ.get(PASSWORD_VARIABLE, "")
    return ClickHouseAddress(
        host=host,
        port=SCHEMES[parts.scheme] if port is None else port,
        user=unquote(parts.username or "") or "default",
        password=password,
        database=database,
        is_secure=parts.scheme == "clickhouses",
    )
