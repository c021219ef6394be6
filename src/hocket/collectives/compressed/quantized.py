"""The sum of quantized arrays: each rank adds a part, and the sums are quantized again."""

from __future__ import annotations

from abc import abstractmethod
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from hocket.collectives.compressed.compressor import CompressedSum, Compressor, SumRequest, with_residual
from hocket.errors import WrongResult

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.random import Generator as Random
    from numpy.typing import NDArray

    from hocket.collectives.residual import ResidualState
    from hocket.comm import Communicator
    from hocket.comm.steps import Pending

Applied: TypeAlias = Literal["set", "add", "subtract"]
"""What a decoded array does to another one."""


class Quantizer(Compressor):
    """Encodes elements with fewer bits; a base class.

    Each rank gets a part of equal size of every rank's array, adds the parts in the order of ranks, and gives all ranks
    the sums, quantized again: 2 (P - 1) / P of an encoded array is sent, whatever P is. What a rank's elements, or its
    sums, lose goes to its residual, but for quantizers without a bias.
    """

    is_unbiased = False
    """Whether the mean over many encodings is the array itself: then no residual is needed."""

    @abstractmethod
    def encode(self, x: NDArray[np.float32], random: Random) -> NDArray[np.uint8]:
        """Return the bytes of an array."""

    @abstractmethod
    def apply(self, message: NDArray[np.uint8], x: NDArray[np.float32], how: Applied) -> bool:
        """Set x to the array that `encode` wrote, add it to x, or subtract it; return False if it did not write it."""

    def decode(self, message: NDArray[np.uint8], size: int) -> NDArray[np.float32] | None:
        """Return the array of `size` elements that `encode` wrote; None if it did not."""
        out = np.empty(size, np.float32)
        return out if self.apply(message, out, "set") else None

    @abstractmethod
    def nbytes_of(self, size: int) -> int | None:
        """Return the number of bytes of every array of a size; None: it varies."""

    @property
    def seed(self) -> int:
        """Of the random numbers, which are others on each rank and in each step."""
        return 0

    def steps(
        self, comm: Communicator, x: NDArray[np.float32], state: ResidualState, request: SumRequest
    ) -> Generator[Pending, None, CompressedSum]:
        """See `Compressor.steps`."""
        total = with_residual(x, state)
        cuts, random = _cuts(len(x), comm.size), self._random(comm.rank, request)
        sums, lost, sent = yield from self._scattered(comm, total, cuts, random, **request.how)
        message = self.encode(sums, random)
        if lost is not None:
            self._apply(message, sums, "subtract", comm.rank)
            lost[cuts[comm.rank] : cuts[comm.rank + 1]] += sums
        sizes = np.diff(cuts).tolist()
        nbytes = self._known_nbytes(sizes)
        if nbytes is None:
            nbytes = np.empty(comm.size, np.int64)
            yield comm.all_gather(nbytes, np.array([len(message)], np.int64), async_op=True, **request.how)
            _check_nbytes(nbytes, sizes)
        out = np.empty(int(nbytes.sum()), np.uint8)
        yield comm.all_gatherv(out, message, nbytes.tolist(), async_op=True, **request.how)
        for source, each in enumerate(np.split(out, np.cumsum(nbytes)[:-1])):
            self._apply(each, x[cuts[source] : cuts[source + 1]], "set", source)
        if request.op == "avg":
            x /= np.float32(comm.size)
        state.residual = lost
        return CompressedSum(sent + len(message) * (comm.size > 1))

    def scatter_steps(
        self,
        comm: Communicator,
        x: NDArray[np.float32],
        out: NDArray[np.float32],
        state: ResidualState,
        request: SumRequest,
    ) -> Generator[Pending, None, CompressedSum]:
        """See `Compressor.scatter_steps`."""
        total = with_residual(x, state)
        random = self._random(comm.rank, request)
        out[:], lost, sent = yield from self._scattered(comm, total, _cuts(len(x), comm.size), random, **request.how)
        if request.op == "avg":
            out /= np.float32(comm.size)
        state.residual = lost
        return CompressedSum(sent)

    def _scattered(
        self, comm: Communicator, x: NDArray[np.float32], cuts: list[int], random: Random, **how: Any
    ) -> Generator[Pending, None, tuple[NDArray[np.float32], NDArray[np.float32] | None, int]]:
        """Give each rank the sums of its part; return those, what x has lost (None: nothing in the mean), and how many
        bytes were sent."""
        messages = [self.encode(x[begin:end], random) for begin, end in pairwise(cuts)]
        lost = None if self.is_unbiased else x.copy()
        if lost is not None:
            for message, (begin, end) in zip(messages, pairwise(cuts), strict=True):
                self._apply(message, lost[begin:end], "subtract", comm.rank)
        in_nbytes = np.array([len(each) for each in messages], np.int64)
        sizes = [cuts[comm.rank + 1] - cuts[comm.rank]] * comm.size
        out_nbytes = self._known_nbytes(sizes)
        if out_nbytes is None:
            out_nbytes = np.empty_like(in_nbytes)
            yield comm.all_to_all(out_nbytes, in_nbytes, async_op=True, **how)
            _check_nbytes(out_nbytes, sizes)
        out = np.empty(int(out_nbytes.sum()), np.uint8)
        yield comm.all_to_allv(
            out, np.concatenate(messages), out_nbytes.tolist(), in_nbytes.tolist(), async_op=True, **how
        )
        sums = np.zeros(sizes[0], np.float32)
        for source, each in enumerate(np.split(out, np.cumsum(out_nbytes)[:-1])):
            self._apply(each, sums, "add", source)
        return sums, lost, int(in_nbytes.sum() - in_nbytes[comm.rank])

    def _known_nbytes(self, sizes: list[int]) -> NDArray[np.int64] | None:
        """Return the numbers of bytes of messages of some sizes; None if ranks must tell them."""
        known = [self.nbytes_of(size) for size in sizes]
        return None if None in known else np.array(known, np.int64)

    def _random(self, rank: int, request: SumRequest) -> Random:
        return np.random.Generator(np.random.Philox(np.random.SeedSequence((self.seed, rank, *request.step))))

    def _apply(self, message: NDArray[np.uint8], x: NDArray[np.float32], how: Applied, rank: int) -> None:
        if not self.apply(message, x, how):
            raise WrongResult(f"the message of rank {rank} in a quantized sum is damaged, or of another quantizer")


def combine(x: NDArray[np.float32], found: NDArray[Any], how: Applied) -> None:
    """Set x to a decoded array, add it to x, or subtract it."""
    if how == "set":
        x[:] = found
    elif how == "add":
        x += found
    else:
        x -= found


def _cuts(size: int, num_ranks: int) -> list[int]:
    """Return where the parts of ranks begin and end."""
    return [size * each // num_ranks for each in range(num_ranks + 1)]


def _check_nbytes(nbytes: NDArray[np.int64], sizes: list[int]) -> None:
    """Check numbers of bytes that other ranks have told, before there is memory for them."""
    for rank, (told, size) in enumerate(zip(nbytes.tolist(), sizes, strict=True)):
        if not 0 <= told <= most_nbytes(size):
            raise WrongResult(f"rank {rank} told {told} bytes for {size} quantized elements: it is damaged")


def most_nbytes(size: int) -> int:
    """Return a bound of the bytes of a message of some elements: no quantizer makes them longer by a quarter."""
    return 5 * size + 64
