"""What the tools of InfiniBand print, and what it means; tests/system/test_infiniband.py drives the tools."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hocket.errors import BackendUnavailable, InvalidArgument, RecorderError
from hocket.observe import (
    FabricPort,
    FabricSweep,
    InfinibandFabric,
    discover_fabric,
    parse_fabric,
    parse_tables,
    read_labels,
)

from ..naming import raises
from ..program import hocket

pytestmark = pytest.mark.timeout(60)
LEAF, SPINE, HOSTS = "0x0000000000200002", "0x0000000000200000", ("0x0000000000100001", "0x0000000000100003")
FABRIC = f"""
CA     1  1 {HOSTS[0]} 4x EDR - SW     4  1 {LEAF} ( 'host 1' - 'leaf1' )
SW     4  1 {LEAF} 4x EDR - CA     1  1 {HOSTS[0]} ( 'leaf1' - 'host 1' )
SW     4  2 {LEAF} 4x EDR - CA     5  1 {HOSTS[1]} ( 'leaf1' - 'it's (host) 2' )
CA     5  1 {HOSTS[1]} 4x EDR - SW     4  2 {LEAF} ( 'it's (host) 2' - 'leaf1' )
SW     4  5 {LEAF} 2x NDR - SW     2  1 {SPINE} ( 'leaf1' - 'spine1' )
SW     2  1 {SPINE} 2x NDR - SW     4  5 {LEAF} ( 'spine1' - 'leaf1' )
SW     4  6 {LEAF} ??? ???                              'leaf1'
"""
TABLES = f"""Unicast lids [0x0-0x8] of switch DR path slid 0; dlid 0; 0,1 guid {LEAF} (leaf1):
  Lid  Out   Destination
       Port     Info
0x0001 001 : (Channel Adapter portguid {HOSTS[0]}: 'host 1')
0x0002 005 : (Switch portguid {SPINE}: 'spine1')
0x0005 002 : (Channel Adapter portguid {HOSTS[1]}: 'host 2')
3 valid lids dumped
"""


def _fabric(tables: str = TABLES) -> InfinibandFabric:
    found = parse_fabric(FABRIC)
    return InfinibandFabric(found.nodes, found.ports, parse_tables(tables))


def test_nodes_links_and_rates() -> None:
    fabric = _fabric()
    assert {node.name: (node.kind, node.lid) for node in fabric.nodes.values()} == {
        "host 1": ("adapter", 1), "leaf1": ("switch", 4), "it's (host) 2": ("adapter", 5), "spine1": ("switch", 2)
    }  # fmt: skip
    assert fabric.ports[LEAF, 2].peer == (HOSTS[1], 1)
    assert fabric.ports[LEAF, 6].peer is None
    assert fabric.ports[LEAF, 6].rate_nbytes_s is None
    assert fabric.ports[LEAF, 1].rate_nbytes_s == 12.5e9
    assert fabric.ports[SPINE, 1].rate_nbytes_s == 25e9
    assert FabricPort(LEAF, 1, "4x FDR10", None).rate_nbytes_s == 5e9


def test_routes() -> None:
    fabric = _fabric()
    assert fabric.route(*HOSTS) == [((HOSTS[0], 1), (LEAF, 1)), ((LEAF, 2), (HOSTS[1], 1))]
    assert fabric.route(HOSTS[0], HOSTS[0]) == []
    assert fabric.route(LEAF, SPINE) == [((LEAF, 5), (SPINE, 1))]
    with raises(InvalidArgument, names="0x5"):
        fabric.route(HOSTS[0], "0x5")
    with raises(RecorderError, names=(SPINE, "spine1")):
        fabric.route(SPINE, HOSTS[0])  # it has no table
    circle = TABLES + f"Unicast lids [0x0-0x8] of switch Lid 2 guid {SPINE} (spine1):\n0x0001 001 : (x)\n"
    with raises(RecorderError, names=HOSTS[0]):
        _fabric(circle.replace("0x0001 001 : (Ch", "0x0001 005 : (Ch")).route(HOSTS[1], HOSTS[0])


def test_changes() -> None:
    before = _fabric()
    down = FABRIC.replace(f" 2x NDR - SW     2  1 {SPINE} ( 'leaf1' - 'spine1' )", " 2x NDR 'leaf1'")
    down = "\n".join(line for line in down.splitlines() if not line.startswith("SW     2"))
    after = parse_fabric(down)
    assert [(each.kind, each.name, each.number) for each in after.changes_since(before)] == [
        ("link down", "spine1", 1), ("link down", "leaf1", 5), ("node gone", "spine1", 0)
    ]  # fmt: skip
    assert [each.kind for each in before.changes_since(after)] == ["link up", "link up", "node new"]
    assert before.changes_since(before) == []


def test_counters_that_were_reset_or_are_full_are_unknown() -> None:
    nan = float("nan")
    before = FabricSweep(0.0, 0.1, {(LEAF, 1): {"sent_nbytes": 100.0, "symbol_errors": 5.0, "link_downs": nan}})
    after = FabricSweep(1.0, 0.1, {(LEAF, 1): {"sent_nbytes": 40.0, "symbol_errors": 8.0, "link_downs": nan},
                                   (LEAF, 2): {"sent_nbytes": 4.0}})  # fmt: skip
    grown = after.since(before)
    assert grown[LEAF, 1]["sent_nbytes"] != grown[LEAF, 1]["sent_nbytes"]
    assert grown[LEAF, 1]["symbol_errors"] == 3.0
    assert grown[LEAF, 1]["link_downs"] != grown[LEAF, 1]["link_downs"]
    assert grown[LEAF, 2]["sent_nbytes"] != grown[LEAF, 2]["sent_nbytes"]


def test_other_output_is_refused() -> None:
    with raises(RecorderError, names=("line 2", "something-else")):
        parse_fabric(FABRIC.splitlines()[1] + "\nsomething-else")
    with raises(RecorderError, names="something-else"):
        parse_tables("something-else")
    with raises(RecorderError, names=("line 1", "0x0001")):
        parse_tables("0x0001 001 : (Switch portguid 0x1: 'x')")
    draw = random.Random(4)
    for _ in range(300):
        lines = bytearray(FABRIC.encode())
        for _ in range(3):
            lines[draw.randrange(len(lines))] = draw.randrange(256)
        try:
            parse_fabric(lines.decode(errors="replace"))
        except RecorderError:
            continue


def test_labels(tmp_path: Path) -> None:
    path = tmp_path / "names"
    path.write_text(f'# rack 7\n\n{LEAF.upper().replace("X", "x")} "leaf, rack 7" # at the top\n')
    assert read_labels(path) == {LEAF: "leaf, rack 7"}
    path.write_text("leaf = 5")
    with raises(RecorderError, names=(str(path), "line 1")):
        read_labels(path)


def test_a_host_without_infiniband_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendUnavailable):
        discover_fabric()
    failed = hocket("observe", "fabric")
    assert failed.returncode == 1
    assert "InfiniBand" in failed.stderr or "infiniband" in failed.stderr
    monkeypatch.setenv("PATH", "/nowhere")
    with raises(BackendUnavailable, names=("ibnetdiscover", "infiniband-diags")):
        discover_fabric()
