"""Parameter servers that die, hang and are attacked; their ports, and proxies."""

from __future__ import annotations

import os
import random
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import hocket as hk
from hocket.comm import Communicator
from hocket.errors import ResourceExhausted
from hocket.train import TensorSpec
from hocket.train.engines.parameter_server import ParameterServer
from hocket.train.engines.servers.messages import HEAD_NBYTES, BadMessage, MessageHead, MessageKind

from .. import program
from ..load import scaled
from ..naming import assert_names
from .engine_ranks import failing, refusal

grpc = pytest.importorskip("grpc")
pytestmark = pytest.mark.timeout(120)

KEY = bytes(range(32))


@pytest.mark.parametrize(
    ("what", "kind", "names"),
    [
        ("server killed", "PeerFailure", ("server 1",)),
        ("server stopped", "CommTimeout", ("server 1",)),
        ("rank late", "CommTimeout", ("rank 1",)),
    ],
)
def test_every_rank_is_told_in_time_what_is_missing(what: str, kind: str, names: tuple[str, ...]) -> None:
    timeout_s = scaled(4.0)
    of_ranks = hk.spawn(failing, 2, what, timeout_s, timeout=100)
    for rank, (found, text, seconds, servers) in enumerate(of_ranks):
        assert seconds < timeout_s + scaled(15)
        if (what, rank) != ("rank late", 1):  # it comes when the others have given up
            assert found == kind, text
            assert_names(text, *names)
        for each in servers:
            _until_gone(each)


def _until_gone(pid: int) -> None:
    deadline = time.monotonic() + scaled(20)
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, pid
        time.sleep(0.02)


_KILLED = """
import os, signal, sys
import torch
import hocket as hk
from hocket.train import GradientExchange
from hocket.errors import PeerFailure

model = torch.nn.Linear(4, 4)
with hk.init() as comm:
    with GradientExchange(model, comm, "parameter-server", num_servers=2) as exchange:
        if comm.rank == 0:
            print(*[each.pid for each in exchange.engine.servers], flush=True)
        for step in range(1000):
            if step == 3 and comm.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                model(torch.ones(2, 4)).sum().backward()
            except PeerFailure as error:
                print("told:", error, flush=True)
                raise
"""


