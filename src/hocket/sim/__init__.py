"""The project's only discrete-event engine, and the models of what connects ranks: links and hosts.

Names are loaded on first use, so a program that simulates nothing does not need NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.lazy_names import lazy

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

__getattr__ = lazy(__name__)
