"""The communication of one step of a program as a value: what a replay issues, and the file that holds it."""

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

_HEAD = Head("hocket-traffic-", 1, InvalidArgument, title="of format 'hocket-traffic-1'")
_REDUCING = frozenset(_native.REDUCING_OPS) - _native.WITH_COUNTS.keys()
WITH_ROOT = frozenset({"reduce", "broadcast", "gather", "scatter"})
WITH_BLOCKS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
"""The kinds of which `nbytes` counts one block of several."""
_KINDS = _REDUCING | WITH_ROOT | {"all_gather", "all_to_all", "barrier"}
assert _KINDS.issubset(_native.OP_NAMES)


@dataclass(frozen=True)
class TrafficStep:
    """One collective operation of a step, the same on all ranks.

    A replay first waits for the operations in `waits`, then computes for `compute_s`, then issues this one: what a
    program computed before such a wait is not overlapped any more.

    Args:
        kind: name of a collective operation of the communicator.
        nbytes: bytes of the array; of one block where there is one for every rank, as in `Record`.
        dtype: name of the element type.
        reduction: name of the reduction where the kind reduces, else None.
        root: rank of the root of an operation that has one, else None.
        is_async: issued with ``async_op=True``.
        compute_s: seconds of computation before it is issued.
        waits: indices of earlier asynchronous operations of the step that are waited for before it.

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
            raise InvalidArgument(f"nbytes must be a whole number of {self.dtype} elements, not {self.nbytes!r}")
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
            raise InvalidArgument(f"compute_s must be a number of seconds of 0 or more, not {self.compute_s!r}")
        if not isinstance(self.waits, tuple) or not all(_is_count(index) for index in self.waits):
            raise InvalidArgument(f"waits must be indices of earlier operations, not {self.waits!r}")


@dataclass(frozen=True)
class Traffic:
    """The operations of one step of a program, in issue order.

    Asynchronous operations that no step waits for are waited for at the end.

    Args:
        name: short, for tables and file names.
        num_ranks: size of the communicator; 1 or more.
        source: where the numbers are from, and what was changed in them.
        steps: the operations.

    Raises:
        InvalidArgument: num_ranks, a root or a wait does not fit.
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
                raise InvalidArgument(f"step {index}: there is no root {step.root} among {self.num_ranks} ranks")
            for waited in step.waits:
                if waited not in in_flight:
                    raise InvalidArgument(f"step {index}: nothing asynchronous is in flight as operation {waited}")
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
        """Make the traffic of a step out of what one rank recorded.

        `compute_s` is the time between the end of one operation and the issue of the next, less the waiting known from
        `waited`. A record does not say when its operation was waited for: without `waited`, all asynchronous
        operations are waited for at the end of the step. Of an operation with counts a record knows no more than the
        sum: it becomes the one with equal blocks.

        Args:
            records: of one communicator, oldest first; all of them completed collectives.
            name: of the traffic.
            num_ranks: size of the communicator.
            source: where it was recorded.
            since_ns: begin of the step, of `time.monotonic_ns`; earlier records are left out. None: all records, the
                first of them without computation before it.
            waited: (`time.monotonic_ns` at the call, `Work.seq`) of every wait of the step, in order of time.

        Raises:
            InvalidArgument: a record is of a message, of a split, or of an operation that did not complete; a wait
                names no asynchronous record.
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
        """Read what `to_json` wrote.

        Args:
            text: one JSON object.
            where: what the text is, for error messages.

        Raises:
            InvalidArgument: the text is no JSON, not of this format, or a value in it cannot be.
        """
        _, content = _HEAD.parse(text, where)
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
            InvalidArgument: there is no such file, or it does not hold a traffic; the message names it.
        """
        return cls.from_json(read_text(path, InvalidArgument), where=str(path))

    def to_json(self) -> str:
        """Return the traffic as one JSON object, an operation a line; fields at their default are left out."""
        head = {"format": _HEAD.text, "name": self.name, "num_ranks": self.num_ranks, "source": self.source}
        lines = [json.dumps(_short(step)) for step in self.steps]
        return json.dumps(head)[:-1] + ', "steps": [\n' + ",\n".join(lines) + "\n]}\n"

    def save(self, path: str | Path) -> None:
        """Write the traffic to a file.

        Raises:
            OSError: the file could not be written.
        """
        Path(path).write_text(self.to_json(), encoding="utf-8")

    def scaled(self, *, nbytes: float = 1.0, compute: float = 1.0) -> Traffic:
        """Return the same operations with other sizes; `source` says so.

        Args:
            nbytes: factor of the bytes, rounded to whole elements and at least one where there was one.
            compute: factor of the seconds of computation.

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
        """Return the same operations between another number of ranks; `source` says so.

        Every rank's arrays stay as long as they were, as when a model is trained on more ranks with as much work for
        each: where there is a block for every rank, blocks become as many times smaller as there are more of them. What
        follows from the number of ranks otherwise (fewer experts or shards a rank) does not change.

        Args:
            num_ranks: 1 or more; roots have to be among them.

        Raises:
            InvalidArgument: it is not, or a root is not among them.
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
        """Return the number of operations and the sum of their `nbytes`, by kind."""
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
    """Time that a wait called at `at_ns` took, to the completion of the operation."""
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
