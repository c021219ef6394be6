"""Works: completion, deadlines and parts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import AllreduceOptions

from hocket.errors import InvalidArgument
from hocket.torch.process_group import HocketProcessGroup
from hocket.torch.sparse import reduce_sparse
from hocket.torch.work import HocketWork, JoinedWork

pytestmark = pytest.mark.timeout(60)


class Over:
    """A stand-in for a native work that is just over."""

    done = False
    told: Callable[[], object]

    def wait(self, timeout_s: float | None) -> None:
        self.done = True

    def exception(self) -> None:
        return None

    _peek = exception

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


class InFlight:
    """A stand-in for a native work that the test completes."""

    done = False

    def _drive(self) -> bool:
        return self.done

    def exception(self) -> None:
        return None

    _peek = exception


def test_a_joined_work_is_over_with_the_last_of_its_parts() -> None:
    natives: list[Any] = [InFlight(), InFlight()]
    work = JoinedWork([HocketWork(native, [torch.ones(1)]) for native in natives])
    assert not work.is_completed()
    natives[0].done = True
    assert not work.is_completed()
    natives[1].done = True
    assert work.is_completed()


def test_the_timeout_of_a_call_counts_more_than_that_of_its_group() -> None:
    seen: list[float | None] = []

    def all_reduce(x: torch.Tensor, op: str, *, timeout: float | None, **how: Any) -> None:
        seen.append(timeout)

    communicator: Any = SimpleNamespace(rank=0, size=1, all_reduce=all_reduce)
    group = HocketProcessGroup(communicator)
    options = AllreduceOptions()
    group.allreduce([torch.ones(1)], options)
    group.set_timeout(timedelta(seconds=600))
    group.allreduce([torch.ones(1)], options)
    options.timeout = timedelta(seconds=2)
    group.allreduce([torch.ones(1)], options)
    assert seen == [None, 600.0, 2.0]


@pytest.mark.parametrize(
    "other",
    [torch.zeros(5, 3), torch.zeros(4, 4, dtype=torch.float64), torch.zeros(5, 4, dtype=torch.float64)],
    ids=["shape", "shape and type", "type"],
)
def test_sparse_tensors_that_differ_are_refused(other: torch.Tensor) -> None:
    def all_gather_object(facts: tuple[Any, ...], **how: Any) -> list[tuple[Any, ...]]:
        return [facts, (0, tuple(other.shape), 2, str(other.dtype))]

    comm: Any = SimpleNamespace(all_gather_object=all_gather_object)
    with pytest.raises(InvalidArgument):
        reduce_sparse(comm, torch.zeros(5, 4).to_sparse(), "sum")
