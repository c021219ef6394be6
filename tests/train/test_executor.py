"""Schedules executed by several processes give the gradients of one process, bit for bit."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch

import hocket as hk
from hocket.pipeline import find_recipe, recipes

from ..tier import covering
from .cases import Case, Outcome, run_cases

pytestmark = pytest.mark.timeout(280)

SCHEDULES: list[tuple[str, dict[str, Any]]] = [
    *((each.name, {}) for each in recipes()), ("interleaved", {"num_loops": 3}), ("chimera", {"num_pairs": 2}),
    ("chimera", {"mode": "doubling"}), ("chimera", {"mode": "halving"}), ("chimera", {"mode": "list"}),
    ("chimera", {"mode": "zero-bubble"}),
]  # fmt: skip
DTYPES = (torch.float32, torch.float64)
HARD = ("skips", "images", "language", "language-untied")
ALL_SCHEDULES = [Case("chain", name, parameters, 8, dtype) for name, parameters in SCHEDULES for dtype in DTYPES] + [
    Case("chain", name, parameters, 3) for name, parameters in SCHEDULES if "halving" not in parameters.values()
]
ANY_ORDER = [Case("integers", name, parameters, 8, torch.float64, exact=False) for name, parameters in SCHEDULES]
ALL_MODELS = [
    Case(model, name, dtype=dtype)
    for model in HARD
    for name in ("1f1b", "zb-v", "chimera", "interleaved")
    for dtype in DTYPES
]
PASSED = [
    Case("language-dropout", "1f1b"),
    Case("language-dropout", "zb-v"),
    Case("language-dropout", "1f1b", passes=("recompute",)),
    Case("images", "1f1b", passes=("recompute",)),
    Case("skips", "zb-h1", passes=("recompute",)),
    Case("chain", "1f1b", passes=("fifo",)),
    Case("chain", "zb-v", passes=("rendezvous",)),
    Case("chain", "chimera", passes=("lazy",)),
    Case("chain", "chimera", passes=("eager", "rendezvous")),
    Case("chain", "zb-v", num_micro_batches=8, exact=False),
    Case("images", "1f1b", exact=False),
    *(Case(model, "zb-v", exported=True) for model in HARD),
]
REPLICAS = [
    Case("chain", name, parameters, 4, dtype)
    for name, parameters in SCHEDULES
    if "halving" not in parameters.values()
    for dtype in DTYPES
] + [Case("language", "chimera"), Case("skips", "zb-v"), Case("images", "gpipe")]


def _is_possible(case: Case, num_ranks: int) -> bool:
    refusal = find_recipe(case.schedule).refusal(num_ranks, case.num_micro_batches, **case.parameters)
    return refusal is None


def _factors(case: Case) -> tuple[object, ...]:
    return case.model, (case.schedule, case.parameters), case.dtype, (case.passes, case.exact, case.exported)


WORLDS = {
    (2, 1): ALL_SCHEDULES + ALL_MODELS + PASSED,
    (4, 1): ALL_SCHEDULES + ALL_MODELS + ANY_ORDER,
    (2, 2): REPLICAS + ANY_ORDER,
    (1, 2): [Case("chain", "gpipe"), Case("language", "1f1b"), Case("images", "1f1b")],
}
WORLDS = {world: [case for case in cases if _is_possible(case, world[0])] for world, cases in WORLDS.items()}
# The quick tier has every model, schedule with its parameters, type and pass in some world, and recomputation with each
# model that has it.
CASES = covering(
    [(world, case) for world, cases in WORLDS.items() for case in cases],
    lambda each: (each[0], *_factors(each[1]), (each[1].passes == ("recompute",)) and each[1].model),
    1,
)
WORLDS = {world: [case for its_world, case in CASES if its_world == world] for world in WORLDS}


@lru_cache
def outcomes(num_ranks: int, num_replicas: int) -> list[dict[str, Outcome]]:
    """Return the outcomes of every rank, by case; all cases of a world run in the same processes."""
    cases = WORLDS[num_ranks, num_replicas]
    found = hk.spawn(run_cases, num_ranks * num_replicas, num_ranks, cases, timeout=260)
    return [{str(case): each for case, each in zip(cases, of_rank, strict=True)} for of_rank in found]


@pytest.mark.parametrize(("world", "case"), CASES, ids=str)
def test_gradients_are_those_of_one_process(world: tuple[int, int], case: Case) -> None:
    for rank, of_rank in enumerate(outcomes(*world)):
        outcome = of_rank[str(case)]
        assert not outcome.error
        assert outcome.num_parameters > 0
        assert not outcome.wrong, f"rank {rank}: {outcome.wrong}"
