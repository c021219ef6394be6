"""Pipeline schedules as tables: made, checked, simulated, drawn, chosen, and handed to an executor.

Needs NumPy alone. Names are loaded when they are asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.pipeline.action import Action
    from hocket.pipeline.bound import lower_bound_s
    from hocket.pipeline.buffering import Buffering
    from hocket.pipeline.checks.deadlock import smallest_buffering
    from hocket.pipeline.checks.validate import validate
    from hocket.pipeline.costs import CostModel
    from hocket.pipeline.files import load_schedule, save_schedule
    from hocket.pipeline.kind import Kind, Need, Stash, register_kind
    from hocket.pipeline.list_scheduling import Rule, list_schedule, search_list_schedule
    from hocket.pipeline.passes.concatenate import concatenate
    from hocket.pipeline.passes.fill_bubbles import FillReport, fill_bubbles
    from hocket.pipeline.passes.gradient_sync import add_gradient_sync
    from hocket.pipeline.passes.lower_messages import lower_messages
    from hocket.pipeline.passes.recompute import recompute
    from hocket.pipeline.passes.retime import retime
    from hocket.pipeline.passes.split_backward import merge_backward, split_backward
    from hocket.pipeline.placement import Placement, bidirectional, custom, linear, looped, zigzag
    from hocket.pipeline.registry import Recipe, build, find_recipe, recipe, recipes
    from hocket.pipeline.schedule import PipelineSchedule
    from hocket.pipeline.simulation import simulate
    from hocket.pipeline.timeline import PipelineTimeline

_HOMES = {
    "Action": "action",
    "Buffering": "buffering",
    "CostModel": "costs",
    "FillReport": "passes.fill_bubbles",
    "Kind": "kind",
    "Need": "kind",
    "PipelineSchedule": "schedule",
    "PipelineTimeline": "timeline",
    "Placement": "placement",
    "Recipe": "registry",
    "Rule": "list_scheduling",
    "Stash": "kind",
    "add_gradient_sync": "passes.gradient_sync",
    "bidirectional": "placement",
    "build": "registry",
    "concatenate": "passes.concatenate",
    "custom": "placement",
    "fill_bubbles": "passes.fill_bubbles",
    "find_recipe": "registry",
    "linear": "placement",
    "list_schedule": "list_scheduling",
    "load_schedule": "files",
    "looped": "placement",
    "lower_bound_s": "bound",
    "lower_messages": "passes.lower_messages",
    "merge_backward": "passes.split_backward",
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
    "zigzag": "placement",
}

__all__ = [
    "Action",
    "Buffering",
    "CostModel",
    "FillReport",
    "Kind",
    "Need",
    "PipelineSchedule",
    "PipelineTimeline",
    "Placement",
    "Recipe",
    "Rule",
    "Stash",
    "add_gradient_sync",
    "bidirectional",
    "build",
    "concatenate",
    "custom",
    "fill_bubbles",
    "find_recipe",
    "linear",
    "list_schedule",
    "load_schedule",
    "looped",
    "lower_bound_s",
    "lower_messages",
    "merge_backward",
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
    "zigzag",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
