"""A training program for gloo or hocket: the first argument is the name of the backend, the only difference."""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group(sys.argv[1])
torch.manual_seed(0)
x = torch.randn(512, 16)
data = TensorDataset(x, (x.sum(1) > 0).long())
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=32, sampler=sampler)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(5):
    sampler.set_epoch(epoch)
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
accuracy = (model(x).argmax(1) == data.tensors[1]).float().mean()
total = torch.tensor([loss.item()])
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(f"loss {total.item():.9f}, accuracy {accuracy:.3f}")
    assert accuracy > 0.95
dist.destroy_process_group()
