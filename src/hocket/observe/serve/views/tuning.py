"""What was chosen for each operation, why, and what the next best choice would have taken, in the whole run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hocket.observe.analysis.choices import RunChoice
from hocket.observe.serve.view import View, ViewSource, ViewWindow

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from hocket.observe.store.table_questions import Tables


@dataclass(frozen=True)
class ShownChoice(RunChoice):
    """A choice.

    Args:
        modelled_s: how much longer all operations would take with the other carrier by times of which a model has a
            part; negative: how much shorter. None: `saved_s` says it by measured times, or nothing is known.
    """

    modelled_s: float | None


@dataclass(frozen=True)
class TuningView:
    """The answer; measured and modelled times are never added up.

    Args:
        choices: those with the most time first.
        saved_s: by measured times, what choices have saved against the next best ones, summed up over all ranks.
        lost_s: by measured times, what other choices would have saved.
        num_measured: choices of which one of both is known.
        modelled_longer_s: by a model, how much longer the next best carriers would take for other choices.
        modelled_shorter_s: by a model, how much shorter.
        num_modelled: choices of which one of both is known.
        num_unknown: choices whose alternatives are not known.
    """

    choices: list[ShownChoice]
    saved_s: float
    lost_s: float
    num_measured: int
    modelled_longer_s: float
    modelled_shorter_s: float
    num_modelled: int
    num_unknown: int


def _choices(table: Tables) -> ir.Table:
    import ibis

    return table("choices").order_by(ibis.desc("seconds"), "op", "least_nbytes", "carrier")


def _make(source: ViewSource, _: ViewWindow) -> TuningView:
    unknown = ("median_s", "expected_s", "other_s", "saved_s")  # NaN in the tables
    rows: list[dict[str, Any]] = [
        {name: None if name in unknown and value != value else value for name, value in row.items()}
        for row in source.rows(_choices)
    ]
    found = [ShownChoice(**row, modelled_s=_modelled_s(RunChoice(**row))) for row in rows]
    measured = [each.saved_s for each in found if each.saved_s is not None]
    modelled = [each.modelled_s for each in found if each.modelled_s is not None]
    num_unknown = len(found) - len(measured) - len(modelled)
    return TuningView(found, *_sums(measured), len(measured), *_sums(modelled), len(modelled), num_unknown)


def _modelled_s(choice: RunChoice) -> float | None:
    if choice.saved_s is not None or choice.expected_s is None or choice.other_s is None:
        return None
    return choice.count * (choice.other_s - choice.expected_s)


def _sums(seconds: list[float]) -> tuple[float, float]:
    """What is above zero, and what is below."""
    return sum(max(each, 0.0) for each in seconds), -sum(min(each, 0.0) for each in seconds)


VIEW = View("tuning", TuningView, _make, "What was chosen for each operation, why, and what else it could have been.")
