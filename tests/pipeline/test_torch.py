"""torch's pipelining runtime runs hocket's tables, and hocket reads torch's tables."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules
from torch.testing._internal.distributed.fake_pg import FakeStore

from hocket.pipeline.checks.validate import validate
from hocket.pipeline.costs import CostModel
from hocket.pipeline.files import load_schedule, save_schedule
from hocket.pipeline.formats import torch_csv
from hocket.pipeline.passes.lower_messages import lower_messages
from hocket.pipeline.registry import build, recipes
from hocket.pipeline.simulation import simulate

from ..program import start_python
from ..tier import sample

NUM_RANKS = 4
PUBLISHED = "16ce4a29936e4c5ad774098add32489b4937942e3f5ab0108f17d2826b184529"
OURS = {
    "ScheduleInterleaved1F1B": "interleaved",
    "ScheduleZBVZeroBubble": "zb-v",
    "ScheduleDualPipeV": "dualpipe-v",
}
CLASSES = (*OURS, "ScheduleLoopedBFS", "ScheduleInterleavedZeroBubble")


@pytest.mark.timeout(240)
def test_torch_runs_hocket_tables(tmp_path: Path) -> None:
    """4 processes over gloo compute gradients bitwise equal to those of one process."""
    names = []
    for recipe in recipes():
        schedule = recipe.schedule(NUM_RANKS, 8)
        if schedule.num_pipes > 1:
            continue
        for table, suffix in ((schedule, ""), (lower_messages(schedule, "fifo"), "_messages")):
            names.append(f"{recipe.name}{suffix}.csv")
            save_schedule(table, tmp_path / names[-1])
    assert len(names) >= 18
    names = sample(names, 6)
    script = Path(__file__).with_name("torch_runtime.py")
    processes = [
        start_python(
            *(str(script), str(rank), str(NUM_RANKS), str(tmp_path), *names),
            folder=tmp_path,
            environment=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for rank in range(NUM_RANKS)
    ]
    try:
        outputs = ["".join(process.communicate(timeout=200)) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * NUM_RANKS, "\n".join(outputs)
    for rank, output in enumerate(outputs):
        assert [line for line in output.splitlines() if line.endswith(" equal")] == [
            f"rank {rank}: {name} equal" for name in names
        ]


def test_the_published_table_of_torch() -> None:
    """The table equals test/distributed/pipelining/artifacts/dualpipev_4rank_10mb.csv of PyTorch."""
    table = torch_csv.dump(build("dualpipe-v", 4, 10))
    assert hashlib.sha256(table.encode()).hexdigest() == PUBLISHED


@pytest.fixture
def fake_group() -> Iterator[None]:
    """Make a process group of torch that sends nothing, which is enough to build tables."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=NUM_RANKS)
    yield
    dist.destroy_process_group()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("num_micro_batches", [8, 16])
def test_hocket_reads_tables_of_torch(name: str, num_micro_batches: int, tmp_path: Path, fake_group: None) -> None:
    """Torch's tables pass all checks, also with torch's messages, and a round trip does not change them."""
    num_stages = 2 * NUM_RANKS
    v_shaped = name in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
    mine = (0, num_stages - 1) if v_shaped else (0, NUM_RANKS)
    stages = [PipelineStage(torch.nn.Linear(2, 2), stage, num_stages, torch.device("cpu")) for stage in mine]
    torch_schedule = getattr(schedules, name)(stages, num_micro_batches, loss_fn=torch.nn.functional.mse_loss)
    tables = {}
    for form in ("compute_only", "compute_comms"):
        path = tmp_path / f"{form}.csv"
        torch_schedule._dump_csv(str(path), format=form)
        tables[form] = load_schedule(path)
        validate(tables[form], buffering="tagged" if form == "compute_only" else "fifo")
        cells = [[cell for cell in line.split(",") if cell] for line in path.read_text().splitlines()]
        save_schedule(tables[form], path)
        assert [line.split(",") for line in path.read_text().splitlines()] == cells
    assert tables["compute_only"].num_ranks == NUM_RANKS
    assert tables["compute_only"].num_micro_batches == num_micro_batches
    halves = CostModel(seconds={"F": 0.5, "I": 0.5, "W": 0.5})
    simulated = simulate(tables["compute_only"], halves).makespan_s
    if name in OURS:
        assert simulated == simulate(build(OURS[name], NUM_RANKS, num_micro_batches), halves).makespan_s
