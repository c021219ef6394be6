"""The client's part of an exchange: one task on each worker of a host, all at the same time."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from distributed import Client, Lock, get_client, wait
from distributed.client import futures_of

from hocket.boot.joining import host_identity
from hocket.dask.exchange import Seat
from hocket.errors import CommTimeout, InvalidState, PeerFailure, UnsupportedCall

logger = logging.getLogger(__name__)
_LOCK = "hocket-exchange"
_NAME = "hocket-exchange"
"""Under which the scheduler keeps the name of a communicator."""
_LABEL = "hocket-exchange-"
PRIORITY = 1000
"""Of an exchange, and of what is compared with it: before the tasks of the program."""
_LOOK_S = 1.0


@dataclass(frozen=True)
class Gang:
    """Workers that can exchange: processes of one host.

    Args:
        client: of the cluster.
        workers: their addresses.
        pids: their processes: a worker that was restarted may have the same address.
    """

    client: Client
    workers: tuple[str, ...]
    pids: tuple[int, ...]

    def run(
        self,
        function: Callable[..., list[Any]],
        given: Mapping[str, Sequence[Any]],
        *arguments: Any,
        timeout_s: float,
    ) -> list[list[Any]]:
        """Call ``function(seat, values, *arguments)`` on each worker, at the same time; return what each has returned.

        Args:
            function: called by each worker with its seat, the values of its futures, and the arguments.
            given: for each worker the futures whose values it gets.
            arguments: the same for all.
            timeout_s: all workers must have begun within this time.

        Raises:
            PeerFailure: a worker has ended.
            CommTimeout: a worker was busy with other tasks for too long.
        """
        with self.client.as_current(), self._alone(timeout_s):
            self._drop_leftovers()
            name, run = self._take_name(), f"{_LABEL}{secrets.token_hex(8)}"
            tasks = [
                self.client.submit(
                    _take_part,
                    f"{run}-{rank}",
                    function,
                    Seat(name, rank, len(self.workers), timeout_s),
                    list(given[each]),
                    *arguments,
                    workers=[each],
                    pure=False,
                    priority=PRIORITY,
                )
                for rank, each in enumerate(self.workers)
            ]
            try:
                self._wait_for(tasks)
                names: list[Any] = [f"{run}-{rank}" for rank in range(len(tasks))]
                found: list[list[Any]] = self.client.get_dataset(names)
                # The scheduler answers for data of which it knows that this client wants them.
                wait([each for of_one in found for each in of_one], timeout_s)  # type: ignore[no-untyped-call]
                self._keep_name(name)
                return found
            except BaseException as error:
                self.client.cancel(tasks, force=True)  # type: ignore[no-untyped-call]
                lost = set(self.workers) - set(_addresses(self.client))
                if lost:
                    raise PeerFailure(f"a worker has ended during an exchange: {', '.join(sorted(lost))}") from error
                raise
            finally:
                for rank in range(len(tasks)):
                    if self.client.loop is not None:
                        self.client.loop.add_callback(_unpublish, self.client, f"{run}-{rank}")  # nobody waits for it

    def _take_name(self) -> str:
        """Return the name of the workers' communicator, which is kept for all clients as long as exchanges succeed.

        While one runs it is not kept: who ends in it leaves workers there.
        """
        kept = self.client.get_metadata([_NAME], default=None)  # type: ignore[no-untyped-call]
        self.client.set_metadata([_NAME], None)  # type: ignore[no-untyped-call]
        if isinstance(kept, dict) and [*kept.get("workers", ())] == self._identities():
            return str(kept.get("name"))
        return f"dask-{secrets.token_hex(8)}"

    def _keep_name(self, name: str) -> None:
        kept = {"workers": self._identities(), "name": name}
        self.client.set_metadata([_NAME], kept)  # type: ignore[no-untyped-call]

    def _identities(self) -> list[str]:
        return [f"{address} {pid}" for address, pid in zip(self.workers, self.pids, strict=True)]

    def _drop_leftovers(self) -> None:
        """Remove what a worker has published after its exchange failed; only one exchange runs at a time."""
        for label in self.client.list_datasets():  # type: ignore[no-untyped-call]
            if str(label).startswith(_LABEL):
                with suppress(KeyError):
                    self.client.unpublish_dataset(label)

    def _wait_for(self, tasks: Sequence[Any]) -> None:
        """Wait until all tasks have ended; raise the error of one that failed, and PeerFailure if a worker has ended.

        The scheduler keeps the task of a worker that has ended, and waits for a worker of that address.
        """
        left = list(tasks)
        while left:
            try:
                wait(left, _LOOK_S, return_when="FIRST_COMPLETED")  # type: ignore[no-untyped-call]
            except TimeoutError:
                lost = set(self.workers) - set(_addresses(self.client))
                if lost:
                    raise PeerFailure(f"a worker has ended: {', '.join(sorted(lost))}") from None
            for task in left:
                if task.status in ("error", "cancelled", "lost"):
                    task.result()
            left = [each for each in left if each.status != "finished"]

    @contextmanager
    def _alone(self, timeout_s: float) -> Iterator[None]:
        """Wait until no other exchange runs: of two at the same time, each could have half of the workers."""
        lock = Lock(_LOCK, scheduler_rpc=self.client.scheduler, loop=self.client.loop)  # type: ignore[no-untyped-call]
        if not lock.acquire(timeout=timeout_s):  # type: ignore[no-untyped-call]
            raise CommTimeout(f"another exchange of this cluster has not ended within {timeout_s:g} s")
        try:
            yield
        finally:
            lock.release()  # type: ignore[no-untyped-call]


def client_of(client: Client | None) -> Client:
    """Return the client to use.

    Args:
        client: of the caller; None: the one of this process.

    Raises:
        InvalidState: no client exists.
        UnsupportedCall: it is asynchronous.
    """
    if client is None:
        try:
            client = get_client()
        except ValueError:
            raise InvalidState("hocket.dask needs a running cluster: start a distributed.Client first") from None
    if client.asynchronous:
        raise UnsupportedCall("hocket.dask's functions wait for the workers: use a Client without asynchronous=True")
    return client


def find_gang(client: Client) -> Gang | str:
    """Return the workers of a cluster if they can exchange with each other; otherwise the reason."""
    workers = _addresses(client)
    if len(workers) < 2:
        return f"the cluster has {len(workers)} worker{'' if len(workers) == 1 else 's'}"
    try:
        found = client.run(_identify, on_error="raise")
    except ImportError as error:
        return f"a worker cannot import hocket: {error}"
    if len({host for host, _ in found.values()}) > 1:
        return "the workers are on several hosts"
    if len({pid for _, pid in found.values()}) < len(found):
        return "workers are threads of one process, which move no data"
    addresses = tuple(sorted(found))
    return Gang(client, addresses, tuple(found[each][1] for each in addresses))


def persisted(
    client: Client, collection: Any, timeout_s: float | None = None
) -> tuple[Any, dict[Any, Any], dict[Any, str]]:
    """Compute a collection on the workers; return it, its futures by key, and a worker that has each.

    Raises:
        Exception: of the task that failed.
        TimeoutError: it takes longer than `timeout_s`; None: it may take as long as the program's tasks do.
    """
    collection = client.persist(collection)  # type: ignore[no-untyped-call]
    futures = {each.key: each for each in futures_of(collection)}  # type: ignore[no-untyped-call]
    with client.as_current():
        wait(list(futures.values()), timeout_s)  # type: ignore[no-untyped-call]
    for each in futures.values():
        if each.status == "error":
            each.result()
    has = client.who_has(list(futures.values()))  # type: ignore[no-untyped-call]
    return collection, futures, {key: (has.get(key) or has.get(str(key)) or [""])[0] for key in futures}


@cache
def left_to_dask(operation: str, why: str) -> None:
    """Say once that Dask does an operation."""
    logger.warning("%s by Dask, not by hocket: %s", operation, why)


def _addresses(client: Client) -> list[str]:
    return list(client.scheduler_info(n_workers=-1)["workers"])


async def _unpublish(client: Client, label: str) -> None:
    with suppress(KeyError, OSError):
        await client.unpublish_dataset(label, asynchronous=True)


def _identify() -> tuple[str, int]:
    return host_identity(), os.getpid()


def _take_part(label: str, function: Callable[..., list[Any]], seat: Seat, values: list[Any], *arguments: Any) -> None:
    """Run one worker's part, and publish what it has made, which stays here: data that no task can make again."""
    client = get_client()
    futures = client.scatter(function(seat, values, *arguments), hash=False)  # type: ignore[no-untyped-call]
    client.publish_dataset(list(futures), name=label)
