"""What `hocket observe fabric --json` prints of a fabric, and how it is read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isnan
from typing import Any

from hocket.errors import InvalidArgument
from hocket.observe.fabric import FabricChange, FabricNode, InfinibandFabric, PortKey
from hocket.observe.fabric_sweep import ERRORS, FabricSweep
from hocket.typed_json import record_from
from hocket.versioned_json import Head

HEAD = Head("hocket fabric, version ", 1, InvalidArgument)
KINDS = ("adapter", "switch", "router")
CHANGES = ("link down", "link up", "link moved", "node gone", "node new")
_MOST_NODES, _MOST_ROWS = 100_000, 1_000_000
_MOST_GUID, _MOST_NAME = 64, 1000
_MOST_PORT, _MOST_LID = 255, 65535
_MOST_COUNT = 2.0**64
"""No counter of a port has more than 64 bits."""
_MOST_S, _MOST_NBYTES_S = 1e9, 1e15
_MOST_USE = 1000.0
"""Ports are not all asked at the same moment: in a short interval one may have sent for longer than that."""


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
    ports = [each for link in found.links for each in (link, link.to)]
    for port in (*ports, *found.errors, *found.without_answer):
        if port.guid not in known:
            return f"nodes has no {port.guid!r:.40}, whose port {port.port!r:.40} is named"
        if not 0 <= port.port <= _MOST_PORT:
            return (
                f"port {port.port!r:.40} of {port.guid!r:.40} is out of range: ports have the numbers 0 to {_MOST_PORT}"
            )
    return _problem_of_choices(found) or _problem_of_texts(found) or _problem_of_numbers(found)


def _problem_of_choices(found: FabricFile) -> str:
    choices: dict[str, tuple[tuple[str, ...], list[str]]] = {
        "kind of nodes": (KINDS, [each.kind for each in found.nodes]),
        "kind of changes": (CHANGES, [each.kind for each in found.changes]),
        "counter of errors": (tuple(ERRORS), [each.counter for each in found.errors]),
    }
    for name, (known, texts) in choices.items():
        for text in texts:
            if text not in known:
                return f"{name} must be one of {', '.join(known)}, not {text!r:.40}"
    return ""


def _problem_of_texts(found: FabricFile) -> str:
    named: dict[str, Sequence[Any]] = {
        "nodes": found.nodes, "links": found.links, "to of links": [each.to for each in found.links],
        "errors": found.errors, "changes": found.changes, "without_answer": found.without_answer,
    }  # fmt: skip
    texts = {f"guid of {name}": (_MOST_GUID, [each.guid for each in rows]) for name, rows in named.items()}
    texts |= {f"name of {name}": (_MOST_NAME, [each.name for each in rows]) for name, rows in named.items()}
    texts["speed of links"] = _MOST_NAME, [each.speed for each in found.links]
    for name, (most, values) in texts.items():
        for text in values:
            if len(text) > most:
                return f"{name} has {len(text)} characters, in {text!r:.40}; at most {most} are read"
    return ""


def _problem_of_numbers(found: FabricFile) -> str:
    links, errors = found.links, found.errors
    numbers: dict[str, tuple[float, Sequence[float | None]]] = {
        "interval_s": (_MOST_S, [found.interval_s]),
        "sweep_s": (_MOST_S, [found.sweep_s]),
        "num_ports": (_MOST_NODES * (_MOST_PORT + 1), [found.num_ports]),
        "lid of nodes": (_MOST_LID, [each.lid for each in found.nodes]),
        "number of changes": (_MOST_PORT, [each.number for each in found.changes]),
        "nbytes_s of links": (_MOST_NBYTES_S, [each.nbytes_s for each in links]),
        "use of links": (_MOST_USE, [each.use for each in links]),
        "waits of links": (_MOST_COUNT, [each.waits for each in links]),
        "value of errors": (_MOST_COUNT, [each.value for each in errors]),
        "more of errors": (_MOST_COUNT, [each.more for each in errors]),
    }
    for name, (most, values) in numbers.items():
        for value in values:
            if value is not None and not 0 <= value <= most:
                return f"{name} must be from 0 to {most:.15g}, not {value!r:.40}"
    return ""
