"""Rank 1 exits without the operation that rank 0 issues; in most of the cases argv[1], rank 0 does not wait for it."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def wait(work: Any) -> None:
    try:
        work.wait()
    except Exception as error:
        print("caught", type(error).__name__)


def handle(future: Any) -> None:
    try:
        future.value()
    except Exception as error:
        print("caught", type(error).__name__, flush=True)


WAYS: dict[str, Callable[[Any], object]] = {
    "dropped": lambda work: None,
    "polled": lambda work: [work.is_completed() for _ in range(10_000)],
    "future": lambda work: work.get_future(),
    "followed": lambda work: work.get_future().then(lambda future: future.value()),
    "followed twice": lambda work: work.get_future().then(lambda _: 1).then(lambda future: future.value()),
    "handled in a callback": lambda work: work.get_future().then(handle),
    "collected": lambda work: torch.futures.collect_all([work.get_future()]).wait(),
    "waited for": wait,
    "future waited for": lambda work: wait(work.get_future()),
    "following one waited for": lambda work: wait(work.get_future().then(lambda future: future.wait())),
}


def main() -> None:
    way, end = sys.argv[1:]
    dist.init_process_group("hocket", timeout=datetime.timedelta(seconds=20))
    dist.barrier()
    if dist.get_rank() == 0:
        _ = WAYS[way](dist.all_reduce(torch.ones(3), async_op=True))
    if end == "destroyed":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
