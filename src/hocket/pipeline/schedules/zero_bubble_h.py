"""ZB-H1 and ZB-H2: deferred weight gradients fill the bubbles.

A rank starts as in 1F1B, or with about twice as many forward passes. Rank s defers its weight gradients by the number
of forward passes that it starts with less than rank 0. So all ranks use the same memory, and at the end the ranks that
receive the last gradients first have the most weight gradients left.
"""

from hocket.pipeline.action import Action
from hocket.pipeline.placement import linear
from hocket.pipeline.registry import recipe
from hocket.pipeline.schedule import PipelineSchedule

_REFERENCE = "Qi, Wan, Huang and Lin, arXiv 2401.10241, section 2"


@recipe("zb-h1", bubble="(D - 1)(F + B - 2W)/(N(F + B) + (D - 1)(F + B - 2W))", reference=_REFERENCE)
def zb_h1(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """Split backward passes: the memory of 1F1B, and about a third of its bubbles."""
    return _zero_bubble(num_ranks, num_micro_batches, 1)


@recipe("zb-h2", bubble="0 of the span, where F = I = W and N is 2D - 1 or more", reference=_REFERENCE)
def zb_h2(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """Split backward passes: twice the memory of 1F1B, and no idle time between first and last work of a rank."""
    return _zero_bubble(num_ranks, num_micro_batches, 2)


def _zero_bubble(num_ranks: int, num_micro_batches: int, factor: int) -> PipelineSchedule:
    rows = []
    for stage in range(num_ranks):
        warm_up = min(num_micro_batches, factor * (num_ranks - 1 - stage))
        lag = factor * stage
        actions = [Action("F", stage, each) for each in range(warm_up)]
        for each in range(num_micro_batches):
            if each + warm_up < num_micro_batches:
                actions.append(Action("F", stage, each + warm_up))
            actions.append(Action("I", stage, each))
            if each >= lag:
                actions.append(Action("W", stage, each - lag))
        deferred = range(max(0, num_micro_batches - lag), num_micro_batches)
        rows.append(actions + [Action("W", stage, each) for each in deferred])
    return PipelineSchedule(f"zb-h{factor}", linear(num_ranks), num_micro_batches, rows)
