"""Two hosts whose daemons tell each other by LLDP who they are."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from hocket.errors import RecorderError
from hocket.observe.neighbors import lldp_neighbors

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def sockets() -> Iterator[list[Path]]:
    """The sockets of the daemons of two network namespaces that are connected by a virtual pair."""
    assert shutil.which("lldpd"), "lldpd is missing: install the package lldpd"
    names = [f"lldp{os.getpid()}{end}" for end in "ab"]
    folder = Path(mkdtemp())
    folder.chmod(0o755)  # the daemons give up their rights before they open their sockets
    found = [folder / name for name in names]
    started = []
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True, timeout=20)
        link = ["ip", "link", "add", "va", "netns", names[0], "type", "veth", "peer", "name", "vb", "netns", names[1]]
        subprocess.run(link, check=True, timeout=20)
        for name, device, path in zip(names, ("va", "vb"), found, strict=True):
            subprocess.run(["ip", "-n", name, "link", "set", device, "up"], check=True, timeout=20)
            daemon = ["ip", "netns", "exec", name, "lldpd", "-d", "-u", str(path), "-I", "v*"]
            started.append(subprocess.Popen(daemon, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        yield found
    finally:
        for process in started:
            process.terminate()
            process.wait(20)
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, timeout=20)
        shutil.rmtree(folder)


def test_the_neighbor_of_a_device_is_found(
    tmp_path: Path, sockets: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "bin" / "lldpcli"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shutil.which("lldpcli")} -u {sockets[0]} "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    faster = ["lldpcli", "-u", str(sockets[1]), "configure", "lldp", "tx-interval", "1"]
    deadline = time.monotonic() + 60
    found: dict[str, str] = {}
    while "va" not in found:
        assert time.monotonic() < deadline, found
        subprocess.run(faster, check=False, capture_output=True, timeout=20)
        time.sleep(0.5)
        try:
            found = lldp_neighbors()
        except RecorderError:
            continue  # the daemon does not listen yet
    assert found == {"va": f"{os.uname().nodename} port vb"}
