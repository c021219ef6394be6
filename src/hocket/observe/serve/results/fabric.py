"""InfiniBand fabrics: switches and hosts, links by use, errors of ports, and what changed."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from hocket.observe.fabric_file import HEAD, FabricFile, FabricLink
from hocket.observe.serve.result import ResultFile, ResultKind, ResultSource, shorten

_MOST_SINGLE = 40
"""Of more hosts, those of a switch are drawn as one."""
_MOST_ROWS = 10_000
_MOST_NODES, _MOST_LINES = 2000, 1000
"""Of more nodes of the picture, only the ends of the most used lines are in it."""
_Ends = tuple[str, str]
_Order = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class DrawnNode:
    """A node of the picture.

    Args:
        id: in the lines.
        name: of the node, or of the switch whose hosts it stands for.
        kind: "switch", "router" or "adapter".
        level: 0: hosts; 1: switches with hosts; 2: switches above these, and so on.
        num_nodes: for how many it stands.
    """

    id: str
    name: str
    kind: str
    level: int
    num_nodes: int


@dataclass(frozen=True)
class DrawnLine:
    """All links between two nodes of the picture: "nbytes_s" and "use" are those of the most used direction of them."""

    source: str
    target: str
    num_links: int
    nbytes_s: float | None
    use: float | None


@dataclass(frozen=True)
class FabricLinkRow:
    """A direction of a link."""

    name: str
    port: int
    to_name: str
    to_port: int
    speed: str
    nbytes_s: float | None
    use: float | None
    waits: float | None


@dataclass(frozen=True)
class FabricSwitchRow:
    """A switch.

    Args:
        name, level: as in the picture.
        num_hosts, num_links: of it.
        nbytes_s: that it sent on all links whose rate is known.
        most_use: of its most used link, in any direction.
        num_errors: counters of errors of its ports that are not zero.
        num_silent: ports without an answer.
    """

    name: str
    level: int
    num_hosts: int
    num_links: int
    nbytes_s: float
    most_use: float | None
    num_errors: int
    num_silent: int


@dataclass(frozen=True)
class FabricErrorRow:
    """A counter of errors; "value" null: it is at its largest value."""

    name: str
    port: int
    counter: str
    value: float | None
    more: float | None


@dataclass(frozen=True)
class FabricChangeRow:
    """What changed in the interval; port 0: the node."""

    name: str
    port: int
    kind: str


@dataclass(frozen=True)
class SilentPort:
    """A port that did not answer."""

    name: str
    port: int


@dataclass(frozen=True)
class FabricAnswer:
    """The answer.

    Args:
        num_adapters, num_switches, num_links: of the fabric, as far as ports answered.
        num_ports, sweep_s: how many were asked, and how long that took.
        interval_s: in which bytes were counted.
        nodes: of the picture; many hosts of a switch are one.
        lines: between them, the most used ones first, at most 10,000 of "num_lines".
        switches: those with the most used link first.
        links: the most used directions first, at most 10,000 of "num_directions".
        errors, changes, silent: at most 10,000 each.
    """

    num_adapters: int
    num_switches: int
    num_links: int
    num_directions: int
    num_ports: int
    sweep_s: float
    interval_s: float
    nodes: list[DrawnNode]
    lines: list[DrawnLine]
    num_lines: int
    switches: list[FabricSwitchRow]
    links: list[FabricLinkRow]
    errors: list[FabricErrorRow]
    changes: list[FabricChangeRow]
    silent: list[SilentPort]


def _load(file: ResultFile) -> FabricFile:
    return FabricFile.from_json(file.text, str(file.path))


def _make(source: ResultSource) -> FabricAnswer:
    fabric: FabricFile = source.value
    kinds = Counter(node.kind for node in fabric.nodes)
    levels = _levels(fabric)
    nodes, lines = _picture(fabric, levels)
    return FabricAnswer(
        kinds["adapter"], kinds["switch"], len({_cable(link) for link in fabric.links}), len(fabric.links),
        fabric.num_ports, fabric.sweep_s, fabric.interval_s, nodes, lines[:_MOST_ROWS], len(lines),
        _switches(fabric, levels),
        [
            FabricLinkRow(shorten(each.name), each.port, shorten(each.to.name), each.to.port, shorten(each.speed),
                          each.nbytes_s, each.use, each.waits)
            for each in sorted(fabric.links, key=_by_use)[:_MOST_ROWS]
        ],
        [FabricErrorRow(shorten(each.name), each.port, shorten(each.counter), each.value, each.more)
         for each in fabric.errors[:_MOST_ROWS]],
        [FabricChangeRow(shorten(each.name), each.number, shorten(each.kind)) for each in fabric.changes[:_MOST_ROWS]],
        [SilentPort(shorten(each.name), each.port) for each in fabric.without_answer[:_MOST_ROWS]],
    )  # fmt: skip


def _cable(link: FabricLink) -> frozenset[tuple[str, int]]:
    """Both ends of a link, in no order."""
    return frozenset({(link.guid, link.port), (link.to.guid, link.to.port)})


def _by_use(link: FabricLink | DrawnLine) -> tuple[bool, float, float]:
    return link.use is None, -(link.use or 0.0), -(link.nbytes_s or 0.0)


def _neighbors(fabric: FabricFile) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for link in fabric.links:
        found[link.guid].add(link.to.guid)
        found[link.to.guid].add(link.guid)
    return found


def _levels(fabric: FabricFile) -> dict[str, int]:
    """How many links each node is from the next host; nodes that no host reaches are at the top."""
    neighbors = _neighbors(fabric)
    levels = {node.guid: 0 for node in fabric.nodes if node.kind == "adapter"}
    front = [*levels]
    while front:
        found = dict.fromkeys(other for guid in front for other in neighbors[guid] if other not in levels)
        levels |= dict.fromkeys(found, levels[front[0]] + 1)
        front = [*found]
    top = max(levels.values(), default=0) + 1
    return {node.guid: levels.get(node.guid, top) for node in fabric.nodes}


def _picture(fabric: FabricFile, levels: Mapping[str, int]) -> tuple[list[DrawnNode], list[DrawnLine]]:
    """Nodes, and lines with the most used ones first; hosts of a switch are one node if there are many."""
    kinds = {node.guid: node.kind for node in fabric.nodes}
    neighbors = _neighbors(fabric)
    groups = {guid: guid for guid in kinds}
    if sum(kind == "adapter" for kind in kinds.values()) > _MOST_SINGLE:
        groups |= {guid: _group(neighbors[guid], kinds) for guid, kind in kinds.items() if kind == "adapter"}
    sizes = Counter(groups.values())
    names = {node.guid: shorten(node.name) for node in fabric.nodes}
    nodes: dict[str, DrawnNode] = {}
    for guid, group in groups.items():
        title = names[guid] if group == guid else names.get(group.removeprefix(_HOSTS_OF), "no switch")
        nodes.setdefault(group, DrawnNode(group, title, kinds[guid], levels[guid], sizes[group]))
    directions: dict[_Ends, list[FabricLink]] = defaultdict(list)
    for link in fabric.links:
        one, other = sorted((groups[link.guid], groups[link.to.guid]))
        directions[one, other].append(link)
    lines = []
    for (one, other), links in directions.items():
        most = min(links, key=_by_use)
        lines.append(DrawnLine(one, other, len({_cable(link) for link in links}), most.nbytes_s, most.use))
    lines.sort(key=_by_use)
    if len(nodes) > _MOST_NODES:
        drawn = {end for line in lines[:_MOST_LINES] for end in (line.source, line.target)}
        nodes = {group: node for group, node in nodes.items() if group in drawn}
    order = sorted(nodes.values(), key=lambda node: (node.level, _place(node, neighbors, names), _natural(node.name)))
    return order, lines


_HOSTS_OF = "hosts of "


def _group(neighbors: set[str], kinds: Mapping[str, str]) -> str:
    """The node of the picture for a host: that of the hosts of its first switch."""
    return _HOSTS_OF + min((each for each in neighbors if kinds[each] != "adapter"), default="")


def _place(node: DrawnNode, neighbors: Mapping[str, set[str]], names: Mapping[str, str]) -> _Order:
    """What nodes of a level are ordered by: hosts stand below their switch."""
    if node.level or node.id.startswith(_HOSTS_OF):
        return _natural(node.name)
    return min((_natural(names[each]) for each in neighbors[node.id]), default=())


def _natural(name: str) -> _Order:
    """The order of names in which "leaf2" comes before "leaf10"."""
    parts = re.split(r"([0-9]{1,18})", name)
    return tuple((text, int(digits or 0)) for text, digits in zip(parts[::2], [*parts[1::2], ""], strict=True))


def _switches(fabric: FabricFile, levels: Mapping[str, int]) -> list[FabricSwitchRow]:
    hosts = {node.guid for node in fabric.nodes if node.kind == "adapter"}
    cables: dict[str, set[frozenset[tuple[str, int]]]] = defaultdict(set)
    own_hosts: dict[str, set[str]] = defaultdict(set)
    sent: dict[str, float] = defaultdict(float)
    uses: dict[str, list[float]] = defaultdict(list)
    for link in fabric.links:
        sent[link.guid] += link.nbytes_s or 0.0
        for guid, other in ((link.guid, link.to.guid), (link.to.guid, link.guid)):
            cables[guid].add(_cable(link))
            own_hosts[guid] |= {other} & hosts
            uses[guid] += [] if link.use is None else [link.use]
    errors = Counter(each.guid for each in fabric.errors)
    silent = Counter(each.guid for each in fabric.without_answer)
    rows = [
        FabricSwitchRow(shorten(node.name), levels[node.guid], len(own_hosts[node.guid]), len(cables[node.guid]),
                        sent[node.guid], max(uses[node.guid], default=None), errors[node.guid], silent[node.guid])
        for node in fabric.nodes
        if node.kind != "adapter"
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (row.most_use is None, -(row.most_use or 0.0), _natural(row.name)))


RESULT = ResultKind(
    "fabric", "an InfiniBand fabric", "hocket observe fabric --json > FILE", HEAD, FabricAnswer, _load, _make
)  # fmt: skip
