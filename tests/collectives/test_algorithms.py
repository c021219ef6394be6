"""Every algorithm is proven for many numbers of ranks, and its simulated time agrees with its formula."""

from __future__ import annotations

import math

import pytest

from hocket.collectives import Algorithm, algorithms, find_algorithm, verify
from hocket.collectives.simulate import simulate
from hocket.sim import Link

from ..tier import is_full, sample

ALL = algorithms()
FREE = Link(1e-6, 1e-9)  # reducing takes no time
FAST = Link(1e-6, 1e-9, 0.3e-9)
SLOW = Link(1e-7, 1e-9, 3e-9)
SAMPLED = (257, 341, 512, 767, 1000, 1023, 1024)
# Above 25, the quick tier only tests numbers around powers of two.
RANKS = (*range(1, 257), *SAMPLED) if is_full() else (*range(1, 26), 31, 32, 33, 63, 64, 65, 128, 129, 256)
NUM_BLOCKS = (1, 2, 7, 16, 40)


def name_of(algorithm: Algorithm) -> str:
    return f"{algorithm.collective}-{algorithm.name}"


def parameters_for(algorithm: Algorithm, num_ranks: int) -> dict[str, object]:
    if algorithm.name == "hierarchical":
        divisors = [each for each in (4, 3, 2, 1) if num_ranks % each == 0]
        return {"ranks_per_host": divisors[0]}
    return {"num_segments": 2} if "num_segments" in algorithm.parameters else {}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("algorithm", ALL, ids=name_of)
def test_every_number_of_ranks_is_proven(algorithm: Algorithm) -> None:
    proven = 0
    for num_ranks in RANKS:
        if num_ranks > 512 and algorithm.collective in ("all_to_all", "all_reduce", "reduce_scatter"):
            continue  # these have a million transfers
        if algorithm.restriction(num_ranks) is None:
            verify(algorithm.schedule(num_ranks, **parameters_for(algorithm, num_ranks)))
            proven += 1
    assert proven >= 9


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", sample(["ring", "circulant", "rabenseifner"], 1))
def test_a_thousand_ranks_reduce(name: str) -> None:
    verify(find_algorithm("all_reduce", name).schedule(1024))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("num_blocks", NUM_BLOCKS)
def test_circulant_broadcast_is_round_optimal_for_every_number_of_ranks(num_blocks: int) -> None:
    circulant = find_algorithm("broadcast", "circulant")
    for num_ranks in RANKS[1:]:
        schedule = circulant.schedule(num_ranks, num_blocks=num_blocks)
        verify(schedule)
        assert schedule.num_rounds == num_blocks - 1 + math.ceil(math.log2(num_ranks))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("algorithm", ALL, ids=name_of)
def test_the_simulated_time_agrees_with_the_formula(algorithm: Algorithm) -> None:
    for num_ranks in (*range(1, 40 if is_full() else 18), 64, 100, 127, 129, 256):
        if algorithm.restriction(num_ranks):
            continue
        parameters = parameters_for(algorithm, num_ranks)
        schedule = algorithm.schedule(num_ranks, **parameters)
        nbytes = 840 * (num_ranks if algorithm.collective == "all_to_all" else schedule.num_blocks)
        for link in (FREE, FAST, SLOW):
            seconds = simulate(schedule, nbytes, link).seconds
            formula = algorithm.seconds(link, num_ranks, nbytes, **parameters)
            if algorithm.exact or link is FREE:
                assert seconds == pytest.approx(formula, rel=1e-9, abs=1e-15), (num_ranks, link)
            else:
                assert seconds <= formula * (1 + 1e-9), (num_ranks, link)


@pytest.mark.parametrize(
    ("collective", "name", "num_blocks"),
    [(each.collective, each.name, n) for each in ALL if "num_blocks" in each.parameters for n in (1, 2, 3, 11)],
)
@pytest.mark.timeout(60)
def test_any_number_of_blocks(collective: str, name: str, num_blocks: int) -> None:
    algorithm = find_algorithm(collective, name)
    for num_ranks in (1, 2, 3, 5, 8, 13, 33, 64):
        schedule = algorithm.schedule(num_ranks, num_blocks=num_blocks)
        verify(schedule)
        nbytes = 840 * schedule.num_blocks
        formula = algorithm.seconds(FREE, num_ranks, nbytes, num_blocks=num_blocks)
        assert simulate(schedule, nbytes, FREE).seconds == pytest.approx(formula, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("name", ["chain", "circulant"])
@pytest.mark.parametrize("num_ranks", [3, 8, 100])
def test_the_best_number_of_blocks_agrees_with_the_paper(name: str, num_ranks: int) -> None:
    """n* = sqrt(hops m beta / alpha), arXiv 1707.09414, section 4."""
    link, nbytes = Link.of(2.0, 12.5), 1 << 20
    hops = num_ranks - 2 if name == "chain" else math.ceil(math.log2(num_ranks)) - 1
    optimum = math.sqrt(hops * nbytes * link.beta_s / link.alpha_s)
    best = find_algorithm("broadcast", name).best_num_blocks(link, num_ranks, nbytes)
    assert best in (math.floor(optimum), math.ceil(optimum))


def test_traffic_agrees_with_the_literature() -> None:
    """Every rank of a ring sends 2 (P - 1) / P m; a broadcast without repetitions delivers (P - 1) m in total."""
    ring = find_algorithm("all_reduce", "ring").schedule(8)
    assert simulate(ring, 800, FREE).bytes_sent.tolist() == [2 * 7 * 100] * 8
    for each in algorithms("broadcast"):
        schedule = each.schedule(13)
        nbytes = 13 * 8 * 10
        assert simulate(schedule, nbytes, FREE).bytes_received.tolist() == [0] + [nbytes] * 12, each.name
    for each in algorithms("all_gather"):
        assert simulate(each.schedule(16), 1600, FREE).bytes_received.tolist() == [1500] * 16, each.name
