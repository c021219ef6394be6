"""Guidelines: what has to be measured for them, and which are broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hocket.bench.guidelines import GuidelineFinding, check, needed_sizes

from .results import result

pytestmark = pytest.mark.timeout(30)
NUM_RANKS, NBYTES = 4, 1024


def found(operation: str, seconds: float, **others: tuple[int, float]) -> list[GuidelineFinding]:
    """Return what is found of an operation of 1,024 bytes, given bytes and seconds of what could be done instead."""
    measured = {operation: (NBYTES, seconds), **others}
    results = [result(name, nbytes, [each] * 9, num_ranks=NUM_RANKS) for name, (nbytes, each) in measured.items()]
    results = [replace(each, point=replace(each.point, dtype="float32")) for each in results]
    return [each for each in check(results, [NBYTES]) if each.guideline.operation == operation]


@pytest.mark.parametrize(
    ("operation", "others"),
    [
        ("all_reduce", {"reduce": NBYTES, "broadcast": NBYTES}),
        ("all_reduce", {"reduce_scatter": NBYTES, "all_gather": NBYTES // NUM_RANKS}),
        ("all_gather", {"gather": NBYTES, "broadcast": NBYTES * NUM_RANKS}),
        ("all_gather", {"all_to_all": NBYTES}),
        ("broadcast", {"scatter": NBYTES // NUM_RANKS, "all_gather": NBYTES // NUM_RANKS}),
        ("reduce", {"all_reduce": NBYTES}),
        ("gather", {"all_gather": NBYTES}),
        ("scatter", {"broadcast": NBYTES * NUM_RANKS}),
        ("reduce_scatter", {"reduce": NBYTES, "scatter": NBYTES // NUM_RANKS}),
    ],
)
def test_an_operation_is_held_against_others_that_move_as_much(operation: str, others: dict[str, int]) -> None:
    sizes = needed_sizes(NBYTES, NUM_RANKS)
    assert NBYTES in sizes[operation] and all(nbytes in sizes[name] for name, nbytes in others.items())
    instead_s = 1e-5 * len(others)
    given = {name: (nbytes, 1e-5) for name, nbytes in others.items()}
    for factor, verdict in ((0.5, "holds"), (1.04, "holds"), (1.5, "broken")):
        (only,) = found(operation, factor * instead_s, **given)
        assert only.ratio == pytest.approx(factor)
        assert only.verdict == verdict


def test_what_lacks_a_part_is_not_judged() -> None:
    assert not found("all_reduce", 1e-5, reduce=(NBYTES, 1e-5))
    assert not found("scatter", 1e-5, broadcast=(NBYTES, 1e-5))


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [
        ([0.4, 0.4, 0.9, 1.0, 1.0, 1.1, 2.2, 2.2, 2.3], "not judged"),
        ([0.9, 0.95, 1.0, 1.0, 1.0, 1.1, 1.2, 1.2, 1.2], "not judged"),
        ([0.9, 0.9, 0.95, 0.97, 0.98, 0.98, 0.99, 1.0, 1.04], "holds"),
        ([1.2, 1.2, 1.3, 1.3, 1.4, 1.4, 1.4, 1.5, 1.5], "broken"),
        ([1.0, 1.0], "not judged"),
    ],
)
def test_what_leaves_it_open_is_not_judged(factors: list[float], verdict: str) -> None:
    own = result("reduce", NBYTES, [1e-5 * factor for factor in factors], num_ranks=NUM_RANKS)
    other = result("all_reduce", NBYTES, [1e-5] * len(factors), num_ranks=NUM_RANKS)
    results = [replace(each, point=replace(each.point, dtype="float32")) for each in (own, other)]
    (only,) = [each for each in check(results, [NBYTES]) if each.guideline.operation == "reduce"]
    assert only.verdict == verdict
