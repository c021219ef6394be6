"""Gradient engines on two hosts, one of which dies, or hangs behind a broken link, in the midst of steps."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hocket.train import gradient_engines

from ..load import scaled
from ..naming import assert_names

pytestmark = pytest.mark.timeout(170)
PROGRAM = str(Path(__file__).with_name("engines_rank.py"))
TIMEOUT_S = 8.0
ENGINES = {*gradient_engines(), "parameter-server gloo"}


class Job:
    """The program on both hosts."""

    def __init__(self, lab: Any) -> None:
        self._processes = [
            subprocess.Popen(each, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for each in lab.launchers([PROGRAM, str(scaled(TIMEOUT_S))], 1)
        ]
        self._queues: list[queue.Queue[str]] = [queue.Queue() for _ in self._processes]
        self.lines: list[list[str]] = [[] for _ in self._processes]
        self._threads = [
            threading.Thread(target=self._read, args=each, daemon=True)
            for each in zip(self._processes, self._queues, strict=True)
        ]
        for each in self._threads:
            each.start()

    def _read(self, process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)

    def wait_for(self, host: int, word: str) -> None:
        """Wait for a line that begins with a word."""
        while not self.lines[host] or not self.lines[host][-1].startswith(word):
            self.lines[host].append(self._queues[host].get(timeout=scaled(100)))

    def wait(self, host: int) -> None:
        """Wait for the end of the job on a host."""
        self._processes[host].wait(scaled(60))
        self._threads[host].join(scaled(10))
        while not self._queues[host].empty():
            self.lines[host].append(self._queues[host].get())

    def errors(self, host: int) -> dict[str, tuple[str, float]]:
        """Return by engine the type of its error, and the seconds from its last step to the error or for closing."""
        found = {}
        for line in self.lines[host]:
            if line.startswith("ended "):
                _, _, num_steps, kind, until_s, closing_s, name = line.strip().split(" ", 6)
                assert int(num_steps) >= 3, line
                found[name] = kind, max(float(until_s), float(closing_s))
        return found

    def kill(self) -> None:
        for each in self._processes:
            with suppress(ProcessLookupError):
                each.kill()
            each.wait()


@pytest.fixture
def job(lab: Any) -> Iterator[Job]:
    job = Job(lab)
    yield job
    job.kill()


def _nothing_is_left(lab: Any, lab_module: ModuleType, host: int) -> None:
    deadline = time.monotonic() + scaled(10)
    while left := lab_module._processes_in(lab.hosts[host].keeper.pid):  # with them go sockets and memory
        names = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left if Path(f"/proc/{pid}").exists()]
        assert time.monotonic() < deadline, names
        time.sleep(0.05)
    assert lab.hosts[host].run("ls", "/dev/shm").split() == []


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_host_that_is_gone_ends_every_engine_in_time(lab: Any, lab_module: ModuleType, job: Job, how: str) -> None:
    for host in range(2):
        job.wait_for(host, "running")
    for host, lines in enumerate(job.lines):
        (refusal,) = [each for each in lines if each.startswith("shm ")]
        assert refusal.startswith(f"shm {host} InvalidArgument ")
        assert_names(refusal, "payload='shm'", "2")
    others = lab_module._processes_in(lab.hosts[1].keeper.pid)
    if how == "stopped":
        # The other end of the link notices nothing but silence.
        lab.hosts[1].run("ip", "link", "set", "eth0", "down")
    for pid in others:
        os.kill(pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    survivors = [0]
    job.wait(0)
    _nothing_is_left(lab, lab_module, 0)
    if how == "stopped":  # it goes on, but is cut off
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        survivors.append(1)
        job.wait(1)
        _nothing_is_left(lab, lab_module, 1)
    for host in survivors:
        errors = job.errors(host)
        assert errors.keys() == ENGINES, job.lines[host]
        for name, (kind, seconds) in errors.items():
            assert kind in ("PeerFailure", "CommTimeout", "Aborted"), (name, kind)
            if host == 0:  # the other one stood still
                assert seconds < scaled(TIMEOUT_S + 10), (name, seconds)


_SUM = """
import torch
import hocket as hk
from hocket.train import EngineChoice, TensorSpec

tensors = [TensorSpec("weight", (5,), torch.float32), TensorSpec("bias", (3,), torch.float32)]
with hk.init(backends=["gloo"], timeout=60) as comm:
    engine = EngineChoice("parameter-server", {"num_servers": 2}).make(comm, tensors, exact=False, timeout_s=30.0)
    own = [torch.ones(spec.shape) for spec in tensors]
    for number, each in enumerate(own):
        engine.start(number, each)
    engine.finish()
    engine.close()
    print("sums", *(each.sum().item() for each in own), *(each.address for each in engine.servers), flush=True)
"""


def test_servers_are_reached_where_a_host_has_its_own_name_on_loopback(lab: Any, tmp_path: Path) -> None:
    """Debian's installer writes such a line for the host itself."""
    (tmp_path / "sum.py").write_text(_SUM)
    for host, address in zip(lab.hosts, ("127.0.1.1", lab.hosts[0].address), strict=True):
        names = tmp_path / f"hosts{host.number}"
        names.write_text(f"127.0.0.1 localhost\n{address} lab0\n")
        host.run("mount", "--bind", str(names), "/etc/hosts")
    first = lab.hosts[0].address
    commands = [
        ["lab0" if each == first else each for each in command]
        for command in lab.launchers([str(tmp_path / "sum.py")], 1)
    ]
    processes = [subprocess.Popen(each, stdout=subprocess.PIPE, text=True) for each in commands]
    try:
        for each in processes:
            output, _ = each.communicate(timeout=scaled(60))
            assert f"sums 10.0 6.0 {first}:" in output and f" {lab.hosts[1].address}:" in output, output
    finally:
        for each in processes:
            each.kill()
            each.wait()
