"""The simulated timeline of a step beside the measured one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hocket.pipeline.draw import draw_timelines
from hocket.pipeline.simulation import simulate
from hocket.pipeline.timeline import PipelineTimeline
from hocket.train.on_rank_0 import on_rank_0
from hocket.train.run.executor import PipelineExecutor
from hocket.train.setup.layer_costs import costs_of_stages, profile_stages
from hocket.train.setup.link import measure_link


def compare_with_simulation(
    executor: PipelineExecutor, inputs: Mapping[str, Any], path: str | Path | None = None
) -> tuple[PipelineTimeline, PipelineTimeline]:
    """Return a simulated step beside a measured one; called by all ranks after a step.

    The costs of the simulation are those of the stages, measured on rank 0, one by one, while the other ranks wait. If
    ranks share cores or memory bandwidth, a real step is slower.

    Args:
        executor: an executor that has run a step.
        inputs: inputs of a micro-batch, by name.
        path: path of a picture of both timelines, which rank 0 draws; None: no picture.

    Returns:
        The simulated and the measured timeline, on every rank.

    Raises:
        BackendUnavailable: `path` is given, and matplotlib is not installed.

    Examples:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
        >>> split = hk.train.graph_of(model).split([0, 1, 2])
        >>> schedule = hk.pipeline.build("gpipe", num_ranks=2, num_micro_batches=2)
        >>> half = hk.train.MicroBatch({"input": torch.ones(4, 2)}, torch.zeros(4, 1), weight=0.5)
        >>> with hk.train.PipelineExecutor(schedule, split, comm, torch.nn.functional.mse_loss) as executor:
        ...     result = executor.step([half, half])
        ...     simulated, measured = hk.train.compare_with_simulation(executor, half.inputs)
        >>> simulated.source, measured.source
        ('simulated', 'measured')
    """
    stages = on_rank_0(executor.comm, lambda: profile_stages(executor.split, inputs))
    costs = costs_of_stages(stages, fabric=measure_link(executor.comm), num_replicas=executor.num_replicas)
    simulated, measured = simulate(executor.schedule, costs), executor.timeline(costs)

    def draw() -> None:
        if path is not None:
            draw_timelines([simulated, measured], path)

    on_rank_0(executor.comm, draw)
    return simulated, measured
