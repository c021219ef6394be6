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

__getattr__ = lazy(
    __name__,
    {
        "Action": "action",
        "Buffering": "buffering",
        "Candidate": "choosing",
        "CostModel": "costs",
        "FillReport": "passes.fill_bubbles",
        "Kind": "kind",
        "ModelCosts": "model_costs",
        "Need": "kind",
        "PipelineSchedule": "schedule",
        "PipelineTimeline": "timeline",
        "Placement": "placement",
        "Recipe": "registry",
        "Rule": "list_scheduling",
        "Stash": "kind",
        "add_gradient_sync": "passes.gradient_sync",
        "bidirectional": "placement",
        "bottleneck_partition": "partition",
        "build": "registry",
        "choose": "choosing",
        "concatenate": "passes.concatenate",
        "custom": "placement",
        "draw_text": "terminal",
        "draw_timelines": "draw",
        "fill_bubbles": "passes.fill_bubbles",
        "find_recipe": "registry",
        "linear": "placement",
        "list_schedule": "list_scheduling",
        "load_schedule": "files",
        "load_text": "formats.text:load",
        "looped": "placement",
        "lower_bound_s": "bound",
        "lower_messages": "passes.lower_messages",
        "merge_backward": "passes.split_backward",
        "predict_step_s": "performance_model",
        "recipe": "registry",
        "recipes": "registry",
        "recompute": "passes.recompute",
        "register_kind": "kind",
        "retime": "passes.retime",
        "save_schedule": "files",
        "search_list_schedule": "list_scheduling",
        "simulate": "simulation",
        "smallest_buffering": "checks.deadlock",
        "split_backward": "passes.split_backward",
        "validate": "checks.validate",
        "write_trace": "trace_file",
        "zigzag": "placement",
    },
)

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
