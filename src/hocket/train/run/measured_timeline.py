"""The measured times of a step's actions on all ranks, on one clock."""

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
    """Return the times of replica 0 in the step of median length; called by all ranks.

    Ranks of one host share a clock. On several hosts, times count from the end of a barrier. A message is drawn from
    the end of the action that computed it to the beginning of the action that takes it.

    Args:
        comm: a communicator of all ranks.
        schedule: the executed schedule.
        steps: for each step, an array of shape (2, actions): the seconds at which this rank's actions began and ended.
        costs: cost model that gives the sizes of messages.
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
