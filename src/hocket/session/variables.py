"""Variables of the environment that hocket reads; docs/configuration.md lists the same."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping

from hocket.errors import InvalidArgument
from hocket.suggestions import did_you_mean

SWITCHES = ("HOCKET_COMPETE", "HOCKET_INSECURE", "HOCKET_LEARN", "HOCKET_SINGLE_COPY")
KNOWN = (
    *SWITCHES, "HOCKET_BACKENDS", "HOCKET_CONTROL", "HOCKET_HOST", "HOCKET_ISA", "HOCKET_JOB", "HOCKET_LOG",
    "HOCKET_MEASURE_ADDRESS", "HOCKET_MEASURE_JOB", "HOCKET_PROGRESS", "HOCKET_READY_FD", "HOCKET_RECORD_DIR",
    "HOCKET_REPORT_DIR", "HOCKET_SECRET", "HOCKET_SOAK", "HOCKET_TABLE", "HOCKET_TLS_CERT", "HOCKET_TLS_KEY",
    "HOCKET_TRACEBACK",
)  # fmt: skip
_PREFIX = "HOCKET_"
_OF_TESTS = "HOCKET_TEST_"


def check_variables(environment: Mapping[str, str] = os.environ, *, is_told: bool = True) -> None:
    """Look at what the environment says before anything is done by it.

    Args:
        environment: the variables.
        is_told: warn of a variable that hocket does not know, which is most likely misspelt.

    Raises:
        InvalidArgument: a switch is neither 0 nor 1.
    """
    for name in SWITCHES:
        if environment.get(name, "") not in ("", "0", "1"):
            raise InvalidArgument(f"{name} must be 1 or 0, not {environment[name]!r}")
    for name in environment if is_told else ():
        if name.startswith(_PREFIX) and name not in KNOWN and not name.startswith(_OF_TESTS):
            warnings.warn(f"hocket reads no variable {name}{did_you_mean(name, KNOWN)}", stacklevel=3)
