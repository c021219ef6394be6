"""SIGTERM ends a command as Ctrl-C does: what it has begun is removed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_EXIT_CODE = 128 + signal.SIGTERM


@contextmanager
def cleaned_up_when_terminated() -> Iterator[None]:
    """Have SIGTERM raise SystemExit meanwhile; in the main thread."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(_EXIT_CODE))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
