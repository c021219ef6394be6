"""Accuracies of trainings of a Keras model on 5,000 handwritten digits, by engine and seed."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch

from hocket.comm import Communicator
from hocket.keras import fit

from ..train.digits import BATCH_SIZE, ENGINES, NUM_EPOCHS, NUM_TRAINED, RATE, SEEDS, digits


def accuracies(comm: Communicator) -> dict[str, list[float]]:
    """Return what `tests.train.digits.accuracies` returns, for the same network."""
    torch.set_num_threads(1)
    return {name: [_accuracy(comm, name, seed) for seed in SEEDS] for name in ENGINES}


def _accuracy(comm: Communicator, engine: str, seed: int) -> float:
    x, y = (each.numpy() for each in digits())
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((784,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)])
    model.compile(keras.optimizers.SGD(RATE), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fit(
        model,
        x[:NUM_TRAINED],
        y[:NUM_TRAINED],
        batch_size=BATCH_SIZE,
        epochs=NUM_EPOCHS,
        strategy="data",
        num_micro_batches=1,
        engine=engine,
        seed=seed,
        comm=comm,
        verbose=0,
    )
    return float(np.mean(model.predict(x[NUM_TRAINED:], verbose=0).argmax(1) == y[NUM_TRAINED:]))
