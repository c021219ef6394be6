"""Buckets whose sums travel compressed; what that loses is added to the gradients of the next step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from hocket.collectives import Compressor, ResidualState
from hocket.collectives import compressor as find_compressor
from hocket.collectives.compressed.kept import KeptOfTensors
from hocket.comm import Communicator
from hocket.comm.steps import Pending
from hocket.errors import InvalidArgument, InvalidType
from hocket.train.checks import check_count
from hocket.train.engines.buckets import BucketEngine
from hocket.train.engines.engine import COUNTS, EXIST, TensorSpec

_FIRST_NBYTES = 1 << 20
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class CompressedBuckets(BucketEngine):
    """Buckets that are summed by `Communicator.compressed_all_reduce`.

    Gradients of double precision, and numbers that are no gradients, are summed as they are.

    Args:
        comm, tensors, exact, timeout_s: see `GradientEngine`.
        compressor: a compressor or its text, such as "power-sgd(rank=2)": see `hocket.collectives.compressors`. None:
            gradients are summed as they are.
        bucket_nbytes: number of bytes at which a bucket is full, but for the first one.
        dense_steps: number of first steps that are summed as they are.
        nonfinite: "raise" refuses gradients that are NaN or infinite; "pass" sums them as they are.
    """

    has_order = False

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """See `GradientEngine.check_options`."""
        if options["compressor"] is not None:
            try:
                find_compressor(options["compressor"])
            except InvalidType as error:
                raise InvalidArgument(str(error)) from None
        check_count("bucket_nbytes", options["bucket_nbytes"])
        check_count("dense_steps", options["dense_steps"], 0)
        if options["nonfinite"] not in ("raise", "pass"):
            raise InvalidArgument(f"nonfinite must be one of raise, pass, not {options['nonfinite']!r}")

    def __init__(
        self,
        comm: Communicator,
        tensors: Sequence[TensorSpec],
        *,
        exact: bool,
        timeout_s: float,
        compressor: Compressor | str | None = None,
        bucket_nbytes: int = 25 << 20,
        dense_steps: int = 0,
        nonfinite: str = "raise",
    ) -> None:
        limits = [min(_FIRST_NBYTES, bucket_nbytes), bucket_nbytes]
        super().__init__(comm, tensors, exact=exact, timeout_s=timeout_s, limits=limits, may_join=_is_gradient)
        self._compressor = None if compressor is None else find_compressor(compressor)
        self._dense_steps, self._nonfinite = dense_steps, nonfinite
        self._states = [ResidualState(f"the gradients of bucket {number}") for number in range(len(self._buckets))]

    def kept(self) -> KeptOfTensors:
        """See `SummingEngine.kept`."""
        found = KeptOfTensors()
        for state, (names, sizes) in zip(self._states, self._names_and_sizes(), strict=True):
            found.add(KeptOfTensors.of(state, names, sizes))
        return found

    def keep(self, kept: KeptOfTensors) -> None:
        """See `SummingEngine.keep`."""
        for state, (names, sizes) in zip(self._states, self._names_and_sizes(), strict=True):
            kept.give(state, names, sizes)

    def undo_kept(self) -> None:
        """See `SummingEngine.undo_kept`."""
        for state in self._states:
            state.undo()

    def scale_kept(self, factor: float) -> None:
        """See `SummingEngine.scale_kept`."""
        for state in self._states:
            state.scale(factor)

    def _names_and_sizes(self) -> Iterator[tuple[list[str], list[int]]]:
        """Return the names of each bucket's tensors, and the numbers of their elements."""
        for bucket in self._buckets:
            members = [self.tensors[each] for each in bucket.tensors]
            yield [each.name for each in members], [each.numel for each in members]

    def _sum(self, number: int, bucket: torch.Tensor) -> Pending:
        members, state = self._buckets[number].tensors, self._states[number]
        is_compressed = self._compressor is not None and _is_gradient(self.tensors[members[0]])
        if not is_compressed or state.num_steps < self._dense_steps:
            state.num_steps += 1
            return super()._sum(number, bucket)
        if self._nonfinite == "pass":  # someone may skip the step
            state.remember()
        work: Pending = self._comm.compressed_all_reduce(
            bucket,
            self._compressor,
            state=state,
            tensors=[self.tensors[each].shape for each in members],
            nonfinite=self._nonfinite,
            async_op=True,
            timeout=self.timeout_s,
        )
        return work


def _is_gradient(tensor: TensorSpec) -> bool:
    """Whether a tensor can be compressed."""
    return tensor.name not in (EXIST, COUNTS) and tensor.dtype in _DTYPES


ENGINE = CompressedBuckets
