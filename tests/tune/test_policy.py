"""Choices made by a table, by the model and by name."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket import _native
from hocket.comm.policy import CHOOSABLE, LARGEST_NBYTES, Choices, Group, Policy, RankedCarrier
from hocket.errors import InvalidArgument
from hocket.tune import ModelPolicy, Row, TablePolicy

from ..naming import Given, assert_names, raises
from ..tier import is_full
from .tables import row, table

pytestmark = pytest.mark.timeout(60)

BACKENDS = ["shm", "mpi", "gloo"]
KINDS = [(op, dtypes) for op in CHOOSABLE for dtypes in _native.DTYPE_CLASS_NAMES]


def ranking_at(choices: Choices, op: str, nbytes: int, dtypes: str = "moved") -> tuple[str, ...]:
    """Look it up as native/core/choice.hpp does."""
    return next(each.ranking for each in choices[op, dtypes] if nbytes <= each.most_nbytes)


def best(policy: Policy, op: str, nbytes: int, dtypes: str = "moved", backends: Sequence[str] = ("shm", "mpi")) -> str:
    return ranking_at(policy.choices(Group(2, backends)), op, nbytes, dtypes)[0]


def of_two(
    shm_s: float, mpi_s: float, *, noise: float = 0.0, busy: tuple[float, float] | None = None
) -> tuple[Row, ...]:
    rows = (row("broadcast", "shm", 64, shm_s, noise=noise), row("broadcast", "mpi", 64, mpi_s, noise=noise))
    if busy is not None:
        rows += (row("broadcast", "shm", 64, busy[0], busy=True), row("broadcast", "mpi", 64, busy[1], busy=True))
    return rows


def test_every_operation_has_an_open_range() -> None:
    policies: list[Policy] = [TablePolicy(table()), TablePolicy(table(*of_two(1, 2))), ModelPolicy()]
    for policy in policies:
        choices = policy.choices(Group(2, BACKENDS))
        assert set(choices) == set(KINDS)
        for ranges in choices.values():
            assert ranges[-1].most_nbytes == LARGEST_NBYTES
            assert all(sorted(each.ranking) == sorted(BACKENDS) for each in ranges)


def test_what_is_measured_and_what_a_model_has_a_part_in() -> None:
    """Measured: at a size, and between two; not beyond the largest one, of other ranks or of other hosts."""
    policy = TablePolicy(table(row("broadcast", "shm", 64, 1e-6), row("broadcast", "shm", 4096, 9e-6)))

    def first(group: Group, nbytes: int) -> RankedCarrier:
        return policy.explain(group, "broadcast", "moved", nbytes)[1][0]

    here = Group(2, ["shm", "mpi"])
    assert [first(here, nbytes).is_measured for nbytes in (8, 64, 1000, 4096, 1 << 20)] == [True] * 4 + [False]
    assert not first(Group(3, ["shm", "mpi"]), 64).is_measured
    of_hosts = first(Group(2, ["mpi", "shm"], 2, 1), 64)
    assert not of_hosts.is_measured and "one host" in of_hosts.source
    assert not ModelPolicy().explain(here, "broadcast", "moved", 64)[1][0].is_measured


def test_border_is_the_geometric_mean() -> None:
    policy = TablePolicy(
        table(
            row("broadcast", "shm", 100, 1e-6), row("broadcast", "mpi", 100, 2e-6),
            row("broadcast", "shm", 10_000, 2e-5), row("broadcast", "mpi", 10_000, 1e-5),
            row("broadcast", "shm", 1_000_000, 1e-4), row("broadcast", "mpi", 1_000_000, 2e-4),
        )
    )  # fmt: skip
    ranges = policy.choices(Group(2, ["shm", "mpi"]))["broadcast", "moved"]
    assert [(each.most_nbytes, each.ranking[0]) for each in ranges] == [
        (1000, "shm"), (100_000, "mpi"), (LARGEST_NBYTES, "shm"),
    ]  # fmt: skip
    assert [best(policy, "broadcast", nbytes) for nbytes in (0, 1000, 1001, 100_000, 100_001, 10**12)] == [
        "shm", "shm", "mpi", "mpi", "shm", "shm",
    ]  # fmt: skip


def test_counts_are_chosen_for_as_equal_blocks_of_the_mean_size() -> None:
    rows = [
        row("all_gather", "shm", 1_000, 1e-6), row("all_gather", "mpi", 1_000, 2e-6),
        row("all_gather", "shm", 100_000, 2e-5), row("all_gather", "mpi", 100_000, 1e-5),
        row("all_to_all", "shm", 1_000, 1e-6), row("all_to_all", "mpi", 1_000, 2e-6),
        row("all_to_all", "shm", 1_000_000, 2e-5), row("all_to_all", "mpi", 1_000_000, 1e-5),
    ]  # fmt: skip
    policy = TablePolicy(table(*rows))
    group = Group(2, ["shm", "mpi"])
    for nbytes in (0, 10_000, 19_999, 20_000, 20_001, 20_002, 10**9):
        chosen = best(policy, "all_gatherv", nbytes)
        assert chosen == best(policy, "all_gather", nbytes // 2)
        assert policy.explain(group, "all_gatherv", "moved", nbytes)[1][0].backend == chosen
    # of all_to_allv nobody knows the size of all (rule R8)
    (only,) = policy.choices(group)["all_to_allv", "moved"]
    assert (only.most_nbytes, only.ranking) == (LARGEST_NBYTES, ("mpi", "shm"))
    assert "one choice for all sizes, made at 256 KiB" in policy.explain(group, "all_to_allv", "moved", 16)[0]


def test_equal_ranges_become_one() -> None:
    rows = [row("broadcast", name, nbytes, s) for nbytes in (16, 64, 256) for name, s in (("shm", 1.0), ("mpi", 2.0))]
    (only,) = TablePolicy(table(*rows)).choices(Group(2, ["shm", "mpi"]))["broadcast", "moved"]
    assert (only.most_nbytes, only.ranking) == (LARGEST_NBYTES, ("shm", "mpi"))


def test_classes_of_types_are_chosen_for_apart() -> None:
    rows = [
        row("all_reduce", "shm", 64, 1e-6), row("all_reduce", "mpi", 64, 2e-6),
        row("all_reduce", "shm", 64, 2e-6, dtype="float16"), row("all_reduce", "mpi", 64, 1e-6, dtype="float16"),
    ]  # fmt: skip
    policy = TablePolicy(table(*rows))
    assert best(policy, "all_reduce", 64, "full") == "shm"
    assert best(policy, "all_reduce", 64, "half") == "mpi"


def with_high(rows: tuple[Row, ...], high: float) -> tuple[Row, ...]:
    return replace(rows[0], high=high), *rows[1:]


@pytest.mark.parametrize(
    ("rows", "order", "chosen"),
    [
        (of_two(1.0, 1.0), ["shm", "mpi"], "shm"),
        (of_two(1.0, 1.0), ["mpi", "shm"], "shm"),  # as the model has it, whatever their order
        (of_two(1.04, 1.0), ["shm", "mpi"], "shm"),  # within the least gain
        (of_two(1.06, 1.0), ["shm", "mpi"], "mpi"),  # beyond it
        (of_two(1.10, 1.0, noise=0.1), ["shm", "mpi"], "shm"),  # shm was seen at 0.99
        (of_two(1.12, 1.0, noise=0.1), ["shm", "mpi"], "mpi"),
        (of_two(1.20, 1.0, noise=0.5), ["shm", "mpi"], "shm"),
        (of_two(1.90, 1.0, noise=0.5), ["shm", "mpi"], "mpi"),  # both were disturbed, but the lower end tells
        (of_two(2.10, 1.0, noise=0.5), ["shm", "mpi"], "mpi"),
        (of_two(1.0, 1.0, busy=(3.0, 1.5)), ["shm", "mpi"], "mpi"),  # equal alone: the one that loses less when busy
        (of_two(1.0, 1.0, busy=(1.5, 3.0)), ["mpi", "shm"], "shm"),
        (of_two(1.04, 1.0, busy=(1.5, 1.5)), ["shm", "mpi"], "shm"),  # the loss is as large
        (of_two(1.0, 1.0, busy=(1.52, 1.5)), ["shm", "mpi"], "shm"),
        (of_two(1.0, 2.0, busy=(9.0, 2.0)), ["shm", "mpi"], "shm"),  # faster alone counts more
        (with_high(of_two(1.0, 1.0), 1.3), ["shm", "mpi"], "mpi"),  # shm is as fast, but slow now and then
        (with_high(of_two(1.0, 1.0), 1.09), ["shm", "mpi"], "shm"),
    ],
)
def test_the_first_stays_unless_another_is_faster(rows: tuple[Row, ...], order: list[str], chosen: str) -> None:
    policy = TablePolicy(table(*rows))
    assert best(policy, "broadcast", 64, backends=order) == chosen
    assert policy.explain(Group(2, order), "broadcast", "moved", 64)[1][0].backend == chosen


def test_backends_that_were_not_measured_are_last() -> None:
    policy = TablePolicy(table(row("broadcast", "gloo", 64, 9.0), row("broadcast", "mpi", 64, 1.0)))
    assert ranking_at(policy.choices(Group(2, ["ucx", *BACKENDS])), "broadcast", 64) == ("mpi", "gloo", "ucx", "shm")
    _, candidates = policy.explain(Group(2, ["ucx", *BACKENDS]), "broadcast", "moved", 64)
    assert candidates[-1] == RankedCarrier("shm", None, "not measured")
    assert candidates[0] == RankedCarrier("mpi", 1.0, "measured at 64 B", interval_s=(1.0, 1.0), is_measured=True)
    # and those that this communicator does not have are not there
    assert ranking_at(policy.choices(Group(2, ["shm", "gloo"])), "broadcast", 64) == ("gloo", "shm")


def test_reasons() -> None:
    policy = TablePolicy(table(row("broadcast", "shm", 64, 1e-6), row("broadcast", "mpi", 64, 2.5e-6)))
    reason, _ = policy.explain(Group(2, ["shm", "mpi"]), "broadcast", "moved", 64)
    assert reason == "2.50 times as fast as the second in a table in memory"
    reason, _ = policy.explain(Group(2, ["shm"]), "broadcast", "moved", 64)
    assert reason == "the fastest of those measured in a table in memory"
    reason, _ = TablePolicy(table(*of_two(1.02, 1.0))).explain(Group(2, ["shm", "mpi"]), "broadcast", "moved", 64)
    assert_names(reason, Given("a table in memory"))
    assert "times" not in reason
    overlapping = of_two(1.0, 1.3, noise=0.2)
    reason, _ = TablePolicy(table(*overlapping)).explain(Group(2, ["shm", "mpi"]), "broadcast", "moved", 64)
    assert_names(reason, Given("a table in memory"))
    assert "times" not in reason


def test_operation_without_rows_is_the_models() -> None:
    policy = TablePolicy(table(*of_two(2.0, 1.0), row("barrier", "gloo", 0, 1.0, busy=True)))
    backends = ["gloo", "mpi", "shm"]
    for op in ("barrier", "all_to_all"):
        assert ranking_at(policy.choices(Group(2, backends)), op, 64) == ("shm", "mpi", "gloo")
        reason, candidates = policy.explain(Group(2, backends), op, "moved", 64)
        assert f"has no {op} of that kind" in reason and "model" in reason
        assert [each.source for each in candidates] == ["modelled"] * 3


@pytest.mark.parametrize(("size", "measured"), [(1, 2), (2, 2), (3, 2), (4, 2), (5, 8), (8, 8), (64, 8)])
def test_nearest_number_of_ranks(size: int, measured: int) -> None:
    rows = [
        row("broadcast", "shm", 64, 1.0), row("broadcast", "mpi", 64, 2.0),
        row("broadcast", "shm", 64, 2.0, num_ranks=8), row("broadcast", "mpi", 64, 1.0, num_ranks=8),
    ]  # fmt: skip
    policy = TablePolicy(table(*rows))
    assert ranking_at(policy.choices(Group(size, ["shm", "mpi"])), "broadcast", 64)[0] == (
        "shm" if measured == 2 else "mpi"
    )
    reason, _ = policy.explain(Group(size, ["shm", "mpi"]), "broadcast", "moved", 64)
    words = f"; measured between {measured} ranks, there are no times for {size}"
    assert reason.endswith(words) if size != measured else "measured between" not in reason


MESSAGES = [
    row(op, name, nbytes, s)
    for op in ("send", "recv")
    for nbytes, shm_s, mpi_s in ((16, 1.0, 2.0), (64 << 10, 2.0, 1.0), (1 << 20, 1.0, 2.0))
    for name, s in (("shm", shm_s), ("mpi", mpi_s))
]


@pytest.mark.parametrize("op", ["send", "recv"])
def test_one_choice_for_messages_of_all_sizes(op: str) -> None:
    policy = TablePolicy(table(*MESSAGES))
    (only,) = policy.choices(Group(2, ["shm", "mpi"]))[op, "moved"]
    assert (only.most_nbytes, only.ranking) == (LARGEST_NBYTES, ("mpi", "shm"))
    for nbytes in (0, 16, 1 << 30):
        reason, candidates = policy.explain(Group(2, ["shm", "mpi"]), op, "moved", nbytes)
        assert candidates[0].backend == "mpi"
        assert "; one choice for all sizes, made at 64 KiB" in reason


def test_sender_and_receiver_choose_alike() -> None:
    choices = TablePolicy(table(*(each for each in MESSAGES if each.op == "send"))).choices(Group(2, ["shm", "mpi"]))
    assert ranking_at(choices, "recv", 16) == ranking_at(choices, "send", 16) == ("mpi", "shm")


SIZES = (0, 1, 2, 3, 16, 100, 256, 4096, 65_536, 1 << 20, (1 << 20) + 1, 1 << 40)


def random_rows(rng: random.Random) -> list[Row]:
    """Draw rows, so dense that most sizes have several backends."""
    sizes = rng.sample(SIZES, rng.randint(1, 5))
    share = rng.choice([0.0, 0.3, 0.8, 1.0])
    cells = itertools.product(
        [("all_reduce", "float32"), ("all_reduce", "float16"), ("broadcast", "float32"), ("send", "float32")],
        BACKENDS, sizes, rng.sample([1, 2, 3, 8], 2), [False, True],
    )  # fmt: skip
    return [
        row(op, name, nbytes, rng.choice([1.0, 1.04, 1.1, 1.3, 2.0, 40.0]) * 1e-6, dtype=dtype, num_ranks=num_ranks,
            busy=busy, noise=rng.choice([0.0, 0.04, 0.3]))
        for (op, dtype), name, nbytes, num_ranks, busy in cells
        if rng.random() < share
    ]  # fmt: skip


@given(st.integers(0, 2**32), st.permutations(BACKENDS), st.integers(1, 9), st.integers(0, 1 << 41))
@settings(derandomize=True, deadline=None, max_examples=100 if is_full() else 15)
def test_explanations_tell_what_is_chosen(seed: int, backends: list[str], size: int, any_nbytes: int) -> None:
    rng = random.Random(seed)
    rows = random_rows(rng)
    shuffled = list(rows)
    rng.shuffle(shuffled)
    policy, again = TablePolicy(table(*rows)), TablePolicy(table(*shuffled))
    choices = policy.choices(Group(size, backends))
    assert choices == again.choices(Group(size, backends)) == policy.choices(Group(size, backends))
    for op, dtypes in KINDS:
        most = [each.most_nbytes for each in choices[op, dtypes]]
        assert most == sorted(set(most))
        borders = [nbytes + more for nbytes in most[:-1] for more in (-1, 0, 1) if nbytes + more >= 0]
        for nbytes in (*SIZES, *borders, any_nbytes):
            reason, candidates = policy.explain(Group(size, backends), op, dtypes, nbytes)
            assert tuple(each.backend for each in candidates) == ranking_at(choices, op, nbytes, dtypes)
            assert (reason, candidates) == again.explain(Group(size, backends), op, dtypes, nbytes)


def expected(policy: TablePolicy, nbytes: int, backend: str = "mpi", size: int = 2) -> float:
    seconds = policy.expected_seconds(size, backend, "broadcast", "moved", nbytes)
    assert seconds is not None
    return seconds


def _nbytes(point: tuple[int, float]) -> int:
    return point[0]


@given(
    st.lists(st.tuples(st.integers(0, 1 << 40), st.floats(1e-8, 10)), min_size=1, max_size=6, unique_by=_nbytes),
    st.lists(st.integers(0, 1 << 42), min_size=2, max_size=20),
)
@settings(derandomize=True, deadline=None, max_examples=100 if is_full() else 15)
def test_expected_seconds(points: list[tuple[int, float]], sizes: list[int]) -> None:
    policy = TablePolicy(table(*(row("broadcast", "mpi", nbytes, s) for nbytes, s in points)))
    for nbytes, seconds in points:
        assert expected(policy, nbytes) == pytest.approx(seconds, rel=1e-9)
    points = sorted(points)
    for (low, low_s), (high, high_s) in itertools.pairwise(points):
        between = sorted(nbytes for nbytes in sizes if low <= nbytes <= high)
        times = [expected(policy, nbytes) for nbytes in between]
        assert all(min(low_s, high_s) * 0.999999 <= each <= max(low_s, high_s) * 1.000001 for each in times)
        rising = [each * math.copysign(1, high_s - low_s) for each in times]
        assert all(b >= a - 1e-9 * abs(a) for a, b in itertools.pairwise(rising))
    assert expected(policy, 0) == pytest.approx(points[0][1])
    last_nbytes, last_s = points[-1]
    assert expected(policy, 2 * last_nbytes + 2) >= last_s


def test_expected_seconds_far_away() -> None:
    policy = TablePolicy(table(row("broadcast", "mpi", 1000, 1e-6), row("broadcast", "mpi", 4000, 2e-6)))
    assert expected(policy, 8000) == pytest.approx(4e-6)
    assert expected(policy, 1000, size=16) == 1e-6
    assert policy.expected_seconds(2, "shm", "broadcast", "moved", 16) is None
    assert policy.expected_seconds(2, "mpi", "reduce", "full", 16) is None


def test_shares_let_both_libraries_end_together() -> None:
    # Latency and bandwidth of each: mpi 10 us and 4 GB/s, gloo 100 us and 1 GB/s.
    sizes = [1 << power for power in range(4, 25, 2)]
    rows = [
        row("all_reduce", name, nbytes, alpha + nbytes * beta)
        for name, alpha, beta in (("mpi", 10e-6, 0.25e-9), ("gloo", 100e-6, 1e-9))
        for nbytes in sizes
    ]
    policy = TablePolicy(table(*rows))
    shares = policy.shares(Group(2, ["mpi", "gloo", "mpi+gloo"]), "mpi+gloo")
    assert set(shares) == {"all_reduce"}
    ranges = dict(zip(sizes, shares["all_reduce"], strict=True))
    assert ranges[64][1] == 1.0  # before gloo has begun mpi is done
    assert ranges[1 << 24][1] == pytest.approx(0.8, abs=0.03)  # in proportion to the bandwidths
    assert [most for most, _ in shares["all_reduce"]][-1] == LARGEST_NBYTES
    turned = policy.shares(Group(2, ["mpi", "gloo"]), "gloo+mpi")["all_reduce"]
    for (_, one), (_, other) in zip(shares["all_reduce"], turned, strict=True):
        assert one + other == pytest.approx(1.0, abs=0.02)
    assert policy.shares(Group(2, ["mpi"]), "mpi") == {}
    assert policy.shares(Group(2, ["shm", "mpi"]), "shm+mpi") == {}  # nothing is known of one of them


@pytest.mark.parametrize("size", [1, 2, 64])
@pytest.mark.parametrize(("op", "dtypes"), KINDS)
def test_model(op: str, dtypes: str, size: int) -> None:
    policy = ModelPolicy()
    backends = ["gloo", "other", "mpi", "shm"]
    (only,) = policy.choices(Group(size, backends))[op, dtypes]
    assert only.ranking == ("shm", "mpi", "gloo", "other")
    for nbytes in (0, 1 << 10, 1 << 30):
        reason, candidates = policy.explain(Group(size, backends), op, dtypes, nbytes)
        assert reason == "a model decides, as no table was measured here"
        assert tuple(each.backend for each in candidates) == only.ranking
        assert all(each.source == "modelled" and each.seconds for each in candidates)


def test_model_says_why_it_decides() -> None:
    reason, _ = ModelPolicy("the table is of the moon").explain(Group(2, BACKENDS), "barrier", "moved", 0)
    assert reason == "a model decides, as the table is of the moon"


def test_fixed() -> None:
    policy = Policy.fixed({"all_to_all": "mpi", "*": "gloo"})
    choices = policy.choices(Group(2, BACKENDS))
    assert set(choices) == set(KINDS)
    for op, dtypes in KINDS:
        name = "mpi" if op == "all_to_all" else "gloo"
        assert [(each.most_nbytes, each.ranking) for each in choices[op, dtypes]] == [(LARGEST_NBYTES, (name,))]
        reason, candidates = policy.explain(Group(2, BACKENDS), op, dtypes, 64)
        assert (reason, candidates[0]) == ("the policy names it", RankedCarrier(name, None, "fixed"))
        assert sorted(each.backend for each in candidates) == sorted(BACKENDS)


def test_fixed_without_a_rest() -> None:
    policy = Policy.fixed({"send": "mpi"})
    assert {op for op, _ in policy.choices(Group(2, BACKENDS))} == {"send"}
    reason, candidates = policy.explain(Group(2, BACKENDS), "recv", "moved", 64)
    assert reason == "the policy names no backend for recv"
    assert candidates == [RankedCarrier(each, None, "in order") for each in BACKENDS]


def test_fixed_is_not_changed_from_outside() -> None:
    names = {"*": "mpi"}
    policy = Policy.fixed(names)
    names["*"] = "gloo"
    assert ranking_at(policy.choices(Group(2, BACKENDS)), "barrier", 0) == ("mpi",)


@pytest.mark.parametrize("op", ["all_reduction", "split", ""])
def test_fixed_refuses_unknown_operations(op: str) -> None:
    with raises(InvalidArgument, names=(repr(op), "barrier", "all_reduce", "'*'")):
        Policy.fixed({"*": "shm", op: "shm"})


def test_fixed_refuses_unknown_backends() -> None:
    with raises(InvalidArgument, names=("'nccl'", "all_reduce", "shm", "mpi")):
        Policy.fixed({"all_reduce": "nccl"}).choices(Group(2, ["shm", "mpi"]))
