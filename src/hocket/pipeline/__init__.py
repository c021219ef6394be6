"""Pipeline schedules as tables: build, check, simulate, draw, choose and export them.

Needs only NumPy. Names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.errors import InvalidSchedule
from hocket.lazy_names import lazy

if TYPE_CHECKING:
    from hocket.pipeline.action import Action
    from hocket.pipeline.bound import lower_bound_s
    from hocket.pipeline.buffering import Buffering
    from hocket.pipeline.checks.deadlock import smallest_buffering
    from hocket.pipeline.checks.validate import validate
    from hocket.pipeline.choosing import Candidate, choose
    from hocket.pipeline.costs import CostModel
    from hocket.pipeline.draw import draw_timelines
    from hocket.pipeline.files import load_schedule, save_schedule
    from hocket.pipeline.formats.text import load as load_text
    from hocket.pipeline.kind import Kind, Need, Stash, register_kind
    from hocket.pipeline.list_scheduling import Rule, list_schedule, search_list_schedule
    from hocket.pipeline.model_costs import ModelCosts
    from hocket.pipeline.partition import bottleneck_partition
    from hocket.pipeline.passes.concatenate import concatenate
    from hocket.pipeline.passes.fill_bubbles import FillReport, fill_bubbles
    from hocket.pipeline.passes.gradient_sync import add_gradient_sync
    from hocket.pipeline.passes.lower_messages import lower_messages
    from hocket.pipeline.passes.recompute import recompute
    from hocket.pipeline.passes.retime import retime
    from hocket.pipeline.passes.split_backward import merge_backward, split_backward
    from hocket.pipeline.performance_model import predict_step_s
    from hocket.pipeline.placement import Placement, bidirectional, custom, linear, looped, zigzag
    from hocket.pipeline.registry import Recipe, build, find_recipe, recipe, recipes
    from hocket.pipeline.schedule import PipelineSchedule
    from hocket.pipeline.simulation import simulate
    from hocket.pipeline.terminal import draw_text
    from hocket.pipeline.timeline import PipelineTimeline
    from hocket.pipeline.trace_file import write_trace

__getattr__ = lazy(__name__)

__all__ = [
    "Action",
    "Buffering",
    "Candidate",
    "CostModel",
    "FillReport",
    "InvalidSchedule",
    "Kind",
    "ModelCosts",
    "Need",
    "PipelineSchedule",
    "PipelineTimeline",
    "Placement",
    "Recipe",
    "Rule",
    "Stash",
    "add_gradient_sync",
    "bidirectional",
    "bottleneck_partition",
    "build",
    "choose",
    "concatenate",
    "custom",
    "draw_text",
    "draw_timelines",
    "fill_bubbles",
    "find_recipe",
    "linear",
    "list_schedule",
    "load_schedule",
    "load_text",
    "looped",
    "lower_bound_s",
    "lower_messages",
    "merge_backward",
    "predict_step_s",
    "recipe",
    "recipes",
    "recompute",
    "register_kind",
    "retime",
    "save_schedule",
    "search_list_schedule",
    "simulate",
    "smallest_buffering",
    "split_backward",
    "validate",
    "write_trace",
    "zigzag",
]
