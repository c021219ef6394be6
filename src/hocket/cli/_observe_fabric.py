"""`hocket observe fabric`: nodes, links and counters of an InfiniBand fabric."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.cli._output import AsJson, json_text

if TYPE_CHECKING:
    from hocket.observe import InfinibandFabric
    from hocket.observe.fabric import PortKey
    from hocket.observe.fabric_file import FabricFile

FABRIC_HELP = """Show the links of this host's InfiniBand fabric: how much each one is used, and its errors.

The fabric is discovered and all ports are asked for their counters; after the interval again. Shown are the links by
their use in that time, ports with errors, and what changed: links that went down or came up. Needs infiniband-diags
and the right to send management packets (root)."""
FABRIC_EXAMPLES = """\b
Examples:
  hocket observe fabric
  hocket observe fabric --interval 10 --labels /etc/opensm/ib-node-name-map
  hocket observe fabric --route node-1 node-9
  hocket observe fabric --json > fabric.json    # for `hocket open`"""
_MOST_SHOWN = 40


def fabric(
    interval: Annotated[
        float, typer.Option("--interval", min=0.01, max=3600, help="Seconds between the two sweeps.")
    ] = 1.0,
    labels: Annotated[
        Path | None, typer.Option("--labels", help="Names of nodes: a node name map, as OpenSM uses.")
    ] = None,
    route: Annotated[
        tuple[str, str] | None, typer.Option("--route", help="Show the route between two nodes, by name or GUID.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Look at a fabric."""
    from hocket.observe import FabricCounters, discover_fabric, read_labels
    from hocket.observe.fabric_file import FabricFile

    names = read_labels(labels) if labels else None
    found = discover_fabric(with_routes=route is not None, labels=names)
    if route is not None:
        return _show_route(found, route, as_json)
    with FabricCounters(found) as counters:
        before = counters.sweep()
        time.sleep(interval)
        after = counters.sweep()
    changes = discover_fabric(labels=names).changes_since(found)
    file = FabricFile.of(found, before, after, changes, counters.num_ports)
    if as_json:
        print(json_text(file.content()))
        return 0
    _print(found, file)
    return 0


def _print(fabric: InfinibandFabric, file: FabricFile) -> None:
    from hocket.cli._tables import console_of, table_of

    num_switches = sum(node.kind == "switch" for node in fabric.nodes.values())
    num_links = sum(port.peer is not None for port in fabric.ports.values()) // 2
    print(f"{len(fabric.nodes) - num_switches} adapters, {num_switches} switches, {num_links} links")
    names = ("from", "to", "speed", "MB/s", "use", "waits")
    table = table_of("links by use", names, names)
    for each in file.links[:_MOST_SHOWN]:
        use = "?" if each.use is None else f"{each.use:.1%}"
        rate = "?" if each.nbytes_s is None else f"{each.nbytes_s / 1e6:.2f}"
        table.add_row(f"{each.name} {each.port}", f"{each.to.name} {each.to.port}", each.speed, rate, use,
                      "?" if each.waits is None else f"{each.waits:.0f}")  # fmt: skip
    console_of(120).print(table)
    if len(file.links) > _MOST_SHOWN:
        print(f"{len(file.links)} directions; the first {_MOST_SHOWN} are shown, --json has all")
    for error in file.errors[:_MOST_SHOWN]:
        value = "at its largest value" if error.value is None else f"{error.value:.0f}"
        print(f"{error.name} port {error.port}: {error.counter.replace('_', ' ')} {value}")
    for change in file.changes:
        place = f" port {change.number}" if change.number else ""
        print(f"{change.name}{place}: {change.kind}")
    for silent in file.without_answer:
        print(f"{silent.name} port {silent.port}: it did not answer")
    print(f"{file.num_ports} ports asked in {file.sweep_s * 1e3:.1f} ms")


def _named(fabric: InfinibandFabric, key: PortKey) -> dict[str, Any]:
    return {"guid": key[0], "port": key[1], "name": fabric.nodes[key[0]].name}


def _show_route(fabric: InfinibandFabric, ends: tuple[str, str], as_json: bool) -> int:
    hops = fabric.route(*(_guid_of(fabric, each) for each in ends))
    if as_json:
        print(json_text({"hops": [{"from": _named(fabric, a), "to": _named(fabric, b)} for a, b in hops]}))
        return 0
    for here, there in hops:
        print(f"{fabric.nodes[here[0]].name} port {here[1]} -> {fabric.nodes[there[0]].name} port {there[1]}")
    return 0


def _guid_of(fabric: InfinibandFabric, name: str) -> str:
    from hocket.errors import InvalidArgument

    if name in fabric.nodes:
        return name
    found = [guid for guid, node in fabric.nodes.items() if node.name == name]
    if len(found) != 1:
        problem = f"{len(found)} nodes have the name" if found else "the fabric has no node"
        raise InvalidArgument(f"{problem} {name!r:.80}: name one GUID of {', '.join(found or fabric.nodes)[:300]}")
    return found[0]
