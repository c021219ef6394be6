"""A ClickHouse server as the store asks it: every call has a deadline, and its errors are ours."""

from __future__ import annotations

import itertools
import logging
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hocket.errors import (
    AuthenticationError,
    InvalidArgument,
    MissingPackage,
    PeerFailure,
    QueryTimeout,
    ResourceExhausted,
)
from hocket.observe.store.clickhouse.address import PASSWORD_VARIABLE, ClickHouseAddress
from hocket.observe.store.connection import QueryResult

if TYPE_CHECKING:
    import pyarrow as pa

INSERT_S = 15.0
"""The server ends an insert that takes longer."""
QUERY_S = 30.0
_REMOVE_S = 120.0
_CONNECT_S, _FIRST_ANSWER_S = 4, 5
_SPARE_S = 5.0
_WAITS_S = (20, 35)
"""A client waits so long for an answer: the one is taken that waits a little longer than the server may take."""
_MOST_MEMORY_NBYTES = 2 << 30
_MOST_ERROR = 600
_NOT_AUTHENTICATED = (192, 193, 194, 516)
_TIMED_OUT = (159, 160)
_BUSY = (
    202,  # too many queries at once
    203, 209, 210, 216,  # no free connection, socket timeout, network error, the same query still runs
    236, 241, 242, 243, 252,  # it ends, no memory, read only for now, disk full, too many parts
)  # fmt: skip
_WHOLE = {
    # An insert is one block, hence one part: all of its rows are there, or none.
    "async_insert": 0, "min_insert_block_size_rows": 1 << 31, "min_insert_block_size_bytes": 0,
    "input_format_parallel_parsing": 0, "insert_deduplicate": 1, "max_execution_time": INSERT_S,
}  # fmt: skip
_READING = {
    # What has no rows is unknown, as in DuckDB; names that a query gives to queries hold in all parts of it.
    "join_use_nulls": 1, "aggregate_functions_null_for_empty": 1, "enable_global_with_statement": 1,
    "prefer_column_name_to_alias": 0, "select_sequential_consistency": 1,
}  # fmt: skip


