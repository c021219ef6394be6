"""The time of a step by the formula of the Chimera paper, to compare with the simulation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hocket.pipeline.costs import CostModel, per_stage
from hocket.pipeline.kind import CROSSINGS, kinds
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.simulation import simulate


def predict_step_s(schedule: PipelineSchedule, costs: CostModel) -> float:
    """Predict the seconds of a step by the model of arXiv 2107.06925, section 3.4.

    T = sum of C_k (k + p2p) over the kinds of passes, plus the longest part of a gradient sum that no bubble hides.
    C_k is the number of passes of kind k on the critical path (Chimera with N = D: C_f = D and C_b = 2D - 2), p2p is
    α + nβ, and the time of a pass is that of the slowest stage. A weight gradient (W) sends no message.

    Args:
        schedule: schedule of one step; gradient sums in it must be those of `add_gradient_sync`.
        costs: costs of the actions.

    Returns:
        Seconds.

    Examples:
        >>> schedule = hk.pipeline.build("chimera", 4, 4)  # C_f = 4, C_b = 6
        >>> hk.pipeline.predict_step_s(schedule, hk.pipeline.CostModel(seconds={"F": 1.0, "B": 2.0}))
        16.0
    """
    num_stages = schedule.num_stages
    bare = schedule.without(*schedule.columns.counted_as("SYNC_START", "SYNC_WAIT", "STEP"))
    known = kinds()
    passes = {kind.cost for kind in known.values() if kind.is_pass and kind.cost}
    awaited = {
        name for kind in known.values() for need in kind.needs if need.carries in CROSSINGS for name in need.kinds
    }
    sending = bare.columns.counted_as(*awaited)
    slowest_s = {name: float(costs.seconds_of(name, num_stages).max()) for name in passes}
    timeline = simulate(bare, CostModel(seconds=slowest_s))
    groups = bare.columns.groups
    on_path = np.isin(groups, groups[timeline.critical_path()])  # and all actions that overlap with them
    path = [bare.action(row) for row in np.flatnonzero(on_path).tolist()]
    message_s = 0.0
    fabric = costs.network()
    if fabric is not None and schedule.num_ranks > 1:
        nbytes = float(per_stage(costs.message_nbytes, num_stages, "message_nbytes").max())
        cost = fabric.message_cost(0, 1, int(np.ceil(nbytes)))
        message_s = cost.latency_s + cost.occupied_s
    total = sum(
        slowest_s.get(known[action.kind].cost or "", 0.0) * action.width + message_s * (action.kind in sending)
        for action in path
    )
    exposed = [0.0]
    gradients = per_stage(costs.gradient_nbytes, num_stages, "gradient_nbytes")
    rows = bare.columns.rows("B", "W")
    for stage in range(num_stages):
        ranks = sorted({of_pipe[stage] for of_pipe in schedule.placement.ranks})
        seconds = costs.all_reduce_s(float(gradients[stage]), ranks, schedule.num_ranks)
        for rank in ranks if seconds else ():
            mine = rows[(bare.columns.rank[rows] == rank) & (bare.columns.stage[rows] == stage)]
            if mine.size:
                exposed.append(seconds - _bubbles_after(timeline.begin_s, timeline.end_s, bare, rank, int(mine.max())))
    return total + max(exposed)


def _bubbles_after(
    begin_s: NDArray[np.float64], end_s: NDArray[np.float64], schedule: PipelineSchedule, rank: int, row: int
) -> float:
    """Return the idle seconds of a rank between an action and its last action."""
    last = int(schedule.columns.starts[rank + 1])
    works = ~schedule.columns.with_previous[row + 1 : last]
    busy = float((end_s - begin_s)[row + 1 : last][works].sum())
    return float(end_s[last - 1]) - float(end_s[row]) - busy
