"""How an exchange of gradients ends: closed twice, by Ctrl-C, or with the communicator, it waits for nobody in vain."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hocket as hk
from hocket.comm import Communicator
from hocket.errors import HocketError
from hocket.train import GradientExchange, gradient_engines

from .engine_ranks import UPDATING

pytest.importorskip("grpc")
pytestmark = [pytest.mark.timeout(200), pytest.mark.own_ranks]
ENGINES = sorted(gradient_engines())
LIMIT_S = 40.0
"""None of this takes a second; a wait for a rank that does not come would take `TIMEOUT_S`."""
TIMEOUT_S = 100.0


class Trained:
    """A model, its optimizer, and an exchange of gradients."""

    def __init__(self, comm: Communicator, engine: str) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        options: dict[str, Any] = {"optimizer": self.optimizer} if engine in UPDATING else {}
        self.exchange = GradientExchange(self.model, comm, engine, timeout=TIMEOUT_S, **options)
        client = getattr(self.exchange.engine, "_client", None)
        if client is not None:
            client._close_s = TIMEOUT_S
        self.step()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(2, 4)).sum().backward()
        self.optimizer.step()


def close_twice(comm: Communicator, engine: str) -> str:
    trained = Trained(comm, engine)
    trained.exchange.close()
    trained.exchange.close()
    trained.step()  # its gradients stay on this rank
    with trained.exchange:
        pass
    return "closed"


def interrupt(comm: Communicator, engine: str) -> str:
    """Let Ctrl-C come to rank 0 while it waits for rank 1, which comes only afterwards."""
    word = np.zeros(1, np.int64)
    trained = Trained(comm, engine)
    if comm.rank == 1:
        comm.recv(word, 0)
        try:
            with trained.exchange:
                trained.step()
        except HocketError:
            pass
        return "came later"
    began_s = time.monotonic()
    try:
        with trained.exchange:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            trained.step()
            trained.exchange.close()
            while True:
                time.sleep(0.01)
    except KeyboardInterrupt:
        seconds = time.monotonic() - began_s
    comm.send(word, 1)
    return "interrupted" if seconds < LIMIT_S else f"interrupted after {seconds:.0f} s"


def finalize(comm: Communicator, engine: str) -> str:
    """Finalize the communicator that an exchange has; an engine that sums can be closed afterwards."""
    comm = comm.dup()
    trained = Trained(comm, engine)
    began_s = time.monotonic()
    comm.finalize()
    try:
        trained.exchange.close()
    except HocketError:
        assert engine in UPDATING  # it would bring the last parameters
    seconds = time.monotonic() - began_s
    return "finalized" if seconds < LIMIT_S else f"finalized after {seconds:.0f} s"


def ends(comm: Communicator) -> dict[str, list[str]]:
    return {engine: [end(comm, engine) for end in (close_twice, interrupt, finalize)] for engine in ENGINES}


def test_an_exchange_ends_without_the_others() -> None:
    first, second = hk.spawn(ends, 2, timeout=TIMEOUT_S)
    for engine in ENGINES:
        assert (engine, *first[engine]) == (engine, "closed", "interrupted", "finalized")
        assert (engine, *second[engine]) == (engine, "closed", "came later", "finalized")
