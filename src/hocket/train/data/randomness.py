"""Random numbers that depend on where they are used, and on nothing that happened before."""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def random_key(seed: int, step: int, stage: int, micro_batch: int) -> int:
    """Return the seed of the random numbers of one forward pass.

    Args:
        seed: of the training.
        step: how many steps came before.
        stage: of the model.
        micro_batch: in the whole batch: those of replica r come after those of the replicas before it.
    """
    packed = struct.pack("<4q", seed, step, stage, micro_batch)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Have random numbers of torch, NumPy and Python depend on `key` alone; afterwards they go on as if none had been
    drawn."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        torch.default_generator.manual_seed(key)
        np.random.seed(key % (1 << 32))
        random.seed(key)
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
