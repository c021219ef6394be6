"""Hanayo: waves down and up the ranks, so that one copy of the model does what Chimera needs two for."""

from hocket.pipeline.costs import CostModel
from hocket.pipeline.list_scheduling import Rule, search_list_schedule
from hocket.pipeline.placement import zigzag
from hocket.pipeline.registry import recipe
from hocket.pipeline.schedule import PipelineSchedule


@recipe(
    "hanayo",
    bubble="by simulation; falls with the number of waves",
    reference="Liu, Cheng, Zhou and You, SC 2023, arXiv 2308.15762",
    choices={"num_waves": (1,)},
)
def hanayo(num_ranks: int, num_micro_batches: int, num_waves: int = 2) -> PipelineSchedule:
    """Every stage in 2w pieces along w waves; an order is searched for by list scheduling with B = 2F."""
    costs = CostModel(seconds={"F": 1.0, "B": 2.0})
    whole = 2 * num_waves * num_ranks  # what 1F1B keeps
    rule = Rule(most_kept=whole * 3 // 2)
    return search_list_schedule(zigzag(num_ranks, 2 * num_waves), [range(num_micro_batches)], costs, rule)
