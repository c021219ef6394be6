"""Which schedules are measured, and what is made of the measurements; on a machine whose times are computed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hocket.collectives import find_algorithm
from hocket.collectives.source import parse_algorithm
from hocket.comm.policy import Group, split_carrier
from hocket.tune import Row, Table, TablePolicy
from hocket.tune.contest import Contest, Key, candidates, predict_all
from hocket.tune.draw import draw_table
from hocket.tune.fit import Fit, fit_line
from hocket.tune.mix import CoarsePolicy

from .tables import MACHINE, row

ALPHA_S, BETA_S = 20e-6, 1e-9
FITS = [Fit("mpi", ALPHA_S, BETA_S, 0.0, 0.0), Fit("gloo", 10 * ALPHA_S, 3 * BETA_S, 0.0, 0.0)]
NUM_RANKS = 8
GROUP = Group(NUM_RANKS, ["mpi", "gloo"])


class Machine:
    """Schedules take what their formulas say, the libraries' own ways what a binomial tree would; with some noise."""

    def __init__(self, noise: float = 0.0) -> None:
        self.random = random.Random(3)
        self.noise = noise
        self.measured: list[tuple[Key, str, int]] = []

    def seconds(self, key: Key, carrier: str) -> float:
        op, _, nbytes = key
        backend, name = split_carrier(carrier)
        link = next(fit.link for fit in FITS if fit.backend == backend)
        algorithm, parameters = parse_algorithm(op, name or "binomial")
        return algorithm.seconds(link, NUM_RANKS, nbytes, **parameters)

    def measure(self, pairs: Sequence[tuple[Key, str]], rounds: int) -> Mapping[tuple[Key, str], Sequence[float]]:
        self.measured += [(key, carrier, rounds) for key, carrier in pairs]
        return {
            (key, carrier): [
                self.seconds(key, carrier) * (1 + self.noise * self.random.random()) for _ in range(rounds)
            ]
            for key, carrier in pairs
        }


def contest(machine: Machine) -> Contest:
    return Contest(Group(NUM_RANKS, ["mpi", "gloo"]), 7, machine.measure, 0.0)


SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20]


def own_rows(machine: Machine) -> list[Row]:
    return [
        row("broadcast", backend, nbytes, machine.seconds(("broadcast", "moved", nbytes), backend), num_ranks=NUM_RANKS)
        for nbytes in SIZES
        for backend in ("mpi", "gloo")
    ]


def test_the_link_is_found() -> None:
    for fit, true in zip(contest(Machine()).fit_links(SIZES), FITS, strict=True):
        assert (fit.alpha_s, fit.beta_s) == pytest.approx((true.alpha_s, true.beta_s), rel=1e-6)
        assert fit.misfit < 1e-6


def test_an_outlier_does_not_bend_the_line() -> None:
    points = [(float(nbytes), ALPHA_S + BETA_S * nbytes) for nbytes in (1000, 4000, 16_000, 64_000, 256_000, 1 << 20)]
    points[2] = points[2][0], 3 * points[2][1]
    alpha, beta, misfit = fit_line(points)
    assert (alpha, beta) == pytest.approx((ALPHA_S, BETA_S), rel=0.05)
    assert 1.5 < misfit < 2.5
    assert fit_line([(1000.0, 1e-6)]) == pytest.approx((1e-6, 0.0, 0.0))
    alpha, beta, _ = fit_line([(1000.0, 1e-6), (3000.0, 4e-6)])
    assert alpha == 0.0 and beta > 0


def test_only_what_the_model_thinks_well_of_is_measured() -> None:
    for nbytes in SIZES:
        key = "broadcast", "moved", nbytes
        found = candidates(key, GROUP, FITS)
        assert 1 <= len(found) <= 3
        predicted = {
            f"{fit.backend}/{name}": seconds
            for fit in FITS
            for name, seconds in predict_all("broadcast", nbytes, GROUP, fit.link)
        }
        assert found == sorted(predicted, key=lambda each: (predicted[each], each))[: len(found)]
        assert all(each.startswith("mpi/") for each in found)


def test_hosts_of_several_ranks_have_a_hierarchy() -> None:
    def names(num_ranks: int, *levels: int) -> list[str]:
        group = Group(num_ranks, ["mpi"], *levels)
        return [name for name, _ in predict_all("all_reduce", 1 << 20, group, FITS[0].link) if "hierarchical" in name]

    assert all("ranks_per_host=4, ranks_per_domain=1" in name for name in names(8, 2, 4))
    assert len(names(8, 2, 4)) == 3  # numbers of segments
    assert all("ranks_per_host=4, ranks_per_domain=2" in name for name in names(8, 2, 4, 2)) and names(8, 2, 4, 2)
    assert all("ranks_per_host=4, ranks_per_domain=1" in name for name in names(8, 1, 8, 4)) and names(8, 1, 8, 4)
    assert not names(8) and not names(7, 3) and not names(2, 2, 1)


