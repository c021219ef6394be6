"""torch.distributed over gloo, recorded from outside: equal to what torch's own profiler says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket import _native
from hocket.observe import SavedProcess, open_run

from ..load import scaled

pytestmark = pytest.mark.timeout(180)

# DistributedDataParallel sends its buckets from C++. Of the profiler: name, microseconds and shapes.
_PROGRAM = """
import json, sys
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
torch.set_num_threads(1)
layers = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.ReLU(), torch.nn.Linear(400, 10))
model = torch.nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.2)
dist.barrier()
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
    for _ in range(3):
        model(torch.ones(8, 300)).sum().backward()
    x = torch.ones(7)
    dist.all_reduce(x)
    dist.broadcast(x, 0)
    y = torch.ones(14, dtype=torch.bfloat16)
    dist.all_gather_into_tensor(torch.ones(28, dtype=torch.bfloat16), y)
    dist.reduce(x, 1)
    dist.all_to_all_single(torch.ones(4), torch.ones(4))
    dist.scatter(torch.ones(3), [torch.ones(3), torch.ones(3)] if rank == 0 else None, 0)
    dist.gather(torch.ones(3), [torch.ones(3), torch.ones(3)] if rank == 1 else None, 1)
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
    dist.barrier()
events = sorted(profiler.events(), key=lambda event: event.time_range.start)
found = [
    (event.name.removeprefix("gloo:"), event.time_range.elapsed_us(), event.input_shapes)
    for event in events
    if event.name.startswith("gloo:")
]
json.dump(found, open(f"{sys.argv[1]}/profile-{rank}.json", "w"))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[SavedProcess]]:
    """Folder of the profiles, and the recorded ranks."""
    folder = tmp_path_factory.mktemp("gloo")
    (folder / "program.py").write_text(_PROGRAM)
    options = ["--layers", "comm", "--output", str(folder / "run")]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(folder / "program.py"), str(folder)]
    command = [sys.executable, "-m", "hocket.cli", "observe", "run", *options, "--", *torchrun]
    done = subprocess.run(command, capture_output=True, text=True, timeout=scaled(150))
    assert done.returncode == 0, done.stderr
    run = open_run(folder / "run")
    return folder, [process for process in run.processes if len(process.events["foreign"])]


def _of_profiler(folder: Path, rank: int) -> list[Any]:
    return json.loads((folder / f"profile-{rank}.json").read_text())


@pytest.mark.parametrize("rank", [0, 1])
def test_operations_are_those_of_torchs_profiler(recorded: tuple[Path, list[SavedProcess]], rank: int) -> None:
    folder, processes = recorded
    assert [process.snapshot.owner.rank for process in processes] == [0, 1]
    process = processes[rank]
    assert process.problems == () and process.lost == {}
    of_profiler = _of_profiler(folder, rank)
    # Operations before the profiled part are the barrier and those with which the model is made equal.
    events = process.events["foreign"][-len(of_profiler) :]
    found = [(_native.OP_NAMES[event["kind"]], int(event["nbytes"])) for event in events]
    assert len(of_profiler) >= 12
    assert [name for name, _ in found] == [_OURS[name] for name, _, _ in of_profiler]
    assert {_native.OP_NAMES[event["kind"]]: event["state"] for event in events}.keys() >= {"all_reduce", "broadcast"}
    assert all(event["state"] == 3 for event in events)
    # Bytes of all buckets of a step are those of the gradients, in three steps.
    sizes = [nbytes for name, nbytes in found if name == "all_reduce"]
    assert sum(sizes) == 3 * 4 * (300 * 400 + 400 + 400 * 10 + 10) + 4 * 7
    shapes = [4 * int(np.prod(shape[0])) for name, _, shape in of_profiler if name == "all_reduce"]
    assert sizes == shapes
    expected = {"broadcast": 28, "all_gather": 28, "reduce": 28, "all_to_all": 16, "send": 28, "recv": 28, "gather": 12}
    assert {name: nbytes for name, nbytes in found if name in expected} == {
        name: nbytes for name, nbytes in expected.items() if name in dict(found)
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_collectives_have_their_root(recorded: tuple[Path, list[SavedProcess]], rank: int) -> None:
    roots: dict[str, set[int]] = {}
    for event in recorded[1][rank].events["foreign"]:
        roots.setdefault(_native.OP_NAMES[event["kind"]], set()).add(int(event["peer"]))
    assert all(roots[name] == {-1} for name in ("all_reduce", "all_gather", "all_to_all", "barrier"))
    assert {name: roots[name] for name in ("broadcast", "reduce", "scatter", "gather")} == {
        "broadcast": {0}, "reduce": {1}, "scatter": {0}, "gather": {1},
    }  # fmt: skip


_OURS = {
    "all_reduce": "all_reduce", "broadcast": "broadcast", "all_gather": "all_gather", "_all_gather_base": "all_gather",
    "reduce": "reduce", "all_to_all": "all_to_all", "scatter": "scatter", "gather": "gather", "barrier": "barrier",
    "send": "send", "recv": "recv",
}  # fmt: skip


def test_times_are_those_of_torchs_profiler(recorded: tuple[Path, list[SavedProcess]]) -> None:
    folder, processes = recorded
    of_profiler = _of_profiler(folder, 0)
    process = processes[0]
    ticks, ns, _ = process.snapshot.anchor
    now_ticks, now_ns = _native.clock_anchor()
    us_per_tick = (now_ns - ns) / (now_ticks - ticks) / 1e3
    events = process.events["foreign"][-len(of_profiler) :]
    differences = [
        abs(float(int(event["t_end"]) - int(event["aux"])) * us_per_tick - elapsed_us)
        for event, (name, elapsed_us, _) in zip(events, of_profiler, strict=True)
        if name not in ("send", "recv")
    ]
    assert sorted(differences)[len(differences) // 2] < 100, differences


def test_a_program_that_is_not_observed_is_not_recorded(tmp_path: Path) -> None:
    program = "import torch.distributed as dist; dist.init_process_group('gloo'); dist.barrier()"
    hooks = Path(_native.__file__).with_name("hocket_hooks.so")
    environment = {
        **os.environ, "LD_PRELOAD": str(hooks), "HOCKET_RECORDER_FOLDER": str(tmp_path), "HOCKET_RECORDER_KEEP": "1",
        "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
    }  # fmt: skip
    environment.pop("HOCKET_OBSERVE", None)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, timeout=scaled(60))
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
