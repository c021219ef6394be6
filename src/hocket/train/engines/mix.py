"""hocket's own mix: buckets, each summed by the library and the algorithm that the tuner chose for its size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hocket.comm import Communicator
from hocket.train.checks import check_count
from hocket.train.engines.buckets import BucketEngine
from hocket.train.engines.engine import TensorSpec

_FIRST_NBYTES = 1 << 20


class Mix(BucketEngine):
    """Buckets, each summed as the policy of the communicator says.

    Args:
        comm, tensors, exact, timeout_s: see `GradientEngine`.
        bucket_nbytes: number of bytes at which a bucket is full, but for the first one.
        alone_nbytes: a tensor of so many bytes or more is summed by itself, where it is: no bucket is worth two copies.
    """

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """See `GradientEngine.check_options`."""
        check_count("bucket_nbytes", options["bucket_nbytes"])
        check_count("alone_nbytes", options["alone_nbytes"])

    def __init__(
        self,
        comm: Communicator,
        tensors: Sequence[TensorSpec],
        *,
        exact: bool,
        timeout_s: float,
        bucket_nbytes: int = 2 << 20,
        alone_nbytes: int = 512 << 10,
    ) -> None:
        limits = [min(_FIRST_NBYTES, bucket_nbytes), bucket_nbytes]
        super().__init__(comm, tensors, exact=exact, timeout_s=timeout_s, limits=limits, alone_nbytes=alone_nbytes)


ENGINE = Mix
