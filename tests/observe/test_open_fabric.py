"""InfiniBand fabrics in `hocket open`: what is shown of them, and files that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hocket.cli._output import json_text
from hocket.errors import InvalidArgument

from ..naming import raises
from .fabricated_fabric import RATE, fabric_file
from .opened_files import answers_of, write_files

pytest.importorskip("fastapi")
from hocket.observe.serve.opened_results import open_results

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return write_files(tmp_path)


def test_a_fabric(files: dict[str, Path]) -> None:
    answer = answers_of(files["fabric"])["fabric"]
    assert (answer["num_adapters"], answer["num_switches"], answer["num_links"]) == (9, 5, 15)
    assert (answer["num_ports"], answer["num_directions"], answer["sweep_s"]) == (30, 29, 0.25)
    expected = fabric_file().links
    assert [row["use"] for row in answer["links"]] == pytest.approx(
        sorted((each.use for each in expected), reverse=True)
    )
    assert answer["links"][0]["nbytes_s"] == pytest.approx(0.029 * RATE)
    assert [(each["name"], each["port"]) for each in answer["silent"]] == [("leaf1", 2)]
    errors = {(each["name"], each["port"], each["counter"]): each["value"] for each in answer["errors"]}
    assert errors == {("leaf1", 1, "symbol_errors"): 7.0, ("leaf1", 1, "link_downs"): None}
    changes = {(each["kind"], each["name"]) for each in answer["changes"]}
    assert changes == {("link down", "leaf0"), ("link down", "spine0")}
    levels = {node["name"]: node["level"] for node in answer["nodes"]}
    assert (levels["host0"], levels["leaf0"], levels["spine0"]) == (0, 1, 2)
    by_name = {row["name"]: row for row in answer["switches"]}
    assert (by_name["leaf0"]["num_hosts"], by_name["leaf0"]["num_links"], by_name["spine0"]["num_links"]) == (3, 5, 3)
    assert (by_name["leaf1"]["num_errors"], by_name["leaf1"]["num_silent"]) == (2, 1)


def test_a_fabric_of_a_thousand_hosts_is_drawn_by_switch(files: dict[str, Path]) -> None:
    found = fabric_file(48, 24, 24)
    files["fabric"].write_text(json_text(found.content()))
    answer = answers_of(files["fabric"])["fabric"]
    assert answer["num_adapters"] == 48 * 24
    assert len(answer["nodes"]) == 48 + 24 + 48
    leaves = [node["name"] for node in answer["nodes"] if node["level"] == 1]
    assert leaves == [f"leaf{number}" for number in range(48)]
    hosts = [node for node in answer["nodes"] if node["kind"] == "adapter"]
    assert sum(node["num_nodes"] for node in hosts) == 48 * 24
    assert len(answer["lines"]) == 48 * 24 + 48 and len(answer["lines"]) == answer["num_lines"]
    assert sum(line["num_links"] for line in answer["lines"]) == answer["num_links"] == 2 * 48 * 24
    uses = [line["use"] for line in answer["lines"]]
    assert uses == sorted(uses, reverse=True)


def test_a_fabric_of_many_switches_has_its_most_used_links(files: dict[str, Path]) -> None:
    files["fabric"].write_text(json_text(fabric_file(110, 110, 1).content()))
    answer = answers_of(files["fabric"])["fabric"]
    assert answer["num_lines"] == 110 * 110 + 110 and answer["num_directions"] == 2 * answer["num_lines"] - 1
    assert len(answer["lines"]) == len(answer["links"]) == 10_000
    assert answer["links"][0]["use"] == answer["lines"][0]["use"] == pytest.approx(0.999)


_NODE = {"guid": "0x1", "name": "leaf", "kind": "switch", "lid": 1}
_PORT = {"guid": "0x1", "port": 1, "name": "leaf"}
_LINK = {**_PORT, "to": _PORT, "speed": "4x EDR", "nbytes_s": 1.0, "use": 0.5, "waits": None}
_ERROR = {**_PORT, "counter": "symbol_errors", "value": 1, "more": None}
_CHANGE = {"kind": "link down", "guid": "0x7", "number": 0, "name": "gone"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"nodes": [_NODE, _NODE]}, "guid"),
        ({"nodes": [{**_NODE, "kind": "cable"}]}, "cable"),
        ({"nodes": [{**_NODE, "lid": "1"}]}, "lid"),
        ({"nodes": [{**_NODE, "lid": 65536}]}, "lid nodes"),
        ({"nodes": [_NODE, {**_NODE, "guid": "0" * 65}]}, "guid nodes"),
        ({"nodes": [{**_NODE, "name": "n" * 1001}]}, "name nodes"),
        ({"nodes": None}, "nodes"),
        ({"links": [{**_LINK, "guid": "0x7"}]}, "0x7"),
        ({"links": [{**_LINK, "to": {**_PORT, "guid": "0x8"}}]}, "0x8"),
        ({"links": [{**_LINK, "port": 256}]}, "256"),
        ({"links": [{**_LINK, "use": -0.5}]}, "use links"),
        ({"links": [{**_LINK, "use": 1e9}]}, "use links"),
        ({"links": [{**_LINK, "use": 10**400}]}, "use FabricLink"),
        ({"links": [{**_LINK, "use": True}]}, "use FabricLink"),
        ({"links": [{**_LINK, "nbytes_s": 1e16}]}, "nbytes_s links"),
        ({"links": [{**_LINK, "waits": 1e20}]}, "waits links"),
        ({"links": [{**_LINK, "speed": "4x" * 501}]}, "speed links"),
        ({"links": [{**_LINK, "name": "n" * 1001}]}, "name links"),
        ({"links": [{**_LINK, "to": {**_PORT, "name": "n" * 1001}}]}, "name to links"),
        ({"links": [{**_LINK, "nbytes_s": "many"}]}, "many"),
        ({"links": [{**_LINK, "to": None}]}, "None"),
        ({"links": [_PORT]}, "to"),
        ({"errors": [{**_ERROR, "guid": "0x9"}]}, "0x9"),
        ({"errors": [{**_ERROR, "counter": "more"}]}, "counter errors"),
        ({"errors": [{**_ERROR, "value": 1e20}]}, "value errors"),
        ({"errors": [{**_ERROR, "more": -1}]}, "more errors"),
        ({"errors": [{**_ERROR, "name": "n" * 1001}]}, "name errors"),
        ({"changes": [{**_CHANGE, "number": 256}]}, "number changes"),
        ({"changes": [{**_CHANGE, "number": -1}]}, "number changes"),
        ({"changes": [{**_CHANGE, "number": 1.5}]}, "number FabricChange"),
        ({"changes": [{**_CHANGE, "kind": "link cut"}]}, "kind changes"),
        ({"changes": [{**_CHANGE, "guid": "0" * 65}]}, "guid changes"),
        ({"changes": [{**_CHANGE, "name": "n" * 1001}]}, "name changes"),
        ({"without_answer": [{**_PORT, "guid": "0x9"}]}, "0x9"),
        ({"without_answer": [{**_PORT, "name": "n" * 1001}]}, "name without_answer"),
        ({"interval_s": -1}, "interval_s"),
        ({"interval_s": 1e10}, "interval_s"),
        ({"sweep_s": 1e10}, "sweep_s"),
        ({"num_ports": 1.5}, "num_ports"),
        ({"num_ports": 10**9}, "num_ports"),
        ({"format": "hocket fabric, version 2"}, "version 2"),
    ],
)
def test_odd_fabrics_are_refused(files: dict[str, Path], change: dict[str, Any], named: str) -> None:
    content = json.loads(files["fabric"].read_text()) | {"nodes": [_NODE], "links": [_LINK], "errors": [_ERROR]}
    content |= {"without_answer": [], "changes": [_CHANGE]}
    files["fabric"].write_text(json.dumps(content))
    assert answers_of(files["fabric"])["fabric"]["num_switches"] == 1
    files["fabric"].write_text(json.dumps(content | change))
    with raises(InvalidArgument, names=("fabric.json", *named.split())):
        open_results([files["fabric"]])
