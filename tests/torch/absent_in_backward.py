"""Rank 1 does not take part in a backward pass of the mode argv[1]; the pass must time out on the other ranks.

The timeout must end every C++ wait for a bucket, at any place of the pass.
"""

import datetime
import sys
import time

import torch
import torch.distributed as dist
from ddp_modes import MODES, WIDTH, Net, plain_step
from torch.nn.parallel import DistributedDataParallel

from hocket.errors import CommTimeout

TIMEOUT_S = 1.0


def main() -> None:
    """Train some steps together, then one without rank 1."""
    mode, num_steps = MODES[sys.argv[1]], int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("hocket", timeout=datetime.timedelta(seconds=60))
    torch.manual_seed(5)
    model = Net(mode.recomputed, mode.reentrant, mode.unused, mode.normalized)
    parallel = DistributedDataParallel(model, **mode.options)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if mode.prepare is not None:
        optimizer = mode.prepare(parallel, optimizer) or optimizer
    step = mode.step or plain_step
    x = torch.ones(6, WIDTH, requires_grad=True)
    for _ in range(num_steps):
        optimizer.zero_grad()
        step(parallel, x)
        optimizer.step()
    dist.barrier()
    if dist.get_rank() == 1:
        time.sleep(3 * TIMEOUT_S)
        return
    dist.group.WORLD.set_timeout(datetime.timedelta(seconds=TIMEOUT_S))
    try:
        step(parallel, x)
    except (CommTimeout, RuntimeError) as error:  # RuntimeError if the result of a Python hook is a failure
        if not isinstance(error, CommTimeout) and "CommTimeout" not in str(error):
            raise
        print("left", error)


if __name__ == "__main__":
    main()
