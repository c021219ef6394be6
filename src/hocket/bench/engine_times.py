"""Times of gradient engines: what `hocket bench engines` writes, how it is read again, and drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hocket.errors import InvalidArgument
from hocket.measure.pictures import COLORS, load_pyplot
from hocket.typed_json import record_from
from hocket.versioned_json import Head

HEAD = Head("hocket gradient engines, version ", 1, InvalidArgument)
_MOST_ROWS = 10_000
_MOST_LINK = 200


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
        link: what connects the virtual ranks of simulated rows; empty if there are none.
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
        shares: list[Any] = [content.get("core_factor"), content.get("foreign_busy")]
        if not isinstance(rows, list) or len(rows) > _MOST_ROWS:
            raise InvalidArgument(f"{place}: rows must be a list of at most {_MOST_ROWS}")
        if not all(type(each) in (int, float) and 0 <= each < 1e6 for each in shares):
            raise InvalidArgument(
                f"{place}: core_factor and foreign_busy must be numbers of 0 or more, not {shares!r:.80}"
            )
        try:
            read = tuple(record_from(EngineTime, each) for each in rows)
        except KeyError as error:
            raise InvalidArgument(f"{place}: a row has no {error}") from None
        except TypeError as error:
            raise InvalidArgument(f"{place}: {error}") from None
        for each in read:
            if not (
                0 < each.ms < 1e12
                and 0 <= each.low_ms <= each.ms <= each.high_ms < 1e12
                and 0 < each.nbytes < 1 << 60
                and 0 <= each.compute_ms < 1e12
                and all(0 < count < 1 << 31 for count in (each.batch, each.num_ranks, each.num_hosts))
            ):
                raise InvalidArgument(
                    f"{place}: a row of {each.model:.80} and {each.engine:.80} has impossible numbers"
                )
        link: Any = content.get("link")
        if not isinstance(link, str) or len(link) > _MOST_LINK:
            raise InvalidArgument(f"{place}: link must be a text of at most {_MOST_LINK} characters")
        return cls(read, float(shares[0]), float(shares[1]), link)


def draw_engines(times: EngineTimes, path: str | Path) -> None:
    """Draw a bar for each engine and model: the time of a step, with its interval.

    Args:
        times: results.
        path: file of the picture; its suffix determines the format.

    Raises:
        BackendUnavailable: matplotlib is not installed.
    """
    plt = load_pyplot()
    models = list(dict.fromkeys(each.model for each in times.rows))
    engines = list(dict.fromkeys(each.engine for each in times.rows))
    figure, every_axes = plt.subplots(
        1,
        len(models),
        figsize=(3.2 * len(models) + 1.6, 1.2 + 0.36 * len(engines)),
        layout="constrained",
        squeeze=False,
    )
    for axes, model in zip(every_axes[0], models, strict=True):
        _draw_model(axes, [each for each in times.rows if each.model == model], engines)
    first = times.rows[0]
    where = f"{first.num_ranks} ranks on {first.num_hosts} host{'s' * (first.num_hosts > 1)}"
    figure.suptitle(
        f"Exchange of all gradients, milliseconds ({where}; hatched: simulated)", fontsize=11, x=0.01, ha="left"
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_model(axes: Any, rows: Sequence[EngineTime], engines: Sequence[str]) -> None:
    places: Mapping[str, int] = {name: place for place, name in enumerate(engines)}
    fastest = min(rows, key=lambda each: each.ms)
    for row in rows:
        axes.barh(
            places[row.engine],
            row.ms,
            height=0.62,
            color=COLORS[2] if row is fastest else COLORS[0],
            xerr=[[row.ms - row.low_ms], [row.high_ms - row.ms]],
            ecolor="#444444",
            hatch="//" if row.is_simulated else None,
        )
        axes.text(row.high_ms, places[row.engine], f" {row.ms:.3g}", va="center", fontsize=8)
    axes.set_yticks(range(len(engines)), engines, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * max(each.high_ms for each in rows))
    axes.set_title(f"{rows[0].model}, {rows[0].nbytes / 1e6:.3g} MB", fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)


def to_text(times: EngineTimes) -> str:
    """Return the results as JSON."""
    return json.dumps(times.dump())
