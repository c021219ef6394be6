"""Whether an MPI library has performance variables (MPI_T), asked in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from hocket.errors import RecorderError

_DEADLINE_S = 20.0
_PROGRAM = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
level, number = ctypes.c_int(), ctypes.c_int()
code = library.MPI_T_init_thread(0, ctypes.byref(level)) or library.MPI_T_pvar_get_num(ctypes.byref(number))
sys.exit(f"error {code} of MPI_T") if code else print(number.value)
"""


def num_mpi_variables(path: str) -> int:
    """Return how many performance variables an MPI library has before it begins.

    Args:
        path: the library.

    Raises:
        RecorderError: it cannot be asked.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, path], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_DEADLINE_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RecorderError(f"{path} did not answer within {_DEADLINE_S:.0f} s") from None
    if done.returncode != 0 or not done.stdout.strip().isdecimal():
        said = done.stderr.strip().splitlines()
        raise RecorderError(f"{path}: {said[-1][:200] if said else f'it ended with {done.returncode}'}")
    return int(done.stdout)
