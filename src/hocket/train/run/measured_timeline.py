"""When the actions of a step happened, on all ranks, on one clock."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hocket.comm import Communicator
from hocket.pipeline.costs import CostModel
from hocket.pipeline.lowered import lower_to_tasks
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.timeline import PipelineTimeline


def measured_timeline(
    comm: Communicator, schedule: PipelineSchedule, steps: Sequence[NDArray[np.float64]], costs: CostModel
) -> PipelineTimeline:
    """Put the times of the ranks of the first replica together, of the step that took as long as the median of some;
    called by all ranks.

    Clocks of ranks on one host are the same; those of other hosts count from the end of a barrier. A message is taken
    to be on its way from the end of what made it until what needs it begins.

    Args:
        comm: of all ranks.
        schedule: that they executed.
        steps: seconds at which this rank's actions began (first row) and ended, in each of the steps.
        costs: for bytes of messages.
    """
    comm.barrier()
    offset = comm.wtime() if comm.num_hosts > 1 else 0.0
    of_ranks = comm.all_gather_object(np.stack(steps) - offset)[: schedule.num_ranks]
    every = np.concatenate(of_ranks, axis=2)
    spans = every[:, 1].max(axis=1, initial=-np.inf) - every[:, 0].min(axis=1, initial=np.inf)
    begin_s, end_s = every[np.argsort(spans)[len(spans) // 2]]
    if begin_s.size:
        first = float(begin_s.min())
        begin_s, end_s = begin_s - first, end_s - first
    messages = lower_to_tasks(schedule, costs).messages
    return PipelineTimeline(
        schedule,
        begin_s,
        end_s,
        messages,
        end_s[messages.source],
        begin_s[messages.destination],
        costs,
        source="measured",
    )
