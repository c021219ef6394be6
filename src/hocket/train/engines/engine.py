"""The interface of gradient engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from hocket.collectives.compressed.kept import KeptOfTensors
from hocket.comm import Communicator


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that an engine sums in every step.

    Args:
        name: its name, equal on all ranks, such as "layer1.weight".
        shape: its shape.
        dtype: its data type.

    Examples:
        >>> import torch
        >>> hk.train.TensorSpec("layer1.weight", (64, 3), torch.float32).nbytes
        768
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.numel * self.dtype.itemsize


EXIST = "whether there are gradients"
"""Name of the tensor that a loop of one's own sums beside the gradients; errors leave it out."""
COUNTS = "numbers of gradients"
"""Name of the tensor that `fit` sums beside the gradients."""


class GradientEngine(ABC):
    """What all gradient engines have; one is a `SummingEngine` or an `UpdatingEngine`.

    Args:
        comm: a communicator of all ranks; the engine makes its own ones from it.
        tensors: the gradients, equal on all ranks.
        exact: whether sums add the ranks' tensors one after the other, in the order of ranks.
        timeout_s: timeout of every wait, in seconds.

    Examples:
        >>> import torch
        >>> weight = torch.full((3,), comm.rank + 1.0)
        >>> tensors = [hk.train.TensorSpec("weight", (3,), torch.float32)]
        >>> engine = hk.train.gradient_engines()["ring"](comm, tensors, exact=False, timeout_s=30.0)
        >>> engine.start(0, weight)
        >>> engine.finish()
        >>> weight.tolist()  # 1 + 2
        [3.0, 3.0, 3.0]
        >>> engine.close()
    """

    has_order = True
    """Whether it can sum in the order of ranks (`exact`)."""

    def __init__(self, comm: Communicator, tensors: Sequence[TensorSpec], *, exact: bool, timeout_s: float) -> None:
        self.comm = comm
        self.tensors = list(tensors)
        self.exact = exact
        self.timeout_s = timeout_s

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """Check the values of the engine's own options, as far as that needs no communicator and no tensors.

        Args:
            options: all of them by name, with the defaults of those that nobody has given.

        Raises:
            InvalidArgument: one is of another type, or out of range.
        """
        return  # an engine may have none

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds, as soon as the other ranks do so too. Idempotent."""

    def abandon(self) -> None:
        """Give back what it holds after an error of this rank, and wait for no other rank. Idempotent."""
        self.close()


class SummingEngine(GradientEngine):
    """Sums tensors over the ranks of a communicator, once in every step.

    A step is one call of `start` for each tensor, in any order, then one call of `finish`. Engines that can, work on
    the first tensors while the backward pass computes the others.
    """

    @abstractmethod
    def start(self, number: int, tensor: torch.Tensor) -> None:
        """Begin to sum a tensor, in place; nobody else may use it before `finish` returns.

        Args:
            number: its place in `tensors`.
            tensor: contiguous, with the shape and type of its spec.
        """

    def kept(self) -> KeptOfTensors:
        """Return what this rank keeps of its gradients for the next step, by the names of tensors."""
        return KeptOfTensors()  # most engines sum everything

    def keep(self, kept: KeptOfTensors) -> None:
        """Set what this rank keeps of its gradients; it is taken out of `kept`."""

    def undo_kept(self) -> None:
        """Take back what this rank kept of its gradients before the last step, whose sums are thrown away."""

    def scale_kept(self, factor: float) -> None:
        """Multiply what this rank keeps of its gradients, since gradients are scaled otherwise from now on."""

    def poll(self) -> None:
        """Go on with the sums without waiting: for virtual ranks, which have no threads that do."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until all tensors hold their sums over all ranks.

        Raises:
            CommTimeout: a rank or a server hangs.
            PeerFailure: a rank or a server died.
        """


class UpdatingEngine(GradientEngine):
    """Changes the parameters itself, in the place of the ranks' optimizers.

    Its class takes, besides the arguments of `GradientEngine`, `parameters` and their `optimizer`; it has no `exact`.
    """

    has_order = False

    @abstractmethod
    def exchange(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Give this rank's gradients away, and set the parameters to their new values.

        Args:
            gradients: in the order of `tensors`; None: the loss of this rank does not depend on the parameter.

        Raises the errors of `SummingEngine.finish`.
        """

    @abstractmethod
    def pull(self) -> None:
        """Set this rank's parameters, and the state of its optimizer as far as that comes back, to the present ones.

        No rank may exchange gradients meanwhile. Raises the errors of `SummingEngine.finish`.
        """
