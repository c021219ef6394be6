"""The examples that train models: two ranks compute the same as one, and their traffic file can be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hocket.trace.traffic import Traffic

from ..naming import assert_names
from ..program import run_python
from ..tier import full, sample

EXAMPLES = Path(__file__).parents[2] / "examples"

# Capacity for all tokens: otherwise the number of ranks would change which tokens are dropped.
OPTIONS = {"gpt": [], "moe": ["--capacity-factor", "8"], "dlrm": []}

LEARNED: dict[str, Callable[[dict[str, Any]], bool]] = {
    "gpt": lambda result: result["bits_after"] < result["bits_before"] - 0.3,
    "moe": lambda result: result["accuracy_after"] > result["accuracy_before"],
    "dlrm": lambda result: result["auc_before"] < result["auc_after"] < result["auc_truth"],
}

# Operations of one step on two ranks and the sum of their bytes, from the shapes in the examples.
GPT_LAYER = 12 * 96 * 96 + 13 * 96
GPT_SHARDS = (2 * GPT_LAYER + (128 + 64) * 96 + 2 * 96 + (96 + 1) * 128) // 2 * 4
MOE_SHARED = 49 * 48 + 48 + 16 * 48 + 2 * 48 + 48 * 8 + 8 + 2 * 16 * 48 + 16 * 48 * 10 + 10
DLRM_MLPS = (8 * 64 + 64 + 64 * 16 + 16) + (52 * 64 + 64 + 64 * 32 + 32 + 32 + 1)
TOTALS = {
    "gpt": {"reduce_scatter": (4, GPT_SHARDS), "all_gather": (4, GPT_SHARDS)},
    # four experts of each rank, capacity 512 (all its tokens), width 48; the counts of eight experts
    "moe": {"all_to_all": (4, 4 * 4 * 512 * 48 * 4), "all_reduce": (2, 8 * 4 + MOE_SHARED * 4)},
    "dlrm": {"all_to_all": (2, 2 * 4 * 512 * 16 * 4), "all_reduce": (2, DLRM_MLPS * 4)},
}


def run(name: str, num_ranks: int, *options: str) -> dict[str, Any]:
    """Run five steps and return the example's JSON result; a single rank is started without a launcher."""
    launcher = ["-m", "hocket.cli", "run", "-n", str(num_ranks)] if num_ranks > 1 else []
    ended = run_python(*launcher, str(EXAMPLES / f"{name}.py"), "--steps", "5", "--json", *options, timeout_s=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout)
    assert result["ranks"] == num_ranks
    return result


@pytest.mark.timeout(250)
@pytest.mark.parametrize("name", sample(OPTIONS, 0, always=("gpt", "dlrm")))
def test_two_ranks_train_as_one(name: str, tmp_path: Path) -> None:
    alone = run(name, 1, *OPTIONS[name])
    together = run(name, 2, *OPTIONS[name], "--traffic", str(tmp_path / "traffic.json"))
    assert len(alone["losses"]) == 5 and len(set(alone["losses"])) == 5
    # Only the order of sums differs. A gradient wrong by the factor num_ranks changes the losses by 1e-4, except
    # in gpt, as Adam is invariant to a factor; there the traffic below shows it.
    assert together["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    for key in alone.keys() - {"example", "ranks", "losses"}:
        assert together[key] == pytest.approx(alone[key], rel=0.02), key
    assert together.get("dropped", 0) == 0
    assert LEARNED[name](together)

    traffic = Traffic.load(tmp_path / "traffic.json")
    assert traffic.num_ranks == 2 and traffic.totals() == TOTALS[name]
    assert {step.reduction for step in traffic.steps} == {"avg", None}


@full
@pytest.mark.timeout(120)
def test_full_experts_drop_tokens() -> None:
    result = run("moe", 2, "--capacity-factor", "1")
    assert 0 < result["dropped"] < 0.9
    assert result["accuracy_after"] > result["accuracy_before"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("name", "option"), [("gpt", "--steps=0"), ("moe", "--capacity-factor=0"), ("dlrm", "--steps=0")]
)
def test_bad_option_is_one_line(name: str, option: str) -> None:
    ended = run_python(str(EXAMPLES / f"{name}.py"), option, timeout_s=100)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    assert_names(ended.stderr.splitlines()[-1], option.partition("=")[0], "0")
