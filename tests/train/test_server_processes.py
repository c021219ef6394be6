"""Processes of parameter servers beside forked processes, printing optimizers, and ranks that lack something."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hocket as hk
from hocket.comm import Communicator
from hocket.errors import InvalidArgument, ResourceExhausted
from hocket.train import TensorSpec
from hocket.train.engines.parameter_server import ParameterServer
from hocket.train.engines.servers.messages import BadMessage, MessageHead, MessageKind
from hocket.train.engines.servers.optimizers import TorchServedOptimizer
from hocket.train.engines.servers.refused import Refused
from hocket.train.engines.servers.shards import ParcelPlan
from hocket.train.engines.servers.shared_memory import MemoryBlock
from hocket.train.engines.servers.updates import Updates

from .. import program
from ..load import scaled
from ..naming import assert_names, raises
from .engine_ranks import refusal

pytest.importorskip("grpc")
pytestmark = pytest.mark.timeout(120)
TENSORS = [TensorSpec("weight", (3,), torch.float32)]

_FORKED = """
import os, signal
import torch
import hocket as hk
from hocket.train import TensorSpec
from hocket.train.engines.parameter_server import ParameterServer

tensors = [TensorSpec("weight", (3,), torch.float32)]
engine = ParameterServer(hk.init(), tensors, exact=False, timeout_s=30.0)
child = os.fork()
if not child:
    os.close(1)
    os.close(2)
    signal.pause()
print(engine.servers[0].pid, child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_server_ends_with_its_rank_though_a_forked_process_lives() -> None:
    done = subprocess.run([sys.executable, "-c", _FORKED], capture_output=True, text=True, timeout=scaled(60))
    server, child = (int(each) for each in done.stdout.split())
    try:
        deadline = time.monotonic() + scaled(20)
        while Path(f"/proc/{server}").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


_LOUD = """
import torch

class Loud(torch.optim.SGD):
    def step(self, closure=None):
        print("step " + "x" * 100_000)
        return super().step(closure)
"""
_LOOP = """
import torch
import hocket as hk
from hocket.train import GradientExchange
from loud import Loud

model = torch.nn.Linear(4, 4)
optimizer = Loud(model.parameters(), lr=0.1)
with hk.init() as comm:
    exchange = GradientExchange(model, comm, "parameter-server-async", optimizer=optimizer, timeout=20.0)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    exchange.close()
"""


def test_an_optimizer_may_be_beside_the_script_and_print(tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "loud.py").write_text(_LOUD)
    (folder / "loop.py").write_text(_LOOP)
    done = program.hocket("run", "-n", "1", "scripts/loop.py", folder=tmp_path, timeout_s=scaled(60))
    assert done.returncode == 0, done.stderr[-2000:]


_OPEN = """
import torch
import hocket as hk
from hocket.train import GradientExchange

model = torch.nn.Linear(4, 4)
exchange = GradientExchange(model, hk.init(), "parameter-server")
model(torch.ones(2, 4)).sum().backward()
"""


def test_a_program_may_end_without_closing(tmp_path: Path) -> None:
    (tmp_path / "open.py").write_text(_OPEN)
    done = program.hocket("run", "-n", "2", "open.py", folder=tmp_path, timeout_s=scaled(60))
    assert done.returncode == 0, done.stderr


def _without_grpc(comm: Communicator) -> Callable[[], Any]:
    import grpc

    sys.modules["grpc"] = None  # type: ignore[assignment]
    return lambda: sys.modules.update(grpc=grpc)


def _without_memory(comm: Communicator) -> Callable[[], Any]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _lacking(comm: Communicator, lack: Callable[[Communicator], Callable[[], Any]], payload: str) -> tuple[str, str]:
    give_back = lack(comm) if comm.rank == 1 else lambda: None
    try:
        return refusal(lambda: ParameterServer(comm, TENSORS, exact=False, timeout_s=30.0, payload=payload))
    finally:
        give_back()


@pytest.mark.parametrize(
    ("lack", "payload", "kind"),
    [(_without_grpc, "grpc", "MissingPackage"), (_without_memory, "shm", "ResourceExhausted")],
)
def test_what_one_rank_lacks_is_told_to_all(lack: Any, payload: str, kind: str) -> None:
    for found, text in hk.spawn(_lacking, 2, lack, payload, timeout=60):
        assert found == kind, text
        assert_names(text, "rank 1")


def test_memory_that_cannot_be_had_leaves_no_file() -> None:
    before = os.listdir("/proc/self/fd")
    for nbytes in (1 << 62, 1 << 70):
        with raises(ResourceExhausted, names=(str(nbytes),)):
            MemoryBlock(nbytes)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_messages_fit_into_what_grpc_takes() -> None:
    large = TensorSpec("table", (1 << 28, 2), torch.float32)
    with raises(InvalidArgument, names=("table", str(large.nbytes))):
        ParcelPlan([large], 1, 1 << 20, cuts=False)
    assert ParcelPlan([large], 1, 1 << 20, cuts=True).most_nbytes == 1 << 20
    assert ParcelPlan([TensorSpec("nothing", (0,), torch.float32)], 1, 1 << 20, cuts=True).most_nbytes == 0


def _updates(num_required: int | None) -> Updates:
    parameter = nn.Parameter(torch.zeros(2))
    update = TorchServedOptimizer(torch.optim.SGD([parameter], lr=0.1)).part({id(parameter): 0}, [[0]])
    return Updates(2, num_required, {0: ([0], torch.float32)}, update)


def test_settings_are_proven_and_taken_in_order() -> None:
    key, content = bytes(32), b'[{"lr": 0.5}]'
    message = MessageHead(MessageKind.SETTINGS, 0, 0, 1, len(content)).pack(key, content) + content
    assert MessageHead.unpack(message, key).step == 1
    with pytest.raises(BadMessage):
        MessageHead.unpack(message.replace(b"0.5", b"9.5"), key)
    updates = _updates(None)
    updates.set(0, 1, memoryview(content))
    for rank, number in ((0, 1), (0, 0), (2, 5)):
        with pytest.raises(Refused):
            updates.set(rank, number, memoryview(content))
    updates.set(1, 0, memoryview(content))
    with pytest.raises(Refused):
        updates.leave(2)


def test_asynchronous_servers_wait_for_no_rank() -> None:
    assert _updates(None).late(0) == []
    assert _updates(2).late(0) == [0, 1]
