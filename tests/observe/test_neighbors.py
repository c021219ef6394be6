"""What network devices are connected to: what lldpcli prints, and recorded runs that know it."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from hocket.errors import RecorderError
from hocket.observe import find_sources, link_loads, open_run, query_run, record_run
from hocket.observe.neighbors import lldp_neighbors, parse_neighbors

from ..naming import raises

pytestmark = pytest.mark.timeout(60)


def _interface(device: str, chassis: dict[str, Any], port: dict[str, Any]) -> dict[str, Any]:
    return {"name": device, "via": "LLDP", "rid": "1", "age": "0 day", "chassis": [chassis], "port": [port]}


SWITCH = {"id": [{"type": "mac", "value": "a6:5c:87:d8:35:75"}], "name": [{"value": "leaf-7"}]}
PORT = {"id": [{"type": "ifname", "value": "Et1/7"}], "descr": [{"value": "Ethernet1/7"}]}
KNOWN = {"lldp": [{"interface": [_interface("lo", SWITCH, PORT), _interface("eth1", {"id": SWITCH["id"]}, {})]}]}


def test_neighbors_are_read() -> None:
    assert parse_neighbors(json.dumps(KNOWN).encode()) == {"lo": "leaf-7 port Ethernet1/7", "eth1": "a6:5c:87:d8:35:75"}
    assert parse_neighbors(b'{"lldp": [{}]}') == {}
    strange = {"lldp": [{"interface": [_interface("x", {"name": [{"value": "a\nb\x1b[2J" + "y" * 999}]}, {})]}]}
    (text,) = parse_neighbors(json.dumps(strange).encode()).values()
    assert text.isprintable()
    assert len(text) == 200


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"5", b'{"lldp": 5}', b'{"lldp": [{"interface": [{"name": "x"}]}]}', b"[" * 100_000]
)
def test_other_output_is_refused(content: bytes) -> None:
    with pytest.raises(RecorderError):
        parse_neighbors(content)


def test_mutated_output_is_read_or_refused() -> None:
    draw, content = random.Random(3), json.dumps(KNOWN).encode()
    for _ in range(300):
        mutated = bytearray(content)
        for _ in range(3):
            mutated[draw.randrange(len(mutated))] = draw.randrange(32, 127)
        try:
            parse_neighbors(bytes(mutated))
        except RecorderError:
            continue


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command of the same name, which prints the content of a file."""
    command = tmp_path / "bin" / "lldpcli"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\ncat {tmp_path}/answer\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "answer").write_text(json.dumps(KNOWN))
    return command


def test_a_run_knows_what_its_devices_were_connected_to(tmp_path: Path, daemon: Path) -> None:
    record_run(["sleep", "0.3"], tmp_path / "run", interval_s=0.1)
    run = open_run(tmp_path / "run")
    assert {each.neighbor for each in link_loads(run) if each.device == "lo"} == {"leaf-7 port Ethernet1/7"}
    found = query_run(run, "SELECT neighbor FROM links WHERE device = 'lo'").rows
    assert found == (("leaf-7 port Ethernet1/7",),)
    status = next(each for each in find_sources() if each.name == "LLDP")
    assert status.is_available
    assert "leaf-7" in status.reason


def test_a_daemon_that_fails_or_hangs_stops_nothing(tmp_path: Path, daemon: Path) -> None:
    for program in ("#!/bin/sh\necho no socket >&2\nexit 1\n", "#!/bin/sh\nexec sleep 60\n", "no program"):
        daemon.write_text(program)
        with raises(RecorderError, names="lldpcli"):
            lldp_neighbors()
    assert not next(each for each in find_sources() if each.name == "LLDP").is_available
    assert record_run(["true"], tmp_path / "run").exit_code == 0
