"""Train an unchanged Keras model on two ranks, each with a part of the layers."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy as np

from hocket.keras import fit

keras.utils.set_random_seed(1)
x = np.random.default_rng(0).standard_normal((400, 8)).astype("float32")
y = (x.sum(1) > 0).astype("int64")
inputs = keras.Input((8,))
hidden = keras.layers.Dense(32, "relu")(inputs)
hidden = keras.layers.Dense(32, "relu")(hidden)
model = keras.Model(inputs, keras.layers.Dense(2)(hidden))
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
history = fit(model, x, y, batch_size=40, epochs=15, validation_split=0.2, strategy="model", verbose=0)
assert history.history["val_accuracy"][-1] > 0.9, history.history
print("val_accuracy", history.history["val_accuracy"][-1], "params", model.count_params())
