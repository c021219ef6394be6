"""torch's own distributed tests: every test that passes over gloo passes over hocket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..program import run_python
from ..tier import full

SAMPLE = (
    "test_all_gather_coalesced_complex",
    "test_all_reduce_coalesced_max",
    "test_all_reduce_sum_async",
    "test_barrier_full_group",
    "test_isend_torch_profiler",
    "test_monitored_barrier_gloo",
    "test_monitored_barrier_gloo_rank_0_timeout",
    "test_monitored_barrier_gloo_subgroup",
    "test_scatter_object_list",
    "test_send_recv_any_source_autograd_profiler",
    "test_send_recv_with_tag_torch_profiler",
)


def outcomes(folder: Path, backend: str, size: int, *names: str, timeout_s: float) -> dict[str, str]:
    folder = folder / backend
    folder.mkdir()
    script = Path(__file__).with_name("torchs_own.py")
    run = run_python(str(script), backend, str(size), str(folder), *names, timeout_s=timeout_s)
    assert run.returncode == 0, run.stderr
    found: dict[str, str] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.timeout(200)
def test_a_sample_passes(tmp_path: Path) -> None:
    assert outcomes(tmp_path, "hocket", 2, *SAMPLE, timeout_s=180) == dict.fromkeys(SAMPLE, "passed")


@full
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("size", [2, 4])
def test_what_passes_over_gloo_passes(tmp_path: Path, size: int) -> None:
    theirs, ours = (outcomes(tmp_path, backend, size, timeout_s=700) for backend in ("gloo", "hocket"))
    passed = [name for name, outcome in theirs.items() if outcome == "passed"]
    assert len(passed) > 85 and theirs.keys() == ours.keys()
    assert {name: ours[name] for name in passed if ours[name] != "passed"} == {}
