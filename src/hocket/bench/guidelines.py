"""Performance guidelines: an operation must not take longer than other operations that give the same result.

Reference: Träff, Gropp, Thakur, Self-Consistent MPI Performance Guidelines (IEEE TPDS 21, 2010); Hunold, Carpen-Amarie,
Lübbe, Träff, Automatic Verification of Self-Consistent MPI Performance Guidelines (Euro-Par 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from operator import floordiv, mul
from statistics import median
from typing import Literal

from hocket.bench.comparison import row_confidence
from hocket.bench.result import Result
from hocket.measure.statistics import interval_of


@dataclass(frozen=True)
class Guideline:
    """A performance guideline, for messages of n bytes between p ranks.

    Args:
        operation: the operation that is judged.
        instead: operations that give the same result, one after the other, and the bytes of each as a function of n
            and p.

    Examples:
        >>> from hocket.bench import GUIDELINES
        >>> GUIDELINES[0].words
        'all_reduce <= reduce + broadcast'
    """

    operation: str
    instead: tuple[tuple[str, Callable[[int, int], int]], ...]

    @property
    def words(self) -> str:
        """The guideline in the notation of papers."""
        return f"{self.operation} <= {' + '.join(name for name, _ in self.instead)}"


def _same(nbytes: int, num_ranks: int) -> int:
    return nbytes


_part, _whole = floordiv, mul

GUIDELINES: Sequence[Guideline] = (
    Guideline("all_reduce", (("reduce", _same), ("broadcast", _same))),
    Guideline("all_reduce", (("reduce_scatter", _same), ("all_gather", _part))),
    Guideline("all_gather", (("gather", _same), ("broadcast", _whole))),
    Guideline("all_gather", (("all_to_all", _same),)),
    Guideline("broadcast", (("scatter", _part), ("all_gather", _part))),
    Guideline("reduce", (("all_reduce", _same),)),
    Guideline("gather", (("all_gather", _same),)),
    Guideline("scatter", (("broadcast", _whole),)),
    Guideline("reduce_scatter", (("all_reduce", _same),)),
    Guideline("reduce_scatter", (("reduce", _same), ("scatter", _part))),
    Guideline("all_gather", (("all_gatherv", _same),)),
    Guideline("gather", (("gatherv", _same),)),
    Guideline("scatter", (("scatterv", _same),)),
    Guideline("all_to_all", (("all_to_allv", _same),)),
    Guideline("barrier", (("all_reduce", lambda nbytes, num_ranks: 4),)),
)


@dataclass(frozen=True)
class GuidelineFinding:
    """The judgement of a guideline at one size, over one library.

    Args:
        guideline: the guideline.
        way: the library and its form.
        nbytes: message size of the operation in bytes.
        ratio: time of the operation relative to that of the replacement.
        interval: interval of the median ratio; None with too few samples.
        verdict: "broken": the operation is clearly slower; "holds": it is clearly not slower; "not judged": the
            interval allows both.

    Examples:
        >>> from hocket.bench import GUIDELINES, Finding
        >>> finding = Finding(GUIDELINES[0], "shm", 1024, ratio=1.3, interval=(1.2, 1.4), verdict="broken")
        >>> f"{finding.guideline.words} is {finding.verdict} at {finding.nbytes} B"
        'all_reduce <= reduce + broadcast is broken at 1024 B'
    """

    guideline: Guideline
    way: str
    nbytes: int
    ratio: float
    interval: tuple[float, float] | None
    verdict: Literal["broken", "holds", "not judged"]


def needed_sizes(nbytes: int, num_ranks: int) -> dict[str, set[int]]:
    """Return, by operation, the sizes that must be measured to judge all guidelines at one size."""
    found: dict[str, set[int]] = {}
    for each in GUIDELINES:
        for name, size in ((each.operation, _same), *each.instead):
            found.setdefault(name, set()).add(size(nbytes, num_ranks))
    return found


def check(results: Sequence[Result], sizes: Sequence[int], *, least: float = 0.05) -> list[GuidelineFinding]:
    """Judge all guidelines whose operations were measured.

    Args:
        results: measured results; sample i of all of them was taken in the same round.
        sizes: sizes at which the guidelines are judged.
        least: smallest excess that counts.

    Examples:
        >>> from hocket.bench import Point, Result, check
        >>> times = {"all_reduce": 4e-6, "reduce": 1e-6, "broadcast": 2e-6}
        >>> results = [Result(Point(name, "shm", 1024), 2, (time,) * 9, (), 0, 100) for name, time in times.items()]
        >>> for finding in check(results, sizes=[1024]):
        ...     print(finding.guideline.words, finding.verdict, round(finding.ratio, 2))
        all_reduce <= reduce + broadcast broken 1.33
        reduce <= all_reduce holds 0.25
    """
    by_name = {(each.point.way, each.point.benchmark, each.point.nbytes): each for each in results}
    judged = []
    for way, nbytes, guideline in product(dict.fromkeys(each.point.way for each in results), sizes, GUIDELINES):
        has_size = guideline.operation != "barrier"
        if not has_size and nbytes != sizes[0]:
            continue
        operation = by_name.get((way, guideline.operation, nbytes if has_size else 0))
        instead = [(way, name, size(nbytes, results[0].num_ranks)) for name, size in guideline.instead]
        if operation is None or not by_name.keys() >= set(instead):
            continue
        sums = [sum(each) for each in zip(*(by_name[each].samples for each in instead), strict=True)]
        ratios = [seconds / replacement for seconds, replacement in zip(operation.samples, sums, strict=False)]
        judged.append((guideline, way, nbytes, ratios))
    return [_judge(*each, least, len(judged)) for each in judged]


def _judge(
    guideline: Guideline, way: str, nbytes: int, ratios: Sequence[float], least: float, num_findings: int
) -> GuidelineFinding:
    """Judge one guideline; with many findings, use a stricter confidence level (Bonferroni)."""
    interval = interval_of(ratios, row_confidence(num_findings))
    middle = median(ratios)
    verdict: Literal["broken", "holds", "not judged"] = "not judged"
    if interval is not None and interval[0] > 1 and middle > 1 + least:
        verdict = "broken"
    elif interval is not None and interval[1] <= 1 + least:
        verdict = "holds"
    return GuidelineFinding(guideline, way, nbytes, middle, interval, verdict)
