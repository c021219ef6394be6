"""What hocket does besides operations, told to the logger "hocket" of Python's `logging`.

``HOCKET_LOG=info`` writes it to standard error, ``HOCKET_LOG=debug:run-%r.log`` to a file a rank. Without it nothing is
set up, and what the program does with that logger holds.
"""

from __future__ import annotations

import logging
import os
import sys

from hocket.errors import InvalidArgument

logger = logging.getLogger("hocket")
logger.addHandler(logging.NullHandler())

_LEVELS = ("debug", "info", "warning", "error")


def start_log(rank: int) -> None:
    """Do what HOCKET_LOG says; called when this process has learned its rank. Once is enough, twice does no harm.

    Raises:
        InvalidArgument: HOCKET_LOG has no known meaning, or its file cannot be written.
    """
    wanted = os.environ.get("HOCKET_LOG")
    if not wanted or any(each.name == wanted for each in logger.handlers):
        return
    level, _, path = wanted.partition(":")
    if level not in _LEVELS:
        raise InvalidArgument(f"HOCKET_LOG={wanted!r} must be one of {', '.join(_LEVELS)}, or one of them with :FILE")
    handler: logging.Handler
    try:
        handler = logging.FileHandler(path.replace("%r", str(rank))) if path else logging.StreamHandler()
    except OSError as error:
        raise InvalidArgument(f"HOCKET_LOG={wanted!r}: the file cannot be written: {error}") from error
    handler.name = wanted
    handler.setFormatter(logging.Formatter(f"%(asctime)s hocket rank {rank} %(levelname)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level.upper())


def report_stall(report: str) -> None:
    """Tell who is waited for, once a wait takes long: a warning of the logger. Where no handler takes warnings, or one
    fails, it is a line on standard error.

    Called by the native core.
    """
    is_told = False
    try:
        logger.warning(report)
        is_told = _is_heard()
    finally:
        if not is_told and sys.stderr is not None:
            print(f"hocket: {report}", file=sys.stderr, flush=True)


def _is_heard() -> bool:
    """Whether a handler gets warnings of the logger."""
    if not logger.isEnabledFor(logging.WARNING):
        return False
    level: logging.Logger | None = logger
    while level is not None:
        if any(not isinstance(each, logging.NullHandler) and each.level <= logging.WARNING for each in level.handlers):
            return True
        level = level.parent if level.propagate else None
    return False
