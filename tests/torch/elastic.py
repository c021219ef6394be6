"""Train over the backend argv[1] with a checkpoint in argv[2] after each step; print the losses of all steps.

With argv[3] "raise" or "kill", rank 1 ends once in the middle of a step.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, DIES_AT = 8, 5

backend, folder, *how = sys.argv[1:]
torch.set_num_threads(1)
dist.init_process_group(backend)
rank = dist.get_rank()
Path(folder).mkdir(parents=True, exist_ok=True)
saved, died = Path(folder, f"rank-{rank}.pt"), Path(folder, "died")

torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
losses: list[float] = []
if saved.exists():
    state = torch.load(saved)
    losses = state["losses"]
# Some ranks may have saved a step that others lack: all ranks continue from the last step that every rank has saved.
done = torch.tensor(len(losses))
dist.all_reduce(done, dist.ReduceOp.MIN)
if int(done):
    state = torch.load(Path(folder, f"rank-{rank}-{int(done)}.pt"))
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    losses = state["losses"]

for step in range(len(losses), STEPS):
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(16, 8, generator=generator)
    optimizer.zero_grad()
    loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
    if how and rank == 1 and step == DIES_AT and not died.exists():
        died.touch()
        if how == ["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("rank 1 fails on purpose")
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
    for path in (Path(folder, f"rank-{rank}-{step + 1}.pt"), saved):
        torch.save(state, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)

sys.stdout.write(f"rank {rank}: losses {losses}\n")
sys.stdout.flush()
dist.destroy_process_group()
