"""What a step was simulated to take, beside what it took."""

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
    """Measure the stages one by one on rank 0, simulate the executor's table with that, and put the latest step beside
    it; called by all ranks after a step.

    Stages are measured while the other ranks wait. Where ranks share memory bandwidth, or cores, a real step is slower
    than that.

    Args:
        executor: that has taken a step.
        inputs: a micro-batch, by the names that the model takes.
        path: of a picture of both, drawn on rank 0.

    Returns:
        The simulated and the measured timeline, on every rank.

    Raises:
        BackendUnavailable: there is to be a picture, and matplotlib is not installed.
    """
    stages = on_rank_0(executor.comm, lambda: profile_stages(executor.split, inputs))
    costs = costs_of_stages(stages, fabric=measure_link(executor.comm), num_replicas=executor.num_replicas)
    simulated, measured = simulate(executor.schedule, costs), executor.timeline(costs)

    def draw() -> None:
        if path is not None:
            draw_timelines([simulated, measured], path)

    on_rank_0(executor.comm, draw)
    return simulated, measured
