"""Reports of failed operations that the program did not wait for, and of messages that were never received."""

from __future__ import annotations

import sys
import warnings
from types import FrameType


def warn_at_the_users_line(text: str) -> None:
    """Issue a warning at the line of the program that called into hocket."""
    frame: FrameType | None = sys._getframe()
    level = 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "hocket":
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level + 1)


def raise_or_note(unseen: BaseException) -> None:
    """Raise a failure that the program did not wait for; if it handles another error, add a note to that error."""
    handled = sys.exception()
    if handled is None:
        raise unseen
    handled.add_note(f"hocket: {type(unseen).__name__}: {unseen}")
