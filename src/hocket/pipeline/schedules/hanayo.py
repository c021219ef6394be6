"""Hanayo: waves down and up the ranks, with the effect of Chimera but one copy of the model."""

from hocket.pipeline.costs import CostModel
from hocket.pipeline.list_scheduling import Rule, search_list_schedule
from hocket.pipeline.placement import zigzag
from hocket.pipeline.registry import recipe
from hocket.pipeline.schedule import PipelineSchedule


@recipe(
    "hanayo",
    bubble="by simulation; decreases with the number of waves",
    reference="Liu, Cheng, Zhou and You, SC 2023, arXiv 2308.15762",
    choices={"num_waves": (1,)},
)
def hanayo(num_ranks: int, num_micro_batches: int, num_waves: int = 2) -> PipelineSchedule:
    """2w stages per rank along w waves; list scheduling with B = 2F chooses the order."""
    costs = CostModel(seconds={"F": 1.0, "B": 2.0})
    kept_by_1f1b = 2 * num_waves * num_ranks
    rule = Rule(most_kept=kept_by_1f1b * 3 // 2)
    return search_list_schedule(zigzag(num_ranks, 2 * num_waves), [range(num_micro_batches)], costs, rule)
