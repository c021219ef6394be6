"""What `hocket observe fabric --json` prints of a fabric, and how it is read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite, isnan
from typing import Any

from hocket.errors import InvalidArgument
from hocket.observe.fabric import FabricChange, FabricNode, InfinibandFabric, PortKey
from hocket.observe.fabric_sweep import ERRORS, FabricSweep
from hocket.typed_json import record_from
from hocket.versioned_json import Head

HEAD = Head("hocket fabric, version ", 1, InvalidArgument)
KINDS = ("adapter", "switch", "router")
_MOST_NODES, _MOST_ROWS = 100_000, 1_000_000
_MOST_NUMBER = 1e300


@dataclass(frozen=True)
class NamedPort:
    """A port with the name of its node."""

    guid: str
    port: int
    name: str


@dataclass(frozen=True)
class FabricLink:
    """One direction of a link.

    Args:
        guid, port, name: of the port that sends.
        to: the port that receives.
        speed: such as "4x EDR".
        nbytes_s: bytes/s that were sent; None: not known.
        use: share of what the link can carry; None: not known.
        waits: ticks in which the port had data to send and might not; None: not known.
    """

    guid: str
    port: int
    name: str
    to: NamedPort
    speed: str
    nbytes_s: float | None
    use: float | None
    waits: float | None


@dataclass(frozen=True)
class FabricErrors:
    """A counter of errors that is not zero.

    Args:
        guid, port, name: of the port.
        counter: one of `hocket.observe.fabric_sweep.ERRORS`.
        value: since it was reset; None: it is at its largest value.
        more: of that in the interval; None: not known.
    """

    guid: str
    port: int
    name: str
    counter: str
    value: float | None
    more: float | None


@dataclass(frozen=True)
class FabricFile:
    """A fabric, and what its ports counted in an interval.

    Args:
        nodes: all.
        links: each direction of each link whose port answered, the most used one first.
        errors: of ports.
        changes: what differed after the interval.
        without_answer: ports with a link that did not answer.
        interval_s: seconds in which bytes were counted.
        sweep_s: seconds that it took to ask all ports once.
        num_ports: how many were asked.
    """

    nodes: tuple[FabricNode, ...]
    links: tuple[FabricLink, ...]
    errors: tuple[FabricErrors, ...]
    changes: tuple[FabricChange, ...]
    without_answer: tuple[NamedPort, ...]
    interval_s: float
    sweep_s: float
    num_ports: int

    @classmethod
    def of(
        cls, fabric: InfinibandFabric, before: FabricSweep, after: FabricSweep, changes: Sequence[FabricChange],
        num_ports: int,
    ) -> FabricFile:  # fmt: skip
        """Return what two sweeps of a fabric say.

        Args:
            fabric: as it was discovered.
            before, after: the sweeps.
            changes: from `InfinibandFabric.changes_since`.
            num_ports: how many ports were asked.
        """
        grown, interval_s = after.since(before), after.at_s - before.at_s
        errors = (
            FabricErrors(*_named(fabric, key), name, _known(value), _known(grown[key].get(name)))
            for key, values in after.counters.items()
            for name, value in values.items()
            if name in ERRORS and (value > 0 or isnan(value))
        )
        silent = sorted(key for key, port in fabric.ports.items() if port.peer and key not in after.counters)
        return cls(
            nodes=tuple(fabric.nodes.values()),
            links=tuple(_links(fabric, grown, interval_s)),
            errors=tuple(errors),
            changes=tuple(changes),
            without_answer=tuple(NamedPort(*_named(fabric, key)) for key in silent),
            interval_s=interval_s,
            sweep_s=after.seconds,
            num_ports=num_ports,
        )

    def content(self) -> dict[str, Any]:
        """Return it as an object of JSON."""
        return {HEAD.key: HEAD.text, **asdict(self)}

    @classmethod
    def from_json(cls, text: str, place: str) -> FabricFile:
        """Read what was printed.

        Args:
            text: JSON.
            place: origin of the text, for messages.

        Raises:
            InvalidArgument: the text is no such object; names the place, and what is wrong.
        """
        _, content = HEAD.parse(text, place)
        try:
            found = record_from(cls, content)
        except KeyError as error:
            raise InvalidArgument(f"{place}: the key {error} is missing") from None
        except TypeError as error:
            raise InvalidArgument(f"{place}: {error}") from None
        if problem := _problem(found):
            raise InvalidArgument(f"{place}: {problem}")
        return found


def _named(fabric: InfinibandFabric, key: PortKey) -> tuple[str, int, str]:
    return *key, fabric.nodes[key[0]].name


def _known(value: float | None) -> float | None:
    return None if value is None or isnan(value) else value


def _links(fabric: InfinibandFabric, grown: dict[PortKey, dict[str, float]], interval_s: float) -> list[FabricLink]:
    links = []
    for key, counts in grown.items():
        port = fabric.ports[key]
        if port.peer is None:
            continue
        nbytes_s, rate = _known(counts["sent_nbytes"] / interval_s), port.rate_nbytes_s
        use = None if rate is None or nbytes_s is None else nbytes_s / rate
        other, waits = NamedPort(*_named(fabric, port.peer)), _known(counts.get("send_waits"))
        links.append(FabricLink(*_named(fabric, key), other, port.width_and_speed, nbytes_s, use, waits))
    return sorted(links, key=lambda each: 1.0 if each.nbytes_s is None else -each.nbytes_s)


def _problem(found: FabricFile) -> str:
    """What is wrong with values that have the right types; "": nothing."""
    lengths = {"links": found.links, "errors": found.errors, "changes": found.changes,
               "without_answer": found.without_answer}  # fmt: skip
    if len(found.nodes) > _MOST_NODES:
        return f"it has {len(found.nodes)} nodes; at most {_MOST_NODES} are read"
    for name, rows in lengths.items():
        if len(rows) > _MOST_ROWS:
            return f"{name} has {len(rows)} entries; at most {_MOST_ROWS} are read"
    known = {each.guid for each in found.nodes}
    if len(known) < len(found.nodes):
        return "two nodes have the same guid"
    for node in found.nodes:
        if node.kind not in KINDS:
            return f"the kind of node {node.guid!r:.40} must be one of {', '.join(KINDS)}, not {node.kind!r:.40}"
    ports = [each for link in found.links for each in (link, link.to)]
    for port in (*ports, *found.errors, *found.without_answer):
        if port.guid not in known:
            return f"nodes has no {port.guid!r:.40}, whose port {port.port} is named"
        if not 0 <= port.port < 256:
            return f"port {port.port} of {port.guid!r:.40} is out of range: ports have the numbers 0 to 255"
    numbers: dict[str, Sequence[float | None]] = {
        "interval_s": [found.interval_s], "sweep_s": [found.sweep_s], "num_ports": [found.num_ports],
        "nbytes_s, use and waits of links": [n for each in found.links for n in (each.nbytes_s, each.use, each.waits)],
        "value and more of errors": [number for each in found.errors for number in (each.value, each.more)],
    }  # fmt: skip
    for name, values in numbers.items():
        for value in values:
            if value is not None and not (isfinite(value) and 0 <= value <= _MOST_NUMBER):
                return f"{name} must not be negative, but one is {value!r:.40}"
    return ""
