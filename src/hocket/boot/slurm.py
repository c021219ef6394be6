"""Read Slurm's variables about the processes of one host."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Slurm numbers its own steps (batch script, extern, interactive shell) downwards from the top of 32 bits.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


def is_slurm_task(environ: Mapping[str, str]) -> bool:
    """Return whether srun started this process; a shell in an allocation also has SLURM_PROCID, but is not a task."""
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdigit() and int(step) < _FIRST_SPECIAL_STEP


def slurm_local_size(environ: Mapping[str, str]) -> int | None:
    """Return the number of tasks on this node, from the step's counts such as ``4(x2),3`` (4, 4 and 3 tasks).

    Returns:
        The number of tasks, or None if Slurm gives no such list or the list ends before this node.
    """
    node = environ.get("SLURM_NODEID", "")
    if not node.isdigit():
        return None
    first_node_of_entry = 0
    for entry in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", entry)
        if match is None:
            return None
        first_node_of_entry += int(match[2] or 1)
        if int(node) < first_node_of_entry:
            return int(match[1])
    return None
