"""The project's one discrete-event engine: tasks, resources, links, a virtual clock and byte counters."""

from hocket.sim.graph import TaskGraph, Timeline

__all__ = ["TaskGraph", "Timeline"]
