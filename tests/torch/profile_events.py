"""Events of operations in torch's profilers: ``profile_events.py BACKEND LATE_S``; rank 0 prints them as JSON.

LATE_S is the delay of a rank in seconds, so that the events of the other ranks show a wait.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

LATE_S = float(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group(sys.argv[1])
rank, size = dist.get_rank(), dist.get_world_size()
ones = torch.ones

OPERATIONS: dict[str, Callable[..., dist.Work | None]] = {
    "all_reduce": partial(dist.all_reduce, ones(3, 4)),
    "all_reduce_sparse": partial(dist.all_reduce, torch.eye(3).to_sparse()),
    "all_gather": lambda **how: dist.all_gather([ones(5)] * size, ones(5), **how),
    "all_gather_into_tensor": lambda **how: dist.all_gather_into_tensor(ones(5 * size), ones(5), **how),
    "all_to_all_single": lambda **how: dist.all_to_all_single(ones(size, 2), ones(size, 2), **how),
    "barrier": dist.barrier,
    "broadcast": partial(dist.broadcast, ones(2, 3), 0),
    "gather": lambda **how: dist.gather(ones(4), [ones(4)] * size if rank == 0 else None, 0, **how),
    "reduce": partial(dist.reduce, ones(6), 0),
    "reduce_scatter_tensor": lambda **how: dist.reduce_scatter_tensor(ones(2), ones(2 * size), **how),
    "scatter": lambda **how: dist.scatter(ones(4), [ones(4)] * size if rank == 0 else None, 0, **how),
}


def messages() -> None:
    """Send a message of each form to rank 0; the last one is late."""
    x = ones(2, 5)
    if rank == 0:
        dist.recv(x, 1)
        dist.irecv(x, 1).wait()
        dist.recv(x)
        dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 1)])[0].wait()
        dist.recv(x, 1)
        dist.send(x, 1)
    else:
        dist.send(x, 0)
        dist.isend(x, 0).wait()
        dist.send(x, 0)
        dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 0)])[0].wait()
        time.sleep(LATE_S)
        dist.send(x, 0)
        dist.recv(x, 0)


def run_all() -> None:
    for operation in OPERATIONS.values():
        operation()
        if work := operation(async_op=True):
            work.wait()
    messages()
    if rank == 1:
        time.sleep(LATE_S)
    work = dist.all_reduce(ones(7), async_op=True)
    assert work is not None
    work.wait()
    try:
        dist.all_reduce(ones(8, dtype=torch.complex64), dist.ReduceOp.MAX)
    except (RuntimeError, ValueError):
        pass


profilers = {"torch.profiler": torch.profiler.profile, "torch.autograd.profiler": torch.autograd.profiler.profile}
seen = {}
for name, profiler in profilers.items():
    with profiler(record_shapes=True) as profile:
        run_all()
        if rank == 1:
            time.sleep(LATE_S)
    events = profile.events() if isinstance(profile, torch.profiler.profile) else profile.function_events
    found = [event for event in events if event.name.startswith(f"{sys.argv[1]}:")]
    late = [event for event in found if event.time_range.elapsed_us() > LATE_S * 5e5]
    late = [event for event in late if event.input_shapes == [[7]] or event.name.endswith(":recv")]
    seen[name] = {
        "events": sorted([event.name.split(":")[1], event.is_async, event.input_shapes] for event in found),
        "late": sorted({event.name.split(":")[1] for event in late}),
        "self time": sum(event.self_cpu_time_total for event in found),
    }
if rank == 0:
    print(json.dumps(seen))
dist.destroy_process_group()
