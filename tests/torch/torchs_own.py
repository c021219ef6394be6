"""torch's own class of distributed tests, over one backend: ``torchs_own.py BACKEND SIZE FOLDER [NAME ...]``.

The class is `DistributedTest._DistTestBase` of torch's wheel. It compares the backend's name in many places to find its
features; here the name is equal to "gloo", and the process groups are those of BACKEND. Each test has its own forked
ranks. Prints one JSON object: the outcome of each test, and why it failed.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import sys
import unittest
from pathlib import Path
from typing import Any

DEADLINE_S = 60
backend, size, folder, *names = sys.argv[1:]
os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": size, "TEMP_DIR": folder, "INIT_METHOD": f"file://{folder}/store"}
Path(folder, "barrier").mkdir(exist_ok=True)

import torch  # noqa: E402
import torch.testing._internal.common_distributed as common  # noqa: E402
import torch.testing._internal.distributed.distributed_test as tests  # noqa: E402

import hocket.torch.dist  # noqa: E402

torch.set_num_threads(1)
common.TIMEOUT_DEFAULT = DEADLINE_S


class Name(str):
    """The backend's name, which is also equal to "gloo"."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or other == "gloo"

    def __ne__(self, other: object) -> bool:
        return not self == other


if backend != "gloo":
    tests.BACKEND = Name(backend)
    tests.dist.monitored_barrier = hocket.torch.dist.monitored_barrier  # torch's own refuses all backends but gloo
    tests.PROFILING_SUPPORTED_BACKENDS.append(backend)
    tests.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.append(backend)


class Test(tests.TestDistBackend, tests.DistributedTest._DistTestBase):  # type: ignore[misc]
    def setUp(self) -> None:
        super().setUp()
        self._start_processes(multiprocessing.get_context("fork").Process)

    def _check_return_codes(self, fn: Any, elapsed_time: float) -> None:
        super()._check_return_codes(fn, elapsed_time)
        codes = {process.exitcode for process in self.processes}
        assert len(codes) == 1 or fn in self.skip_return_code_checks, f"ranks ended with {codes}"


def outcome(name: str) -> str:
    result = unittest.TestResult()
    with contextlib.redirect_stdout(io.StringIO()):
        unittest.TestSuite([Test(name)]).run(result)
    if result.skipped:
        return "skipped"
    failed = [text for _, text in (*result.errors, *result.failures)]
    return "passed" if not failed else failed[0]


if __name__ == "__main__":
    every = [name for name in dir(Test) if name.startswith("test_")]
    print(json.dumps({name: outcome(name) for name in names or every}))