def test_a_killed_rank_is_named_and_its_server_ends(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(_KILLED)
    done = program.hocket("run", "-n", "2", "killed.py", folder=tmp_path, timeout_s=scaled(60))
    pids, told = done.stdout.splitlines()[:2]
    assert done.returncode == 128 + 9
    assert_names(told, "rank 1")
    for each in pids.split():
        _until_gone(int(each))


_BY_LIBRARY = """
import hocket as hk
from tests.train.engine_ranks import sums

with hk.init(backends=["shm", "gloo"]) as comm:
    wrong = sums(comm, "parameter-server", {"num_servers": 2, "payload": "gloo", "message_nbytes": 100_000}, True)
    print("wrong:", wrong, flush=True)
"""


def test_a_library_carries_the_payload(tmp_path: Path) -> None:
    (tmp_path / "by_library.py").write_text(_BY_LIBRARY)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    done = program.hocket(
        "run", "-n", "3", "by_library.py", folder=tmp_path, environment=environment, timeout_s=scaled(90)
    )
    assert done.stdout.count("wrong: []") == 3, done.stdout + done.stderr


TENSORS = [TensorSpec("weight", (3, 5), torch.float32), TensorSpec("bias", (3,), torch.float32)]


def _sum_is_right(engine: ParameterServer) -> bool:
    own = [torch.ones(spec.shape) for spec in TENSORS]
    for number, each in enumerate(own):
        engine.start(number, each)
    engine.finish()
    return all(bool((each == 1).all()) for each in own)


def test_strangers_are_refused_and_disturb_nobody() -> None:
    generator = random.Random(0)
    with hk.init() as comm:
        engine = ParameterServer(comm, TENSORS, exact=False, timeout_s=30.0)
        try:
            (server,) = engine.servers
            host, port = server.address.split(":")
            assert _sum_is_right(engine)
            with grpc.insecure_channel(server.address, [("grpc.enable_http_proxy", 0)]) as channel:
                exchange = channel.unary_unary("/hocket.ParameterServer/Exchange")
                size = sum(spec.nbytes for spec in TENSORS)
                forged = MessageHead(MessageKind.GRADIENTS, 0, 0, 1, size).pack(KEY) + bytes(size)
                for message in (b"", bytes(HEAD_NBYTES - 1), bytes(HEAD_NBYTES), forged, generator.randbytes(5000)):
                    assert _code(lambda sent=message: exchange(sent, timeout=10)) == grpc.StatusCode.UNAUTHENTICATED
                assert _code(lambda: exchange(bytes(1 << 24), timeout=10)) == grpc.StatusCode.RESOURCE_EXHAUSTED
                other = channel.unary_unary("/hocket.ParameterServer/Other")
                assert _code(lambda: other(b"", timeout=10)) == grpc.StatusCode.UNIMPLEMENTED
            for _ in range(20):
                with socket.create_connection((host, int(port)), timeout=10) as stranger:
                    stranger.sendall(generator.randbytes(generator.randrange(1, 3000)))
            assert _sum_is_right(engine)
        finally:
            engine.close()
        _until_gone(server.pid)


def test_a_message_that_comes_again_is_refused() -> None:
    with hk.init() as comm:
        engine = ParameterServer(comm, TENSORS, exact=False, timeout_s=30.0)
        try:
            assert _sum_is_right(engine)
            size = sum(spec.nbytes for spec in TENSORS)
            key = engine._client._to_server
            with grpc.insecure_channel(engine.servers[0].address, [("grpc.enable_http_proxy", 0)]) as channel:
                exchange = channel.unary_unary("/hocket.ParameterServer/Exchange")
                for rank, parcel, step, nbytes in ((0, 0, 0, size), (5, 0, 1, size), (0, 9, 1, size), (0, 0, 1, 4)):
                    message = MessageHead(MessageKind.GRADIENTS, rank, parcel, step, nbytes).pack(key) + bytes(nbytes)
                    code = _code(lambda sent=message: exchange(sent, timeout=10))
                    assert code == grpc.StatusCode.FAILED_PRECONDITION
                for kind in set(MessageKind) - {MessageKind.GRADIENTS, MessageKind.WHO_IS_LATE, MessageKind.ARRIVED}:
                    message = MessageHead(kind, 0, 0, 1, 0).pack(key)
                    code = _code(lambda sent=message: exchange(sent, timeout=10))
                    assert code == grpc.StatusCode.FAILED_PRECONDITION
            assert _sum_is_right(engine)
        finally:
            engine.close()


def _code(call: Any) -> Any:
    try:
        call()
    except grpc.RpcError as error:
        return error.code()
    return None


def test_a_head_is_taken_whole_or_not_at_all() -> None:
    generator = random.Random(0)
    message = MessageHead(MessageKind.GRADIENTS, 1, 2, 3, 4).pack(KEY) + b"abcd"
    assert MessageHead.unpack(message, KEY) == MessageHead(MessageKind.GRADIENTS, 1, 2, 3, 4)
    damaged = [message[:length] for length in range(len(message))] + [message + b"e"]
    for place in range(HEAD_NBYTES):
        damaged.append(message[:place] + bytes([message[place] ^ generator.randrange(1, 256)]) + message[place + 1 :])
    for each in damaged:
        with pytest.raises(BadMessage):
            MessageHead.unpack(each, KEY)


def _with_port(comm: Communicator, port: int) -> tuple[str, str]:
    return refusal(lambda: ParameterServer(comm, TENSORS, exact=False, timeout_s=30.0, ports=(port,)))


def test_a_port_that_is_taken_is_told_to_all_ranks() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for kind, text in hk.spawn(_with_port, 2, port, timeout=60):
            assert kind == ResourceExhausted.__name__
            assert_names(text, str(port))


def test_proxies_of_the_environment_are_left_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody is there
    with hk.init() as comm:
        with pytest.warns(UserWarning, match="grpc_proxy") as told:
            engine = ParameterServer(comm, TENSORS, exact=False, timeout_s=10.0)
        try:
            assert_names(str(told[0].message), "grpc_proxy")
            assert _sum_is_right(engine)
        finally:
            engine.close()
