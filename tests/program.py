"""Python programs that tests run: forked in the quick tier, new interpreters in the full tier."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from hocket.reserved_port import ReservedPort

from . import tier
from .prefork.client import ForkServer
from .prefork.living_ranks import RankPool
from .prefork.program import ForkedProgram, start_fresh_program

FORK_SERVER = ForkServer()
RANK_POOL = RankPool(FORK_SERVER)


def run_python(
    *arguments: str, folder: Path | None = None, environment: Mapping[str, str] | None = None, timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGUMENTS`` and return its exit code and its output.

    Args:
        arguments: a script, or "-m" and a module, and what follows.
        folder: where it runs; here by default.
        environment: all its variables; those of this process by default.
        timeout_s: seconds after which it is killed, and subprocess.TimeoutExpired raised.
    """
    folder = folder or Path.cwd()
    env = dict(os.environ if environment is None else environment)
    if tier.is_full():
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=timeout_s)
    return FORK_SERVER.run_program(arguments, folder=folder, environment=env, timeout_s=timeout_s)


def start_python(
    *arguments: str, folder: Path, environment: Mapping[str, str]
) -> subprocess.Popen[str] | ForkedProgram:
    """Start ``python ARGUMENTS`` in a process group of its own, with pipes; the rest as of `run_python`."""
    if tier.is_full():
        return start_fresh_program([sys.executable, *arguments], folder=folder, environment=environment)
    return FORK_SERVER.start_program(arguments, folder=folder, environment=environment)


def hocket(
    *arguments: str, folder: Path | None = None, environment: Mapping[str, str] | None = None, timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run the command ``hocket ARGUMENTS``; the rest as of `run_python`."""
    return run_python("-m", "hocket.cli", *arguments, folder=folder, environment=environment, timeout_s=timeout_s)


def run_on_two_hosts(
    num_local: int, script: Path, *args: str, limit_s: float = 150.0, fails: bool = False, **environment: str
) -> str:
    """Run a script on this machine under two host names, with so many ranks on each; return the outputs."""
    with ReservedPort() as port:
        command = ["-m", "hocket.cli", "run", "-n", str(num_local), "--nnodes", "2",
                   "--master-addr", "127.0.0.1", "--master-port", str(port.number)]  # fmt: skip
        launchers = [
            start_python(
                *(*command, "--node-rank", str(host), str(script), *args),
                folder=Path.cwd(),
                environment={**os.environ, **environment, "HOCKET_HOST": f"host-{host}"},
            )
            for host in range(2)
        ]
        try:
            outputs = "".join("".join(launcher.communicate(timeout=limit_s)) for launcher in launchers)
        finally:
            for launcher in launchers:
                launcher.terminate()  # ends its ranks
                launcher.wait()
    assert [launcher.returncode != 0 for launcher in launchers] == [fails, fails], outputs
    return outputs
