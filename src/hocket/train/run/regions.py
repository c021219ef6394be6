"""What a step records of itself: a region for each action, with the number of the training step."""

from __future__ import annotations

import re
from functools import lru_cache

from hocket.pipeline.action import Action
from hocket.pipeline.kind import kinds

_MOST_NAMES = 1 << 14
STEP = "training step"
EVALUATION = "evaluation step"
GRADIENTS = "gradients of copies"
OPTIMIZER = "optimizer step"


@lru_cache(_MOST_NAMES)
def name_of(action: Action) -> str:
    """Return the name of an action's region: a few words, and the action as in tables.

    `hocket.pipeline.Action.parse` reads the last word: "forward pass 2F0" is micro-batch 0 in stage 2.
    """
    words = re.split("[;,]", kinds()[action.kind].description, maxsplit=1)[0]
    return f"{words} {action._replace(step=0, with_previous=False)}"


def name_of_message(is_sent: bool, is_gradient: bool) -> str:
    """Return the name of the region in which a rank sends, or waits for, a message between stages."""
    return f"{'send' if is_sent else 'receive'} {'gradient' if is_gradient else 'activation'}"