def test_between_hosts_a_hierarchy_is_thought_best() -> None:
    """Every byte crosses the link once, and no more than has to."""
    for op in ("all_reduce", "all_gather", "reduce_scatter"):
        group = Group(8, ["mpi"], 2, 4)
        best = candidates((op, "full", 1 << 22), group, [Fit("mpi", 50e-6, 8e-9, 0.0, 0.0)])[0]
        assert "hierarchical" in best, op


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_the_table_chooses_what_is_fastest(noise: float) -> None:
    """At sizes that were measured and between them: never much worse than the best of all algorithms."""
    machine = Machine(noise)
    this = contest(machine)
    rows = {each.place: each for each in own_rows(machine)}
    fits = this.fit_links(SIZES)
    rows |= {each.place: each for each in this.run(list(rows.values()), fits)}
    table = Table(MACHINE, tuple(rows.values()), fits=tuple(fits))
    policy = TablePolicy(table)
    group = Group(NUM_RANKS, ["mpi", "gloo"])
    ranges = policy.choices(group)["broadcast", "moved"]
    for nbytes in (4 << 10, 10_000, 30_000, 64 << 10, 200_000, 1 << 20, 5_000_000, 16 << 20):
        key = "broadcast", "moved", nbytes
        chosen = next(each.ranking[0] for each in ranges if nbytes <= each.most_nbytes)
        best = min(seconds for fit in FITS for _, seconds in predict_all("broadcast", nbytes, GROUP, fit.link))
        assert machine.seconds(key, chosen) <= 1.35 * best, (nbytes, chosen)
        reason, explained = policy.explain(group, "broadcast", "moved", nbytes)
        assert explained[0].carrier == chosen
        assert "measured at" in explained[0].source
        assert reason
    assert any(rounds == 7 for _, _, rounds in machine.measured)
    assert not any(carrier.startswith("gloo") for _, carrier, rounds in machine.measured if rounds == 7)


def test_crossings_are_looked_for() -> None:
    machine = Machine()
    this = contest(machine)
    list(this.run(own_rows(machine), FITS))
    between = {key[2] for key, _, _ in machine.measured} - set(SIZES)
    assert between
    assert all(SIZES[0] < nbytes < SIZES[-1] and nbytes % 4 == 0 for nbytes in between)


def test_other_numbers_of_ranks_are_carried_over_by_the_model() -> None:
    """Twice the time of the model between 8 ranks is twice the time of the model between 32."""
    link = FITS[0].link
    chain = find_algorithm("broadcast", "chain")
    at_8 = chain.seconds(link, 8, 1 << 20, num_blocks=8)
    rows = (
        Row("broadcast", "moved", 8, 1 << 20, "mpi", False, 2 * at_8, 2 * at_8, 2 * at_8, "chain(num_blocks=8)"),
        row("broadcast", "gloo", 1 << 20, 1.0, num_ranks=8),
    )
    policy = TablePolicy(Table(MACHINE, rows, fits=tuple(FITS)))
    reason, (first, second, *_) = policy.explain(Group(32, ["mpi", "gloo"]), "broadcast", "moved", 1 << 20)
    assert first.carrier == "mpi/chain(num_blocks=8)"
    assert first.seconds == pytest.approx(2 * chain.seconds(link, 32, 1 << 20, num_blocks=8))
    assert "between 8 ranks, carried over by the model" in first.source
    assert not first.is_measured and not second.is_measured
    assert first.predicted_s == pytest.approx(chain.seconds(link, 32, 1 << 20, num_blocks=8))
    assert ", predicted " in str(first)
    assert second.predicted_s is None
    assert "no times for 32" in reason
    assert second.backend == "gloo"


def test_a_size_at_which_only_schedules_were_measured(tmp_path: Path) -> None:
    """Where a crossing is looked for between two schedules no library's own way is measured."""
    rows = (
        row("broadcast", "mpi", 1 << 12, 1e-6),
        row("broadcast", "gloo", 1 << 12, 3e-6),
        Row("broadcast", "moved", 2, 1 << 14, "mpi", False, 2e-6, 2e-6, 2e-6, "binomial"),
    )
    table = Table(MACHINE, rows, fits=tuple(FITS))
    group = Group(2, ["mpi", "gloo"])
    assert CoarsePolicy(table).best(group)["broadcast", "moved"] == "mpi"
    ranges = TablePolicy(table).choices(group)["broadcast", "moved"]
    assert [each.ranking[0] for each in ranges] == ["mpi", "mpi/binomial"]
    draw_table(table, tmp_path / "table.png")
    assert (tmp_path / "table.png").stat().st_size > 5000
    assert TablePolicy(table).expected_seconds(2, "mpi", "broadcast", "moved", 1 << 14) == pytest.approx(4e-6)
    assert TablePolicy(table).expected_seconds(2, "mpi/binomial", "broadcast", "moved", 1 << 14) == pytest.approx(2e-6)
