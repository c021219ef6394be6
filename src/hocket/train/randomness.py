"""Random numbers that depend on where they are used, and on nothing that happened before."""

from __future__ import annotations

import hashlib
import struct


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
