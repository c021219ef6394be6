"""The environment variables that hocket reads; docs/configuration.md has the same list."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping

from hocket.errors import InvalidArgument
from hocket.suggestions import did_you_mean

SWITCHES = ("HOCKET_COMPETE", "HOCKET_INSECURE", "HOCKET_LEARN", "HOCKET_RECORDER", "HOCKET_SINGLE_COPY")
VALUES = dict.fromkeys(SWITCHES, ("0", "1")) | {"HOCKET_PROGRESS": ("auto", "caller", "thread")}
"""Allowed values of some variables; an empty variable counts as not set."""
KNOWN = (
    *VALUES, "HOCKET_BACKENDS", "HOCKET_CLICKHOUSE_PASSWORD", "HOCKET_CONTROL", "HOCKET_HOST", "HOCKET_ISA",
    "HOCKET_JOB", "HOCKET_LOG", "HOCKET_MEASURE_ADDRESS", "HOCKET_MEASURE_JOB", "HOCKET_OBSERVE",
    "HOCKET_OBSERVE_JOIN", "HOCKET_PMI_FD",
    "HOCKET_READY_FD", "HOCKET_RECORDER_BUDGET", "HOCKET_RECORDER_FD", "HOCKET_RECORDER_FOLDER", "HOCKET_RECORDER_KEEP",
    "HOCKET_RECORD_DIR", "HOCKET_REPORT_DIR", "HOCKET_SECRET", "HOCKET_SOAK", "HOCKET_STORE_TOKEN", "HOCKET_TABLE",
    "HOCKET_TLS_CERT", "HOCKET_TLS_KEY", "HOCKET_TRACEBACK",
)  # fmt: skip
_PREFIX = "HOCKET_"
_OF_TESTS = "HOCKET_TEST_"


def check_variables(environment: Mapping[str, str] = os.environ, *, warns: bool = True) -> None:
    """Check hocket's environment variables.

    Args:
        environment: the variables.
        warns: whether to warn about unknown variables, which are most likely misspelt.

    Raises:
        InvalidArgument: a variable of `VALUES` has a value that is not allowed.
    """
    for name, values in VALUES.items():
        if (value := environment.get(name, "")) and value not in values:
            raise InvalidArgument(f"{name} must be {' or '.join(values)}, not {value!r}")
    for name in environment if warns else ():
        if name.startswith(_PREFIX) and name not in KNOWN and not name.startswith(_OF_TESTS):
            warnings.warn(f"hocket has no environment variable {name}{did_you_mean(name, KNOWN)}", stacklevel=4)
