"""Sends runs to a store, and asks it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from hocket.errors import AuthenticationError, InvalidArgument, PeerFailure, ResourceExhausted
from hocket.observe.store.arrow_batches import arrow_table, write_batch
from hocket.observe.store.run_tables import run_tables
from hocket.observe.store.segments import check_run_name

if TYPE_CHECKING:
    from hocket.observe.saved import ObservedRun

BATCH_ROWS = 65_536
_LATER = (429, 503)
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.05, 2.0
_LEAST_WAIT_S = 0.05
_REFUSED_S = 3.0
"""So long a store may take to start again."""


class StoreClient:
    """A connection to the owner of a store; a context manager, for one thread.

    Args:
        url: where the owner answers, such as ``"http://127.0.0.1:28080"``.
        token: of the store: what its file ``token`` says.
        timeout: seconds until an answer must have come; a request is tried again while the store is busy.

    Raises:
        InvalidArgument: the address is not valid.

    Examples:
        >>> from pathlib import Path
        >>> from queue import Queue
        >>> from threading import Event, Thread
        >>> from hocket import observe
        >>> end, urls = Event(), Queue()
        >>> options = {"port": 0, "on_ready": urls.put, "until": end}
        >>> owner = Thread(target=observe.serve_store, args=("asked",), kwargs=options)
        >>> owner.start()
        >>> _ = observe.record_run(["cat", "/etc/hostname"], "run-to-push")
        >>> with observe.StoreClient(urls.get(timeout=60), Path("asked/token").read_text().strip()) as client:
        ...     client.push(observe.open_run("run-to-push"), "cat")["processes"]
        ...     client.ask("/v1/runs/cat/questions/totals")["rows"][0][0]
        1
        'io'
        >>> end.set()
        >>> owner.join()
        >>> observe.query_stored("asked", "cat", "SELECT program FROM processes").rows
        (('cat /etc/hostname',),)
    """

    def __init__(self, url: str, token: str, *, timeout: float = 120.0) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme != "http" or not parts.hostname or port is None or parts.path.strip("/"):
            raise InvalidArgument(f"the address of a store must be as in http://127.0.0.1:28080, not {url!r:.100}")
        if not token.isascii() or not token.isprintable():
            raise InvalidArgument("a token has printable ASCII characters only")
        self._url, self._timeout = url, timeout
        self._headers = {"authorization": f"Bearer {token}"}
        self._connection = http.client.HTTPConnection(parts.hostname, port, timeout=timeout)

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, path: str, *, method: str = "GET", body: bytes = b"", **parameters: object) -> Any:
        """Return what the store answers, as JSON.

        Args:
            path: such as ``"/v1/runs"``.
            method, body: of the request. It may be sent more than once.
            parameters: of the request; those that are None are left out.

        Raises:
            AuthenticationError: the token is wrong.
            InvalidArgument: the store refuses the request; says why.
            PeerFailure: it cannot be reached within the time.
            ResourceExhausted: it is busy for longer than that.
        """
        chosen = {name: value for name, value in parameters.items() if value is not None}
        target = path + ("?" + urlencode(chosen) if chosen else "")
        status, content = self._asked(method, target, body)
        if status == 200:
            return content
        text = str(content.get("error", status) if isinstance(content, dict) else status)
        if status == 401:
            raise AuthenticationError(f"{self._url}: {text}")
        raise InvalidArgument(f"{self._url}{path}: {text}")

    def push(self, run: ObservedRun, name: str, *, sender: str = "push") -> dict[str, int]:
        """Send the tables of a run; what the store already has is not sent again.

        Args:
            run: from `open_run`, as the program has ended.
            name: of the run in the store.
            sender: who sends it.

        Returns:
            The number of rows of each table that were sent now; 0: the store had been sent them before.

        Raises:
            InvalidArgument: the store refuses them; says why.
            PeerFailure, ResourceExhausted, AuthenticationError: as of `ask`.
        """
        check_run_name(name)
        check_run_name(sender)
        described = {"began_unix_s": run.description.began_s, "command": list(run.description.command)}
        place = f"/v1/runs/{quote(name, safe='')}"
        self.ask(place, method="PUT", body=json.dumps(described).encode())
        counts = {}
        for table, columns in run_tables(run).items():
            rows = arrow_table(table, columns)
            next_row = self.ask(f"{place}/senders/{quote(sender, safe='')}/{table}")["next_row"]
            for first in range(next_row, rows.num_rows, BATCH_ROWS):
                body = write_batch(rows.slice(first, BATCH_ROWS))
                self.ask(f"{place}/tables/{table}/rows", method="POST", body=body, sender=sender, first_row=first)
            counts[table] = max(rows.num_rows - next_row, 0)
        return counts

    def _asked(self, method: str, target: str, body: bytes) -> tuple[int, Any]:
        began_s, pause = monotonic(), _FIRST_PAUSE_S
        deadline = began_s + self._timeout
        while True:
            with self._reconnecting() as failure:
                self._connection.timeout = max(deadline - monotonic(), _LEAST_WAIT_S)
                if self._connection.sock is not None:
                    self._connection.sock.settimeout(self._connection.timeout)
                self._connection.request(method, target, body or None, self._headers)
                response = self._connection.getresponse()
                text = response.read()
                if response.status not in _LATER:
                    is_json = response.headers.get_content_type() == "application/json"
                    return response.status, json.loads(text) if is_json else {}
            if failure and isinstance(failure[0], ConnectionRefusedError):  # nobody listens there
                deadline = min(deadline, began_s + _REFUSED_S)
            if monotonic() + pause > deadline:
                if failure:
                    waited_s = monotonic() - began_s
                    raise PeerFailure(f"{self._url} could not be reached for {waited_s:.1f} s: {failure[0]}")
                raise ResourceExhausted(f"{self._url} was busy for {self._timeout:g} s: {text[:200].decode()}")
            sleep(pause)
            pause = min(2 * pause, _MOST_PAUSE_S)

    @contextmanager
    def _reconnecting(self) -> Iterator[list[Exception]]:
        """A connection that failed is made again by the next request."""
        failure: list[Exception] = []
        try:
            yield failure
        except (OSError, http.client.HTTPException, ValueError) as error:
            failure.append(error)
            self._connection.close()
