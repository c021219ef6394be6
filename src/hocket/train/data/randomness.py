"""Seeds of random numbers that depend on the place of their use only, not on earlier draws."""

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
        seed: seed of the training.
        step: number of steps before this one.
        stage: number of the stage.
        micro_batch: index in the whole batch, where the micro-batches of replica r follow those of replica r - 1.

    Examples:
        >>> first = hk.train.random_key(seed=0, step=3, stage=1, micro_batch=2)
        >>> first == hk.train.random_key(seed=0, step=3, stage=1, micro_batch=2)
        True
        >>> first == hk.train.random_key(seed=0, step=4, stage=1, micro_batch=2)
        False
    """
    packed = struct.pack("<4q", seed, step, stage, micro_batch)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Seed the generators of torch, NumPy and Python with `key`; restore their states afterwards."""
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
