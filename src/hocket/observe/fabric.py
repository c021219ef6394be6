"""An InfiniBand fabric: its nodes, links and routes, as the tools of infiniband-diags find them.

`ibnetdiscover` asks every node for its ports, `dump_fts` every switch for its forwarding table. Both need the right to
send management packets: root, or access to /dev/infiniband/umad*.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hocket.errors import BackendUnavailable, InvalidArgument, RecorderError

_TIMEOUT_S = 300.0
_MOST_NBYTES = 1 << 30
_GUID = r"0x[0-9a-fA-F]{16}"
_END = rf"(SW|CA|RT)\s+(\d+)\s+(\d+) ({_GUID})"
_LINE = re.compile(rf"{_END} (\S+ \S+|\?\?\? \?\?\?)\s+(?:- {_END} \( '(.*)' - '(.*)' \)|'(.*)')\s*")
_SWITCH = re.compile(rf"Unicast lids .* guid ({_GUID}) \(.*\):")
_ENTRY = re.compile(r"0x([0-9a-fA-F]{4}) (\d{3})\s+:.*")
_LABEL = re.compile(rf'\s*({_GUID})\s+"([^"]*)"\s*(?:#.*)?')
_GBIT_S_PER_LANE = {
    "SDR": 2.0, "DDR": 4.0, "QDR": 8.0, "FDR10": 10.0, "FDR": 13.64, "EDR": 25.0, "HDR": 50.0, "NDR": 100.0,
    "XDR": 200.0,
}  # fmt: skip
"""Data rates of a lane, without the coding on the wire (InfiniBand Architecture Specification, volume 2)."""
_MOST_HOPS = 64
PortKey = tuple[str, int]
"""GUID of a node and number of its port."""


@dataclass(frozen=True)
class FabricNode:
    """A switch, or one port of a host's adapter.

    Args:
        guid: of the switch or of the adapter's port, such as "0x0000000000100001".
        name: its description in the fabric, or the label that a user gave.
        kind: "switch", "adapter" or "router".
        lid: its address in the fabric; 0: the fabric has no subnet manager yet.

    Examples:
        >>> from hocket import observe
        >>> observe.FabricNode("0x0000000000100001", "node-1 HCA-1", "adapter", 7).lid
        7
    """

    guid: str
    name: str
    kind: str
    lid: int


@dataclass(frozen=True)
class FabricPort:
    """A port of a node.

    Args:
        guid: of its node.
        number: of the port, from 1 on.
        width_and_speed: such as "4x EDR".
        peer: the port at the other end of its link; None: the link is down.

    Examples:
        >>> from hocket import observe
        >>> observe.FabricPort("0x0000000000100001", 1, "4x EDR", None).rate_nbytes_s
        12500000000.0
    """

    guid: str
    number: int
    width_and_speed: str
    peer: PortKey | None

    @property
    def rate_nbytes_s(self) -> float | None:
        """Bytes/s in one direction; None: the speed is not known."""
        width, _, speed = self.width_and_speed.partition(" ")
        lane = _GBIT_S_PER_LANE.get(speed)
        if lane is None or not width.endswith("x") or not width[:-1].isdigit():
            return None
        return int(width[:-1]) * lane * 1e9 / 8


@dataclass(frozen=True)
class FabricChange:
    """A difference between two discoveries.

    Args:
        kind: "link down", "link up", "link moved", "node gone" or "node new".
        guid, number: of the port; number 0: the node.
        name: of the node.

    Examples:
        >>> from hocket import observe
        >>> observe.FabricChange("link down", "0x0000000000200000", 1, "spine-1").number
        1
    """

    kind: str
    guid: str
    number: int
    name: str


@dataclass(frozen=True)
class InfinibandFabric:
    """Nodes, ports and forwarding tables.

    Args:
        nodes: by GUID.
        ports: by GUID and number.
        tables: of each switch by GUID, the port to each LID; empty: they were not asked for.

    Examples:
        >>> from hocket import observe
        >>> line = "CA 5 1 0x0000000000100003 4x EDR - SW 4 2 0x0000000000200002 ( 'node-1' - 'leaf-1' )"
        >>> fabric = observe.parse_fabric(line)
        >>> [node.name for node in fabric.nodes.values()]
        ['node-1', 'leaf-1']
    """

    nodes: dict[str, FabricNode]
    ports: dict[PortKey, FabricPort]
    tables: dict[str, dict[int, int]]

    def route(self, source: str, destination: str) -> list[tuple[PortKey, PortKey]]:
        """Return the links from one node to another, as pairs of the port that sends and the port that receives.

        Args:
            source, destination: GUIDs.

        Raises:
            InvalidArgument: a GUID is not in the fabric.
            RecorderError: the tables lead nowhere or in a circle; names the switch.
        """
        for guid in (source, destination):
            if guid not in self.nodes:
                raise InvalidArgument(f"the fabric has no node {guid!r:.40}")
        place = source
        hops: list[tuple[PortKey, PortKey]] = []
        while place != destination:
            node = self.nodes[place]
            if len(hops) > _MOST_HOPS or (hops and node.kind != "switch"):
                raise RecorderError(f"the route to {destination} does not arrive: it is at {place} ({node.name})")
            number = self._next_port(node, destination)
            port = self.ports.get((place, number))
            if port is None or port.peer is None:
                raise RecorderError(f"{place} ({node.name}) has no link for LID {self.nodes[destination].lid}")
            hops.append(((place, number), port.peer))
            place = port.peer[0]
        return hops

    def _next_port(self, node: FabricNode, destination: str) -> int:
        if node.kind == "switch":
            return self.tables.get(node.guid, {}).get(self.nodes[destination].lid, -1)
        return next((number for guid, number in self.ports if guid == node.guid), -1)

    def changes_since(self, before: InfinibandFabric) -> list[FabricChange]:
        """Return what differs from an earlier discovery."""
        changes = []
        for guid in before.nodes.keys() - self.nodes.keys():
            changes.append(FabricChange("node gone", guid, 0, before.nodes[guid].name))
        for guid in self.nodes.keys() - before.nodes.keys():
            changes.append(FabricChange("node new", guid, 0, self.nodes[guid].name))
        for key in sorted(before.ports.keys() | self.ports.keys()):
            old, new = before.ports.get(key), self.ports.get(key)
            ends = old and old.peer, new and new.peer
            if ends[0] != ends[1]:
                kind = "link up" if ends[0] is None else "link down" if ends[1] is None else "link moved"
                name = (self if key[0] in self.nodes else before).nodes[key[0]].name
                changes.append(FabricChange(kind, *key, name))
        return sorted(changes, key=lambda each: (each.kind, each.guid, each.number))


def discover_fabric(*, with_routes: bool = False, labels: Mapping[str, str] | None = None) -> InfinibandFabric:
    """Find all nodes and links of the InfiniBand fabric that this host belongs to.

    Args:
        with_routes: whether to ask all switches for their forwarding tables, too.
        labels: names of nodes by GUID, in place of their own; see `read_labels`.

    Raises:
        BackendUnavailable: this host has no InfiniBand, the tools are not installed, or may not be used.
        RecorderError: a tool said something that cannot be read; names the line.

    Examples:
        >>> from hocket import observe
        >>> try:
        ...     fabric = observe.discover_fabric()
        ... except hk.BackendUnavailable as error:
        ...     print("no InfiniBand here")
        no InfiniBand here
    """
    fabric = parse_fabric(_asked(["ibnetdiscover", "-p"]))
    if with_routes:
        fabric = replace(fabric, tables=parse_tables(_asked(["dump_fts"])))
    if labels:
        nodes = {
            guid: replace(node, name=labels.get(guid.lower(), node.name)) for guid, node in fabric.nodes.items()
        }  # fmt: skip
        fabric = replace(fabric, nodes=nodes)
    return fabric


def parse_fabric(text: str) -> InfinibandFabric:
    """Return the fabric that ``ibnetdiscover -p`` has printed.

    Raises:
        RecorderError: a line is not as it should be; names it.

    Examples:
        >>> from hocket import observe
        >>> line = "SW 4 7 0x0000000000200002 4x EDR 'leaf-1'"
        >>> observe.parse_fabric(line).ports["0x0000000000200002", 7].peer is None
        True
    """
    nodes: dict[str, FabricNode] = {}
    ports: dict[PortKey, FabricPort] = {}
    kinds = {"SW": "switch", "CA": "adapter", "RT": "router"}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise RecorderError(f"ibnetdiscover, line {number}: it is no port: {line[:120]!r}")
        kind, lid, port, guid, speed, *other = match.groups()
        peer: PortKey | None = None
        if other[0] is not None:
            peer_kind, peer_lid, peer_port, peer_guid, name, peer_name, _ = other
            peer = peer_guid, int(peer_port)
            nodes.setdefault(guid, FabricNode(guid, name, kinds[kind], int(lid)))
            nodes.setdefault(peer_guid, FabricNode(peer_guid, peer_name, kinds[peer_kind], int(peer_lid)))
        else:
            nodes.setdefault(guid, FabricNode(guid, other[-1], kinds[kind], int(lid)))
        ports[guid, int(port)] = FabricPort(guid, int(port), speed, peer)
    return InfinibandFabric(nodes, ports, {})


def parse_tables(text: str) -> dict[str, dict[int, int]]:
    """Return the forwarding tables that ``dump_fts`` has printed: of each switch, the port to each LID.

    Raises:
        RecorderError: a line is not as it should be; names it.

    Examples:
        >>> from hocket import observe
        >>> head = "Unicast lids [0x0-0x8] of switch DR path slid 0; dlid 0; 0,1 guid 0x0000000000200003 (leaf-2):"
        >>> observe.parse_tables(head + "\\n0x0001 005 : (Channel Adapter portguid 0x0000000000100001: 'node-1')")
        {'0x0000000000200003': {1: 5}}
    """
    tables: dict[str, dict[int, int]] = {}
    table: dict[int, int] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if switch := _SWITCH.fullmatch(line.strip()):
            table = tables.setdefault(switch[1], {})
        elif entry := _ENTRY.fullmatch(line.strip()):
            if table is None:
                raise RecorderError(f"dump_fts, line {number}: an entry before the first switch: {line[:120]!r}")
            table[int(entry[1], 16)] = int(entry[2])
    if text.strip() and not tables:
        raise RecorderError(f"dump_fts: it names no switch: {text.strip()[:120]!r}")
    return tables


def read_labels(path: str | Path) -> dict[str, str]:
    """Return the names in a node name map, as OpenSM and the tools use: a GUID and a quoted name in each line.

    Raises:
        RecorderError: the file cannot be read, or a line is not as it should be; names it.

    Examples:
        >>> from pathlib import Path
        >>> from hocket import observe
        >>> _ = Path("names").write_text('0x0000000000200002 "rack 7, leaf"  # by the door')
        >>> observe.read_labels("names")
        {'0x0000000000200002': 'rack 7, leaf'}
    """
    labels = {}
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise RecorderError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise RecorderError(f"{path}: it is no text") from None
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            match = _LABEL.fullmatch(line)
            if match is None:
                raise RecorderError(f'{path}, line {number}: it should be a GUID and "a name": {line[:80]!r}')
            labels[match[1].lower()] = match[2]
    return labels


def _asked(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL, check=False)
    except FileNotFoundError:
        raise BackendUnavailable(f"{command[0]} is not installed: install the package infiniband-diags") from None
    except PermissionError as error:
        raise BackendUnavailable(f"{command[0]} cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise BackendUnavailable(f"{command[0]} took longer than {_TIMEOUT_S:g} s") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = next((line for line in lines if line.strip()), f"exit status {done.returncode}")
        raise BackendUnavailable(f"no InfiniBand fabric can be asked: {reason[:200]}")
    if len(done.stdout) > _MOST_NBYTES:
        raise RecorderError(f"{command[0]} printed more than {_MOST_NBYTES} bytes")
    return done.stdout.decode(errors="replace")
