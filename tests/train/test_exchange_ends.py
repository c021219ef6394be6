"""How an exchange of gradients ends: closed twice, by Ctrl-C, or with the communicator, it waits for nobody in vain."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hocket as hk
from hocket.comm import Communicator
from hocket.errors import HocketError
from hocket.train import GradientExchange, fit, gradient_engines

from .engine_ranks import UPDATING, refusal

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
    comm.barrier()  # servers that update answer each rank by itself: another one may still be in its step
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


def late(comm: Communicator) -> str:
    """Wait in vain for a rank that is late in the second step, or tell it that this one has given up."""
    word = np.zeros(1, np.int64)
    trained = Trained(comm, "fused")
    if comm.rank == 1:
        comm.recv(word, 0)
    trained.exchange.engine.timeout_s = 1.0
    kind, text = refusal(trained.step)
    trained.exchange.close()
    if comm.rank == 0:
        comm.send(word, 1)
    return f"{kind}: {text}"


def test_ranks_that_are_late_or_have_left_are_named() -> None:
    first, second = hk.spawn(late, 2, timeout=TIMEOUT_S)
    assert first.startswith("CommTimeout: rank 1 ")
    assert second.startswith("Aborted: rank 0 ")


def a_stage(comm: Communicator) -> list[str]:
    """Train a model of which each rank has a part, with an engine that has no copies to sum."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = (torch.ones(8, 4), torch.zeros(8, dtype=torch.int64))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for engine in ("mix", "ring"):
            fit(model, data, loss=nn.functional.cross_entropy, optimizer=optimizer, batch_size=4, engine=engine,
                comm=comm, show_progress=False)  # fmt: skip
    return [str(each.message) for each in seen if issubclass(each.category, UserWarning)]


def test_an_engine_without_copies_is_said() -> None:
    first, second = hk.spawn(a_stage, 2, timeout=TIMEOUT_S)
    assert [each for each in first if "'ring'" in each and 'strategy="data"' in each] == first and len(first) == 1
    assert second == []


def test_an_exchange_ends_without_the_others() -> None:
    first, second = hk.spawn(ends, 2, timeout=TIMEOUT_S)
    for engine in ENGINES:
        assert (engine, *first[engine]) == (engine, "closed", "interrupted", "finalized")
        assert (engine, *second[engine]) == (engine, "closed", "came later", "finalized")
