"""Works that two threads bring to their end at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from hocket.torch.work import HocketWork

pytestmark = pytest.mark.timeout(60)


class Over:
    """What the core says of an operation that is just over, and whom it tells."""

    done = False
    told: Callable[[], object]

    def wait(self, timeout_s: float | None) -> None:
        self.done = True

    def exception(self) -> None:
        return None

    def _on_finished(self, told: Callable[[], object]) -> None:
        self.told = told


def test_who_waits_goes_on_when_the_progress_thread_has_finished() -> None:
    native: Any = Over()
    begun, calls = threading.Event(), []

    def finish() -> None:
        begun.set()
        time.sleep(0.2)
        calls.append(threading.current_thread())

    work = HocketWork(native, [torch.ones(1)], finish)
    future = work.get_future()
    progress = threading.Thread(target=native.told)
    progress.start()
    assert begun.wait(10)
    work.wait()
    assert calls == [progress]
    progress.join()
    assert future.done()


def test_a_future_is_completed_once() -> None:
    with ThreadPoolExecutor(2) as threads:
        for _ in range(2000):
            native: Any = Over()
            work = HocketWork(native, [torch.ones(1)])
            future = work.get_future()
            together = threading.Barrier(2)

            def end(call: Callable[[], object], together: threading.Barrier = together) -> None:
                together.wait(10)
                call()

            ends = [threads.submit(end, call) for call in (native.told, work.wait)]
            for each in ends:
                each.result(10)
            assert future.wait()[0].item() == 1
