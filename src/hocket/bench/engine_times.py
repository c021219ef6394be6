"""Times of gradient engines: what `hocket bench engines` writes, how it is read again, and which is the fastest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hocket.errors import InvalidArgument
from hocket.typed_json import record_from
from hocket.versioned_json import Head

HEAD = Head("hocket gradient engines, version ", 1, InvalidArgument)
_MOST_ROWS = 10_000
_MOST_TEXT = 200
_LEAST_MS, _MOST_MS = 1e-12, 1e12
_MOST_COUNT = 1 << 31
_MOST_NBYTES = 1 << 60


@dataclass(frozen=True)
class EngineTime:
    """How long an engine takes for the gradients of a model.

    Args:
        model: name of the model.
        engine: name of the engine, and its options, such as "fused cycle_ms=5".
        batch: samples of each rank in a step.
        num_ranks, num_hosts: of the job.
        nbytes: bytes of the gradients.
        compute_ms: milliseconds of computation in a step beside the exchange.
        ms: milliseconds of a step, the median.
        low_ms, high_ms: its 95 % interval; equal to `ms` in a simulation.
        is_simulated: whether it is the time of virtual ranks.

    Examples:
        >>> row = EngineTime("gpt", "ring", 8, 4, 1, 1 << 20, 0.0, 2.0, 1.9, 2.1, False)
        >>> row.samples_per_s
        16000.0
    """

    model: str
    engine: str
    batch: int
    num_ranks: int
    num_hosts: int
    nbytes: int
    compute_ms: float
    ms: float
    low_ms: float
    high_ms: float
    is_simulated: bool

    @property
    def ns_per_byte(self) -> float:
        """Nanoseconds of a step for each byte of gradients."""
        return self.ms * 1e6 / self.nbytes

    @property
    def samples_per_s(self) -> float:
        """Samples of all ranks in a second."""
        return 1e3 * self.batch * self.num_ranks / self.ms


@dataclass(frozen=True)
class EngineTimes:
    """The results of a measurement.

    Args:
        rows: times, in the order of models and engines.
        core_factor: how much more two independent processes computed at once.
        foreign_busy: share of the processors' time that other programs took.
        link: what connects the virtual ranks of simulated rows; empty without such rows.
    """

    rows: tuple[EngineTime, ...]
    core_factor: float
    foreign_busy: float
    link: str = ""

    def dump(self) -> dict[str, Any]:
        """Return what JSON can represent."""
        return {
            HEAD.key: HEAD.text,
            "core_factor": self.core_factor,
            "foreign_busy": self.foreign_busy,
            "link": self.link,
            "rows": [asdict(each) for each in self.rows],
        }

    @classmethod
    def from_json(cls, text: str, place: str) -> EngineTimes:
        """Read what `dump` has returned.

        Args:
            text: JSON.
            place: origin of the text, for messages.

        Raises:
            InvalidArgument: the text is no such object; names the place, and the field that is wrong.
        """
        _, content = HEAD.parse(text, place)
        rows: Any = content.get("rows")
        if not isinstance(rows, list) or not 0 < len(rows) <= _MOST_ROWS:
            raise InvalidArgument(f"{place}: rows must be a list of 1 to {_MOST_ROWS} rows")
        core_factor = _number_in(content, "core_factor", 1e6, place)
        foreign_busy = _number_in(content, "foreign_busy", 1.0, place)
        link: Any = content.get("link")
        if not isinstance(link, str) or len(link) > _MOST_TEXT:
            raise InvalidArgument(f"{place}: link must be a text of at most {_MOST_TEXT} characters, not {link!r:.80}")
        read = []
        for number, each in enumerate(rows):
            try:
                row = record_from(EngineTime, each)
            except KeyError as error:
                raise InvalidArgument(f"{place}: row {number} has no {error}") from None
            except TypeError as error:
                raise InvalidArgument(f"{place}: row {number}: {error}") from None
            if problem := _problem_of(row):
                raise InvalidArgument(f"{place}: row {number}, {row.model!r:.80} by {row.engine!r:.80}: {problem}")
            read.append(row)
        for key, count in Counter(map(_key_of, read)).items():
            if count > 1:
                raise InvalidArgument(f"{place}: {count} rows have the same {_KEY_TEXT}: {key!r:.300}")
        if not link and any(each.is_simulated for each in read):
            raise InvalidArgument(f"{place}: link must name the link of the simulated rows")
        return cls(tuple(read), core_factor, foreign_busy, link)


_KEY = ("model", "engine", "batch", "compute_ms", "num_ranks", "is_simulated")
_KEY_TEXT = f"{', '.join(_KEY[:-1])} and {_KEY[-1]}"


def _key_of(row: EngineTime) -> tuple[object, ...]:
    """What tells a row from all others of a file."""
    return tuple(getattr(row, name) for name in _KEY)


def _number_in(content: Mapping[str, Any], name: str, most: float, place: str) -> float:
    value: Any = content.get(name)
    if type(value) not in (int, float) or not 0 <= value <= most:  # NaN is not, either
        raise InvalidArgument(f"{place}: {name} must be a number from 0 to {most:g}, not {value!r:.80}")
    return float(value)


def _problem_of(row: EngineTime) -> str:
    """Return which field of a row has an impossible value, and what would be right; "" if all are possible."""
    for name in ("model", "engine"):
        if not 0 < len(getattr(row, name)) <= _MOST_TEXT:
            return f"{name} must have 1 to {_MOST_TEXT} characters"
    for name, most in (
        ("batch", _MOST_COUNT), ("num_ranks", _MOST_COUNT), ("num_hosts", row.num_ranks), ("nbytes", _MOST_NBYTES)
    ):  # fmt: skip
        if not 0 < (value := getattr(row, name)) <= most:
            return f"{name} must be from 1 to {most}, not {value!r:.80}"
    # Shorter times than a femtosecond would make rates that JSON cannot represent.
    for name, least, longest in (
        ("compute_ms", 0.0, _MOST_MS),
        ("ms", _LEAST_MS, _MOST_MS),
        ("low_ms", 0.0, row.ms),
        ("high_ms", row.ms, _MOST_MS),
    ):
        if not least <= (number := getattr(row, name)) <= longest:
            return f"{name} must be from {least:g} to {longest:g}, not {number:g}"
    if row.is_simulated and not row.low_ms == row.ms == row.high_ms:
        return f"with is_simulated, low_ms and high_ms must be its ms, not {row.low_ms:g} and {row.high_ms:g}"
    return ""


def rivals_of(rows: Sequence[EngineTime]) -> tuple[EngineTime, list[EngineTime]]:
    """Return the fastest row, and those of the others whose intervals overlap its own.

    Args:
        rows: one or more of the same model, batch, computation and number of ranks.

    Examples:
        >>> ring = EngineTime("gpt", "ring", 8, 4, 1, 1 << 20, 0.0, 2.0, 1.9, 2.1, False)
        >>> mix = EngineTime("gpt", "mix", 8, 4, 1, 1 << 20, 0.0, 1.5, 1.4, 1.95, False)
        >>> fastest, rivals = rivals_of([ring, mix])
        >>> fastest.engine, [each.engine for each in rivals]
        ('mix', ['ring'])
    """
    fastest = min(rows, key=lambda each: each.ms)
    return fastest, [each for each in rows if each is not fastest and each.low_ms <= fastest.high_ms]


def to_text(times: EngineTimes) -> str:
    """Return the results as JSON."""
    return json.dumps(times.dump())
