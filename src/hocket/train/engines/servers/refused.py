"""The error of a call that a parameter server does not take."""

from __future__ import annotations


class Refused(Exception):
    """A call that does not fit what was called before; the text says why."""
