"""The project's one discrete-event engine, and what connects the ranks in it: links and hosts.

Names are loaded when they are asked for: a program that simulates nothing does without NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.sim.fabric import Among, Fabric, Hosts, MessageCost, Messages, Uniform
    from hocket.sim.graph import TaskGraph, Timeline
    from hocket.sim.link import Link

__all__ = [
    "Among",
    "Fabric",
    "Hosts",
    "Link",
    "MessageCost",
    "Messages",
    "TaskGraph",
    "Timeline",
    "Uniform",
]

_HOMES = {
    "Among": "fabric",
    "Fabric": "fabric",
    "Hosts": "fabric",
    "Link": "link",
    "MessageCost": "fabric",
    "Messages": "fabric",
    "TaskGraph": "graph",
    "Timeline": "graph",
    "Uniform": "fabric",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
