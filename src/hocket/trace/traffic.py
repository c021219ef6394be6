"""The communication of one step of a program as a value, and its file format. A replay issues its operations."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hocket import _native
from hocket.errors import InvalidArgument
from hocket.suggestions import unknown
from hocket.trace.record import Record
from hocket.versioned_json import Head, read_text

HEAD = Head("hocket-traffic-", 1, InvalidArgument, title="of format 'hocket-traffic-1'")
_REDUCING = frozenset(_native.REDUCING_OPS) - _native.WITH_COUNTS.keys()
WITH_ROOT = frozenset({"reduce", "broadcast", "gather", "scatter"})
WITH_BLOCKS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
"""The kinds whose `nbytes` is the size of one block of several."""
_KINDS = _REDUCING | WITH_ROOT | {"all_gather", "all_to_all", "barrier"}
assert _KINDS.issubset(_native.OP_NAMES)


@dataclass(frozen=True)
class TrafficStep:
    """One collective operation of a step, the same on all ranks.

    A replay first waits for the operations in `waits`, then computes for `compute_s`, then issues this operation. So
    computation that the program did before such a wait is no longer overlapped.

    Args:
        kind: name of a collective operation of the communicator.
        nbytes: bytes of the array; bytes of one block for operations with one block per rank, as in `Record`.
        dtype: name of the element type.
        reduction: name of the reduction if the kind reduces, else None.
        root: rank of the root if the kind has a root, else None.
        is_async: whether it is issued with ``async_op=True``.
        compute_s: seconds of computation before the issue.
        waits: indices of the step's earlier asynchronous operations to wait for first.

    Raises:
        InvalidArgument: a field contradicts its description, or another field.
    """

    kind: str
    nbytes: int
    dtype: str = "float32"
    reduction: str | None = None
    root: int | None = None
    is_async: bool = False
    compute_s: float = 0.0
    waits: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in _KINDS:
            raise InvalidArgument(f"kind must be one of {', '.join(sorted(_KINDS))}, not {self.kind!r}")
        if not isinstance(self.dtype, str) or self.dtype not in _native.ITEM_NBYTES:
            raise InvalidArgument(f"dtype must be one of {', '.join(_native.ITEM_NBYTES)}, not {self.dtype!r}")
        if not _is_count(self.nbytes) or self.nbytes % _native.ITEM_NBYTES[self.dtype]:
            raise InvalidArgument(f"nbytes must be a multiple of the size of {self.dtype}, not {self.nbytes!r}")
        if self.kind == "barrier" and self.nbytes:
            raise InvalidArgument(f"nbytes of a barrier must be 0, not {self.nbytes}")
        reductions = _native.REDUCE_NAMES if self.kind in _REDUCING else (None,)
        if self.reduction not in reductions:
            raise InvalidArgument(f"reduction of {self.kind} must be one of {reductions}, not {self.reduction!r}")
        if not (_is_count(self.root) if self.kind in WITH_ROOT else self.root is None):
            rule = "a rank" if self.kind in WITH_ROOT else "None"
            raise InvalidArgument(f"root of {self.kind} must be {rule}, not {self.root!r}")
        if not isinstance(self.is_async, bool):
            raise InvalidArgument(f"is_async must be true or false, not {self.is_async!r}")
        if not _is_number(self.compute_s) or not 0 <= self.compute_s < math.inf:
            raise InvalidArgument(f"compute_s must be 0 or more seconds, not {self.compute_s!r}")
        if not isinstance(self.waits, tuple) or not all(_is_count(index) for index in self.waits):
            raise InvalidArgument(f"waits must be indices of earlier operations, not {self.waits!r}")


@dataclass(frozen=True)
class Traffic:
    """The operations of one step of a program, in issue order.

    A replay waits at the end for asynchronous operations that no step waits for.

    Args:
        name: short name for tables and file names.
        num_ranks: size of the communicator; 1 or more.
        source: origin of the numbers, and changes made to them.
        steps: the operations.

    Raises:
        InvalidArgument: num_ranks, a root or a wait is invalid.
    """

    name: str
    num_ranks: int
    source: str
    steps: tuple[TrafficStep, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not isinstance(self.source, str):
            raise InvalidArgument(f"name and source must be text, not {self.name!r} and {self.source!r}")
        if not _is_count(self.num_ranks) or not 1 <= self.num_ranks < 1 << 31:
            raise InvalidArgument(f"num_ranks must lie between 1 and {(1 << 31) - 1}, not {str(self.num_ranks)[:40]!r}")
        in_flight: set[int] = set()
        for index, step in enumerate(self.steps):
            if step.root is not None and step.root >= self.num_ranks:
                raise InvalidArgument(f"step {index}: root {step.root} does not exist among {self.num_ranks} ranks")
            for waited in step.waits:
                if waited not in in_flight:
                    raise InvalidArgument(f"step {index}: operation {waited} is not asynchronous and in flight")
                in_flight.remove(waited)
            if step.is_async:
                in_flight.add(index)

    @classmethod
    def from_records(
        cls,
        records: Iterable[Record],
        *,
        name: str,
        num_ranks: int,
        source: str,
        since_ns: int | None = None,
        waited: Sequence[tuple[int, int]] = (),
    ) -> Traffic:
        """Make the traffic of a step from the records of one rank.

        `compute_s` is the time between the end of one operation and the issue of the next, minus the waits in `waited`.
        A record does not say when the program waited for its operation: without `waited`, the traffic waits for all
        asynchronous operations at the end of the step. A record of an operation with counts has only their sum: it
        becomes the same operation with equal blocks.

        Args:
            records: records of one communicator, oldest first; all of completed collectives.
            name: name of the traffic.
            num_ranks: size of the communicator.
            source: where it was recorded.
            since_ns: start of the step, by `time.monotonic_ns`; earlier records are left out. None: use all records;
                the first then has no computation before it.
            waited: (`time.monotonic_ns` at the call, `Work.seq`) of every wait of the step, in order of time.

        Raises:
            InvalidArgument: a record is of a message, of a split, or of an operation that did not complete; or a wait
                names an operation without an asynchronous record.
        """
        kept = [record for record in records if since_ns is None or record.begin_ns >= since_ns]
        index_of = {record.seq: index for index, record in enumerate(kept) if record.is_async}
        unknown = [seq for _, seq in waited if seq not in index_of]
        if unknown:
            raise InvalidArgument(f"waited names operation {unknown[0]}, which is not among the asynchronous records")
        steps: list[TrafficStep] = []
        pending = [(at_ns, index_of[seq]) for at_ns, seq in waited]
        free_ns = since_ns
        for record in (_with_equal_blocks(record, num_ranks) for record in kept):
            if record.op not in _KINDS or record.seconds is None or record.state != "completed":
                raise InvalidArgument(
                    f"operation {record.seq}, {record.op}, {record.state}: not a completed collective"
                )
            due = [wait for wait in pending if wait[0] <= record.begin_ns]
            pending = pending[len(due) :]
            compute_ns = record.begin_ns - (record.begin_ns if free_ns is None else free_ns)
            compute_ns -= sum(_waiting_ns(at_ns, kept[index]) for at_ns, index in due)
            root = record.peer if record.op in WITH_ROOT else None
            steps.append(
                TrafficStep(
                    *(record.op, record.nbytes, record.dtype, record.reduction, root),
                    is_async=record.is_async,
                    compute_s=max(0, compute_ns) * 1e-9,
                    waits=tuple(dict.fromkeys(index for _, index in due)),
                )
            )
            free_ns = record.begin_ns + (0 if record.is_async else round(record.seconds * 1e9))
        return cls(name, num_ranks, source, tuple(steps))

    @classmethod
    def from_json(cls, text: str, *, where: str = "traffic") -> Traffic:
        """Read the output of `to_json`.

        Args:
            text: one JSON object.
            where: name of the text, for error messages.

        Raises:
            InvalidArgument: the text is not JSON, not of this format, or has an invalid value.
        """
        _, content = HEAD.parse(text, where)
        place = where
        try:
            _check_keys(cls, content)
            if not isinstance(content["steps"], list):
                raise InvalidArgument("steps must be a list")
            steps = []
            for index, step in enumerate(content["steps"]):
                place = f"{where}, step {index}"
                steps.append(_read_step(step))
            place = where
            return cls(**(content | {"steps": tuple(steps)}))
        except InvalidArgument as error:
            raise InvalidArgument(f"{place}: {error}") from None

    @classmethod
    def load(cls, path: str | Path) -> Traffic:
        """Read a file that `save` wrote.

        Raises:
            InvalidArgument: the file does not exist, or is not a traffic file; the message names it.
        """
        return cls.from_json(read_text(path, InvalidArgument), where=str(path))

    def to_json(self) -> str:
        """Return the traffic as one JSON object, one operation per line; fields with default values are left out."""
        head = {"format": HEAD.text, "name": self.name, "num_ranks": self.num_ranks, "source": self.source}
        lines = [json.dumps(_short(step)) for step in self.steps]
        return json.dumps(head)[:-1] + ', "steps": [\n' + ",\n".join(lines) + "\n]}\n"

    def save(self, path: str | Path) -> None:
        """Write the traffic to a file.

        Raises:
            OSError: the file could not be written.
        """
        Path(path).write_text(self.to_json(), encoding="utf-8")

    def scaled(self, *, nbytes: float = 1.0, compute: float = 1.0) -> Traffic:
        """Return the same operations with scaled sizes; `source` states the factors.

        Args:
            nbytes: factor for the bytes; rounded to whole elements, at least one element if there was one before.
            compute: factor for the seconds of computation.

        Raises:
            InvalidArgument: a factor is not a number of 0 or more.
        """
        for factor in (nbytes, compute):
            if not _is_number(factor) or not 0 <= factor < math.inf:
                raise InvalidArgument(f"a factor must be a number of 0 or more, not {factor!r}")
        pairs = [(step, _scaled_nbytes(step, nbytes)) for step in self.steps]
        steps = tuple(replace(step, nbytes=size, compute_s=step.compute_s * compute) for step, size in pairs)
        return replace(self, source=f"{self.source}; bytes x {nbytes:g}, computation x {compute:g}", steps=steps)

    def between(self, num_ranks: int) -> Traffic:
        """Return the same operations between another number of ranks; `source` states the old number.

        The arrays of every rank keep their lengths, as in training on more ranks with the same work per rank: blocks
        per rank shrink by the factor by which their number grows. Other effects of the number of ranks (fewer experts
        or shards per rank) are not modelled.

        Args:
            num_ranks: new number of ranks, 1 or more; must include all roots.

        Raises:
            InvalidArgument: num_ranks is below 1, or a root is not below it.
        """
        if not _is_count(num_ranks) or num_ranks < 1:
            raise InvalidArgument(f"num_ranks must be 1 or more, not {num_ranks!r}")
        factor = self.num_ranks / num_ranks
        steps = tuple(
            replace(step, nbytes=_scaled_nbytes(step, factor)) if step.kind in WITH_BLOCKS else step
            for step in self.steps
        )
        source = f"{self.source}; carried over from {self.num_ranks} ranks"
        return replace(self, num_ranks=num_ranks, source=source, steps=steps)

    def totals(self) -> dict[str, tuple[int, int]]:
        """Return, for each kind, the number of operations and the sum of their `nbytes`."""
        counted: dict[str, tuple[int, int]] = {}
        for step in self.steps:
            count, nbytes = counted.get(step.kind, (0, 0))
            counted[step.kind] = (count + 1, nbytes + step.nbytes)
        return counted


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _with_equal_blocks(record: Record, num_ranks: int) -> Record:
    if record.op not in _native.WITH_COUNTS:
        return record
    items = record.nbytes // _native.ITEM_NBYTES[record.dtype] // num_ranks
    return replace(record, op=_native.WITH_COUNTS[record.op], nbytes=items * _native.ITEM_NBYTES[record.dtype])


def _waiting_ns(at_ns: int, record: Record) -> int:
    """Return the time from a wait at `at_ns` to the completion of the operation."""
    return max(0, record.begin_ns + round((record.seconds or 0.0) * 1e9) - at_ns)


def _scaled_nbytes(step: TrafficStep, factor: float) -> int:
    item_nbytes = _native.ITEM_NBYTES[step.dtype]
    return max(1, round(step.nbytes // item_nbytes * factor)) * item_nbytes if step.nbytes else 0


def _check_keys(cls: type, content: Mapping[str, Any], optional: Iterable[str] = ()) -> None:
    known = {each.name for each in fields(cls)}
    if wrong := sorted(set(content) - known):
        raise InvalidArgument(unknown("field", wrong[0], sorted(known)))
    if missing := sorted(known - set(content) - set(optional)):
        raise InvalidArgument(f"the field {missing[0]!r} is missing")


def _read_step(content: object) -> TrafficStep:
    if not isinstance(content, dict):
        raise InvalidArgument(f"a step must be an object, not {content!r}")
    _check_keys(TrafficStep, content, optional={each.name for each in fields(TrafficStep)} - {"kind", "nbytes"})
    waits = content.get("waits", [])
    if not isinstance(waits, list):
        raise InvalidArgument(f"waits must be a list, not {waits!r}")
    return TrafficStep(**(content | {"waits": tuple(waits)}))


def _short(step: TrafficStep) -> dict[str, Any]:
    defaults = {each.name: each.default for each in fields(TrafficStep) if each.name != "dtype"}
    return {key: value for key, value in asdict(step).items() if key not in defaults or value != defaults[key]}
