"""The thread of a rank that takes the other ranks' gradients for the server that this rank has started."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hocket.comm import Communicator
from hocket.train.engines.servers.client import ServerClient

_FOREVER_S = 1e9
_PAUSE_S = 0.0002
"""Between two looks, while nothing happens."""


class Relay:
    """Receives gradients by a library into memory that the server reads, tells the server, and sends the sums.

    Args:
        comm: a communicator of all ranks; only this thread uses it on this rank.
        client: this rank's calls of the servers.
        parcels: numbers of the server's parcels.
        arrays: of each other rank, the memory for each parcel.
        sums: the server's memory for each parcel.
        how: arguments of messages.
    """

    def __init__(
        self,
        comm: Communicator,
        client: ServerClient,
        parcels: Sequence[int],
        arrays: Mapping[int, Sequence[torch.Tensor]],
        sums: Sequence[torch.Tensor],
        how: Mapping[str, Any],
    ) -> None:
        self._comm, self._client, self._parcels = comm, client, list(parcels)
        self._arrays, self._sums, self._how = arrays, sums, dict(how)
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="hocket server relay", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread soon; its communicator is left next."""
        self._is_stopped = True

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        keys = [(rank, place) for place in self._parcels for rank in self._arrays]
        steps = dict.fromkeys(keys, 0)
        coming = {key: self._receive(*key) for key in keys}
        told: dict[tuple[int, int], Any] = {}
        sent: dict[tuple[int, int], Any] = {}
        try:
            while not self._is_stopped:
                is_idle = True
                for key in [key for key, work in coming.items() if work.test()]:
                    is_idle = False
                    del coming[key]
                    rank, place = key
                    told[key] = self._client.tell_arrival(rank, place, steps[key])
                for key in [key for key, call in told.items() if call.done()]:
                    is_idle = False
                    rank, place = key
                    self._client.check_arrival(place, steps[key], told.pop(key))
                    if key in sent:
                        sent.pop(key).wait(timeout=self._how["timeout"])
                    sent[key] = self._comm.isend(self._sums[place], rank, tag=2 * place + 1, **self._how)
                    steps[key] += 1
                    coming[key] = self._receive(*key)
                if is_idle:
                    time.sleep(_PAUSE_S)
        except self._client.RpcError:
            pass  # the server is gone, as this rank's own calls see
        except Exception as error:
            if not self._is_stopped:
                self._client.fail(error)

    def _receive(self, rank: int, place: int) -> Any:
        # A rank may train for long before its next gradients; whoever waits for them has a timeout.
        return self._comm.irecv(self._arrays[rank][place], rank, tag=2 * place, **{**self._how, "timeout": _FOREVER_S})