class ClickHouseServer:
    """A server, for all threads.

    Args:
        address: of it.
        owner: name of whoever asks, by which its inserts are found among the processes of the server.
        most_timeout_s: some query may take so long.

    Raises:
        AuthenticationError: the server does not know the user, or the password is wrong.
        MissingPackage: `clickhouse_connect` is not installed.
        PeerFailure: the server cannot be reached.
    """

    def __init__(self, address: ClickHouseAddress, owner: str, *, most_timeout_s: float = _REMOVE_S) -> None:
        self._address, self._owner = address, owner
        self._numbers = itertools.count()
        with self._translated(QUERY_S):
            connect(address, _FIRST_ANSWER_S).close()  # a server that is stuck is told soon
            waits_s = sorted({*_WAITS_S, math.ceil(max(most_timeout_s, _REMOVE_S) + _SPARE_S)})
            self._clients = [(seconds, connect(address, seconds)) for seconds in waits_s]

    def close(self) -> None:
        """Close its connections."""
        for _, client in self._clients:
            client.close()

    def ask(
        self, sql: str, parameters: Mapping[str, object] | None = None, *, timeout: float = QUERY_S,
        settings: Mapping[str, object] | None = None,
    ) -> QueryResult:  # fmt: skip
        """Return the answer to a query that reads.

        Args:
            sql: with parameters as in ``{run:String}``.
            parameters: their values.
            timeout: seconds after which the server stops.
            settings: further settings of ClickHouse.

        Raises:
            InvalidArgument: the server refuses it.
            PeerFailure: the server cannot be reached.
            QueryTimeout: it took longer.
            ResourceExhausted: the server has too much to do.
        """
        limits = {"readonly": 2, "max_execution_time": timeout, "max_memory_usage": _MOST_MEMORY_NBYTES}
        chosen = {**_READING, **limits, **(settings or {})}
        with self._translated(timeout):
            client, values = self._client(timeout), dict(parameters or {})
            result = client.query(sql, parameters=values, settings=chosen)
            if not (columns := tuple(result.column_names)):  # an answer without rows does not name them
                named = client.query(f"SELECT * FROM ({sql}) LIMIT 0", parameters=values, settings=chosen)
                columns = tuple(named.column_names)
            return QueryResult(columns, tuple(map(tuple, result.result_rows)))

    def batches(self, sql: str, parameters: Mapping[str, object], timeout: float) -> Iterator[pa.RecordBatch]:
        """Return the answer to a query part by part, as Arrow has it; errors are those of `ask`."""
        limits = {"readonly": 2, "max_execution_time": timeout, "max_memory_usage": _MOST_MEMORY_NBYTES}
        with (
            self._translated(timeout),
            self._client(timeout).query_arrow_stream(sql, parameters=dict(parameters), settings=limits) as stream,
        ):
            yield from stream

    def do(self, sql: str, parameters: Mapping[str, object] | None = None, *, timeout: float = INSERT_S) -> None:
        """Have the server do something; errors are those of `ask`."""
        limits = {"max_execution_time": timeout}
        with self._translated(timeout):
            self._client(timeout).command(sql, parameters=dict(parameters or {}), settings=limits)

    def remove(self, table: str, condition: str, parameters: Mapping[str, object]) -> None:
        """Remove the rows of a table for which a condition holds; errors are those of `ask`."""
        sql = f"DELETE FROM {self._address.database}.{table} WHERE {condition}"
        self.do(sql, parameters, timeout=_REMOVE_S)

    def insert(self, table: str, rows: pa.Table, token: str) -> None:
        """Insert rows: all of them, or none; errors are those of `ask`.

        Args:
            table: of the database.
            rows: for some or all of its columns.
            token: the server leaves out rows that it was given before with this token.
        """
        settings = {
            **_WHOLE, "insert_deduplication_token": token, "query_id": f"{self._owner}-{next(self._numbers)}"
        }  # fmt: skip
        with self._translated(INSERT_S):
            self._client(INSERT_S).insert_arrow(table, rows, database=self._address.database, settings=settings)

    def _client(self, timeout: float) -> Any:
        return next(
            (client for seconds, client in self._clients if timeout + _SPARE_S <= seconds), self._clients[-1][1]
        )

    @contextmanager
    def _translated(self, timeout: float) -> Iterator[None]:
        errors, transport = _errors()
        try:
            yield
        except errors.Error as error:
            raise self._ours(error, timeout) from None
        except (transport, OSError) as error:  # in the middle of an answer
            raise PeerFailure(f"{self._address.shown} was lost: {_shortened(error)}") from None

    def _ours(self, error: Any, timeout: float) -> Exception:
        code, text, shown = getattr(error, "code", None), _shortened(error), self._address.shown
        if code is None and (found := re.search(r"Code: (\d+)", str(error))):
            code = int(found[1])
        if code in _NOT_AUTHENTICATED:
            return AuthenticationError(f"{shown} refuses the user or the password, which {PASSWORD_VARIABLE} can have")
        if code in _TIMED_OUT:
            return QueryTimeout(f"the query took longer than {timeout:g} s: narrow it, or allow more")
        if code in _BUSY:
            return ResourceExhausted(f"{shown} cannot do it now: {text}")
        if code is None:
            return PeerFailure(f"{shown} cannot be reached: {text}")
        return InvalidArgument(f"the query failed: {text}")


def connect(address: ClickHouseAddress, timeout: int) -> Any:
    """Return a client of `clickhouse_connect`.

    Args:
        address: of the server.
        timeout: seconds that it waits for an answer.

    Raises:
        MissingPackage: it is not installed.
    """
    clickhouse_connect = _module()
    logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)  # what fails is raised
    return clickhouse_connect.get_client(
        host=address.host, port=address.port, username=address.user, password=address.password,
        interface="https" if address.is_secure else "http", connect_timeout=_CONNECT_S, send_receive_timeout=timeout,
        query_retries=0, compress=False, autogenerate_session_id=False, client_name="hocket",
    )  # fmt: skip


def _module() -> Any:
    try:
        import clickhouse_connect
    except ImportError:
        raise MissingPackage("a store in ClickHouse needs: pip install 'hocket[clickhouse,store]'") from None
    return clickhouse_connect


def _errors() -> tuple[Any, type[Exception]]:
    _module()
    from clickhouse_connect.driver import exceptions
    from urllib3.exceptions import HTTPError

    return exceptions, HTTPError


def _shortened(error: Exception) -> str:
    """What an error says, in one line, without what is ours."""
    text = " ".join(str(error).split())
    if found := re.search(r"\[Errno -?\d+\] [^\"'()]*|[Tt]imed out|CERTIFICATE[^\"']*", text):
        return found[0]
    text = re.sub(r"^Received ClickHouse exception, code: \d+, server response: (Code: \d+\. )?", "", text)
    return re.sub(r" \(for url [^)]*\)$", "", text)[:_MOST_ERROR]
