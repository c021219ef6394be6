"""The logger "hocket" of Python's `logging`: events other than operations.

``HOCKET_LOG=info`` writes it to standard error, ``HOCKET_LOG=debug:run-%r.log`` to one file a rank. Without HOCKET_LOG
the logger is left as the program configures it.
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
    """Configure the logger as HOCKET_LOG says. A second call has no effect.

    `hocket.init` calls it.

    Args:
        rank: rank of this process; each line, and ``%r`` in the file name, has it.

    Raises:
        InvalidArgument: HOCKET_LOG is invalid, or its file cannot be written.

    Examples:
        >>> import os
        >>> from unittest import mock
        >>> with mock.patch.dict(os.environ, HOCKET_LOG="verbose"):
        ...     hk.trace.start_log(rank=0)
        Traceback (most recent call last):
        hocket.errors.InvalidArgument: HOCKET_LOG='verbose' must be one of debug, info, warning, error, ...
    """
    setting = os.environ.get("HOCKET_LOG")
    if not setting or any(each.name == setting for each in logger.handlers):
        return
    level, _, path = setting.partition(":")
    if level not in _LEVELS:
        raise InvalidArgument(f"HOCKET_LOG={setting!r} must be one of {', '.join(_LEVELS)}, or LEVEL:FILE")
    handler: logging.Handler
    try:
        handler = logging.FileHandler(path.replace("%r", str(rank))) if path else logging.StreamHandler()
    except OSError as error:
        raise InvalidArgument(f"HOCKET_LOG={setting!r}: the file cannot be written: {error}") from error
    handler.name = setting
    handler.setFormatter(logging.Formatter(f"%(asctime)s hocket rank {rank} %(levelname)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level.upper())


def report_stall(report: str) -> None:
    """Log a warning that names the ranks which a long wait is for.

    If no handler accepts warnings, or a handler fails, the report is printed to standard error. Called by the native
    core.
    """
    is_logged = False
    try:
        logger.warning(report)
        is_logged = _has_warning_handler()
    finally:
        if not is_logged and sys.stderr is not None:
            print(f"hocket: {report}", file=sys.stderr, flush=True)


def _has_warning_handler() -> bool:
    """Return whether a handler receives warnings of the logger."""
    if not logger.isEnabledFor(logging.WARNING):
        return False
    level: logging.Logger | None = logger
    while level is not None:
        if any(not isinstance(each, logging.NullHandler) and each.level <= logging.WARNING for each in level.handlers):
            return True
        level = level.parent if level.propagate else None
    return False
