"""The buckets of torch's DistributedDataParallel (Li et al., "PyTorch Distributed", VLDB 2020).

A first bucket of 1 MiB, so that the sums begin early, then buckets of 25 MiB; each is one all-reduce by the library's
own algorithm, while the backward pass goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hocket.comm import Communicator
from hocket.train.checks import check_count
from hocket.train.engines.buckets import BucketEngine
from hocket.train.engines.engine import TensorSpec

_FIRST_NBYTES = 1 << 20


class DdpBuckets(BucketEngine):
    """The buckets of torch's DistributedDataParallel.

    Args:
        comm, tensors, exact, timeout_s: see `GradientEngine`.
        bucket_nbytes: number of bytes at which a bucket is full, but for the first one.
        backend: the library that sums; None: the one that the communicator's policy chooses.
    """

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """See `GradientEngine.check_options`."""
        check_count("bucket_nbytes", options["bucket_nbytes"])

    def __init__(
        self,
        comm: Communicator,
        tensors: Sequence[TensorSpec],
        *,
        exact: bool,
        timeout_s: float,
        bucket_nbytes: int = 25 << 20,
        backend: str | None = None,
    ) -> None:
        limits = [min(_FIRST_NBYTES, bucket_nbytes), bucket_nbytes]
        super().__init__(
            comm, tensors, exact=exact, timeout_s=timeout_s, limits=limits, backend=backend, algorithm="native"
        )


ENGINE = DdpBuckets
