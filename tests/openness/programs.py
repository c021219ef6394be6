"""The programs that the driver runs, in processes with a toy."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np

import hocket as hk


def declared() -> dict[str, Any]:
    """Return what other rooms of hocket report about the backend, without its library."""
    import sys

    before = set(sys.modules)
    from hocket.backends import declarations, quickest
    from hocket.bench.targets import known_targets
    from hocket.tune.model import links_for

    result = {
        "links": list(links_for(1)),
        "between_hosts": list(links_for(2)),
        "targets": known_targets(),
        "tested": [name for name, each in declarations().items() if each.tested],
        "quickest": quickest(["gloo", "toy"]),
    }
    libraries = {module for each in declarations().values() for module in each.requires.modules}
    return {**result, "third_party": sorted(libraries & (set(sys.modules) - before))}


def backend() -> dict[str, Any] | None:
    """Use and measure the backend on two ranks."""
    from hocket.tune.sweep import Sweep, measure_table

    importlib.import_module("torch").set_num_threads(1)
    with hk.init(backends=["shm", "toy"], timeout=30) as comm:
        x = np.full(1000, comm.rank + 1.0)
        comm.all_reduce(x, backend="toy")
        record = comm.records()[-1]
        sweep = Sweep(["broadcast"], [64], [64], rounds=6, min_sample_s=1e-4, time_limit_s=5, schedules=False)
        table = measure_table(comm, sweep)
        result = {
            "sum": x[0],
            "backend": record.backend,
            "backends": dict(comm.backends),
            "explained": [each.backend for each in comm.explain("all_reduce", 8).candidates],
            "rows": sorted({(row.backend, row.busy) for row in table.rows}),
        }
        return result if comm.rank == 0 else None


def algorithm() -> dict[str, Any] | None:
    """Use the algorithm by name on two ranks."""
    with hk.init(timeout=30) as comm:
        x = np.full(1000, comm.rank + 1.0)
        comm.broadcast(x, 1, algorithm="toy")
        result = {"values": sorted(set(x.tolist())), "algorithm": comm.records()[-1].algorithm}
        return result if comm.rank == 0 else None


def train(name: str, kind: str = "", instead: str = "") -> dict[str, Any] | None:
    """Train with a schedule, on one or two ranks.

    Args:
        name: name of the schedule.
        kind: kind of an action to add after every forward pass.
        instead: kind to use instead of "B".
    """
    import torch

    from hocket import pipeline
    from hocket.train import MicroBatch, PipelineExecutor, graph_of

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    xs = torch.randn(3, 2, 4)
    (model(xs.reshape(6, 4)) ** 2).mean().backward()
    expected = {each: parameter.grad.clone() for each, parameter in model.named_parameters()}  # type: ignore[union-attr]
    with hk.init(timeout=30) as comm:
        schedule = pipeline.build(name, comm.size, 3)
        if kind:
            rows = [
                [each for action in row for each in ([action, action._replace(kind=kind)][: 1 + (action.kind == "F")])]
                for row in schedule.actions
            ]
            schedule = schedule.with_actions(rows)
        if instead:
            renamed = {"B": instead}
            rows = [[each._replace(kind=renamed.get(each.kind, each.kind)) for each in row] for row in schedule.actions]
            schedule = pipeline.add_gradient_sync(pipeline.recompute(schedule.with_actions(rows)))
        split = graph_of(model).split([0, 1, 2] if comm.size == 2 else [0, 2])
        loss = lambda output, target: (output**2).mean()  # noqa: E731
        with PipelineExecutor(schedule, split, comm, loss, timeout=20) as executor:
            batch = [MicroBatch({split.batch_inputs[0]: x}, None, weight=1 / 3) for x in xs]
            executor.step(batch)
            executor.forward(batch)
            of_stages = [split.stages[stage].parameters() for stage in executor.trained_stages()]
            are_correct = [
                bool(torch.allclose(parameter.grad, expected[each]))
                for parameters in of_stages
                for each, parameter in parameters.items()
            ]
        result: dict[str, Any] = {"are_correct": are_correct, "noted": None}
        if kind:
            result["noted"] = importlib.import_module("hocket.pipeline.kinds.toy").NOTED
        return result if comm.rank == 0 else None


def opened(*paths: str) -> dict[str, object]:
    """Return what the page shows of files, by name."""
    from hocket.observe.serve.opened_results import open_results

    return {name: json.loads(answer) for name, answer in open_results([Path(path) for path in paths]).answers.items()}
