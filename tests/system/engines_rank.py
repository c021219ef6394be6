"""A rank that trains by every gradient engine at once, each in a thread, until all have failed."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import torch

import hocket as hk
from hocket.comm import Communicator
from hocket.errors import HocketError
from hocket.train import EngineChoice, TensorSpec, gradient_engines

TENSORS = [TensorSpec("large", (300, 100), torch.float32), TensorSpec("small", (7,), torch.float64)]
PORT = 29611
"""Of both servers of one engine: they are on two hosts."""
_PAUSE_S = 0.02
"""Between two steps, so that all engines get their share of the processors."""


class Trained:
    """An engine that a thread uses until it fails."""

    def __init__(self, comm: Communicator, name: str, options: dict[str, Any], timeout_s: float) -> None:
        self._choice = EngineChoice(name, options)
        self._size = comm.size
        self.name, self.error, self.num_steps = " ".join([name, options.get("payload", "")]).strip(), "", 0
        self.engine: Any
        if self._choice.updates:
            values = [torch.zeros(spec.shape, dtype=spec.dtype) for spec in TENSORS]
            optimizer = torch.optim.SGD(values, lr=0.1)
            self.engine = self._choice.make_updating(comm, TENSORS, values, optimizer, timeout_s=timeout_s)
        else:
            self.engine = self._choice.make(comm, TENSORS, exact=False, timeout_s=timeout_s)
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        done_s = time.monotonic()
        try:
            while True:
                self._step()
                self.num_steps += 1
                done_s = time.monotonic()
                time.sleep(_PAUSE_S)
        except Exception as error:
            kind = type(error).__name__ if isinstance(error, HocketError) else f"untyped {error!r}"
            failed_s = time.monotonic()
            self.engine.close()
            self.error = f"{kind} {failed_s - done_s:.1f} {time.monotonic() - failed_s:.1f}"

    def _step(self) -> None:
        own = [torch.ones(spec.shape, dtype=spec.dtype) for spec in TENSORS]
        if self._choice.updates:
            self.engine.exchange(own)
            return
        for number, each in enumerate(own):
            self.engine.start(number, each)
        self.engine.finish()
        assert all(bool((each == self._size).all()) for each in own), "wrong sum"


def _options(name: str) -> dict[str, Any]:
    return {"num_servers": 2, "ports": (PORT, PORT)} if name == "parameter-server" else {}


def main() -> None:
    timeout_s = float(sys.argv[1])
    torch.set_num_threads(1)
    with hk.init(backends=["shm", "gloo"], timeout=60) as comm:
        try:
            EngineChoice("parameter-server", {"payload": "shm"}).make(comm, TENSORS, exact=False, timeout_s=timeout_s)
        except HocketError as error:
            print("shm", comm.rank, type(error).__name__, error, flush=True)
        engines = [Trained(comm, name, _options(name), timeout_s) for name in sorted(gradient_engines())]
        by_library = {"num_servers": 2, "payload": "gloo"}
        engines.append(Trained(comm, "parameter-server", by_library, timeout_s))
        for each in engines:
            each.thread.start()
        while any(each.thread.is_alive() and each.num_steps < 3 for each in engines):
            time.sleep(0.01)
        print("running", comm.rank, flush=True)
        for each in engines:
            each.thread.join()
            print(f"ended {comm.rank} {each.num_steps} {each.error} {each.name}", flush=True)


if __name__ == "__main__":
    main()
