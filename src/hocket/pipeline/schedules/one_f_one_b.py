"""1F1B: after a warm-up, forward and backward passes alternate."""

from hocket.pipeline.action import Action
from hocket.pipeline.placement import linear
from hocket.pipeline.registry import recipe
from hocket.pipeline.schedule import PipelineSchedule


@recipe("1f1b", bubble="(D - 1)/(N + D - 1)", reference="DAPPLE, arXiv 2007.01045; PipeDream, arXiv 1806.03377")
def one_f_one_b(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """The bubbles of GPipe, but rank s keeps only D - s micro-batches."""
    rows = []
    for stage in range(num_ranks):
        warm_up = min(num_micro_batches, num_ranks - 1 - stage)
        actions = [Action("F", stage, each) for each in range(warm_up)]
        for each in range(num_micro_batches):
            if each + warm_up < num_micro_batches:
                actions.append(Action("F", stage, each + warm_up))
            actions.append(Action("B", stage, each))
        rows.append(actions)
    return PipelineSchedule("1f1b", linear(num_ranks), num_micro_batches, rows)
