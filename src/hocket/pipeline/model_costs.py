"""Costs of a model's layers, and of the stages made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hocket.errors import InvalidArgument
from hocket.pipeline.costs import CostModel
from hocket.pipeline.partition import bottleneck_partition
from hocket.sim import Fabric, Link


@dataclass(frozen=True)
class ModelCosts:
    """Costs of a chain of layers; a single number applies to all layers.

    Args:
        num_layers: number of layers.
        forward_s: seconds of a forward pass per sample.
        backward_s: seconds of a backward pass per sample; None: twice the forward pass.
        overhead_s: fixed seconds of each forward and each backward pass, independent of the number of samples; this
            makes small micro-batches expensive.
        weight_share: share of the weight gradient in a backward pass.
        weight_nbytes: weights, with gradients and optimizer state.
        gradient_nbytes: gradients that are summed over copies.
        activation_nbytes: bytes per sample kept from the forward to the backward pass.
        kept_gradient_nbytes: bytes per sample kept between the two parts of a split backward pass.
        output_nbytes: output bytes per sample, sent if a stage ends after the layer.

    Raises:
        InvalidArgument: a value is negative, not a number, or not one per layer.

    Examples:
        >>> model = hk.pipeline.ModelCosts(num_layers=4, forward_s=[1.0, 1.0, 1.0, 3.0])
        >>> model.stages(2, micro_batch_size=2).seconds["F"]  # layers 0 to 2, and layer 3
        [6.0, 6.0]
    """

    num_layers: int
    forward_s: float | Sequence[float]
    backward_s: float | Sequence[float] | None = None
    overhead_s: float | Sequence[float] = 0.0
    weight_share: float = 0.5
    weight_nbytes: float | Sequence[float] = 0.0
    gradient_nbytes: float | Sequence[float] = 0.0
    activation_nbytes: float | Sequence[float] = 0.0
    kept_gradient_nbytes: float | Sequence[float] = 0.0
    output_nbytes: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        if type(self.num_layers) is not int or self.num_layers < 1:
            raise InvalidArgument(f"num_layers must be an integer of 1 or more, got {self.num_layers!r}")
        if not (isinstance(self.weight_share, (int, float)) and 0 <= self.weight_share <= 1):
            raise InvalidArgument(f"weight_share must be between 0 and 1, got {self.weight_share}")
        for name in ("forward_s", "backward_s", "overhead_s", "weight_nbytes", "gradient_nbytes", "activation_nbytes",
                     "kept_gradient_nbytes", "output_nbytes"):  # fmt: skip
            if getattr(self, name) is not None:
                values = self._of_layers(name)
                wrong = values[~((values >= 0) & np.isfinite(values))]
                if wrong.size:
                    raise InvalidArgument(f"{name} must be 0 or more and finite in every layer, got {wrong[0]}")

    def stages(
        self,
        num_stages: int,
        micro_batch_size: int,
        *,
        fabric: Fabric | Link | None = None,
        num_replicas: int = 1,
    ) -> CostModel:
        """Split the layers into stages of balanced times and return the costs of these stages.

        Args:
            num_stages: number of stages, at most the number of layers.
            micro_batch_size: samples per micro-batch.
            fabric, num_replicas: as in `CostModel`.

        Raises:
            InvalidArgument: there are fewer layers than stages.
        """
        forward = self._of_layers("forward_s")
        backward = 2 * forward if self.backward_s is None else self._of_layers("backward_s")
        overhead = self._of_layers("overhead_s")
        forward_s, backward_s = forward * micro_batch_size + overhead, backward * micro_batch_size + overhead
        cuts = bottleneck_partition((forward_s + backward_s).tolist(), num_stages)

        def sums(values: NDArray[np.float64]) -> list[float]:
            return [float(values[first:last].sum()) for first, last in pairwise(cuts)]

        outputs = self._of_layers("output_nbytes") * micro_batch_size
        inputs = [0.0, *(float(outputs[cut - 1]) for cut in cuts[1:-1])]
        return CostModel(
            seconds={
                "F": sums(forward_s),
                "B": sums(backward_s),
                "I": sums(backward_s * (1 - self.weight_share)),
                "W": sums(backward_s * self.weight_share),
            },
            fabric=fabric,
            message_nbytes=[float(outputs[cut - 1]) for cut in cuts[1:]],
            stash_nbytes={
                "activation": sums(self._of_layers("activation_nbytes") * micro_batch_size),
                "input": inputs,
                "output_gradient": sums(self._of_layers("kept_gradient_nbytes") * micro_batch_size),
            },
            weight_nbytes=sums(self._of_layers("weight_nbytes")),
            gradient_nbytes=sums(self._of_layers("gradient_nbytes")),
            num_replicas=num_replicas,
        )

    def _of_layers(self, name: str) -> NDArray[np.float64]:
        try:
            values = np.asarray(getattr(self, name), np.float64)
        except (TypeError, ValueError):
            raise InvalidArgument(
                f"{name} must be a number or one number per layer, got {getattr(self, name)!r}"
            ) from None
        if values.ndim and values.shape != (self.num_layers,):
            raise InvalidArgument(
                f"{name} must have one value for each of {self.num_layers} layers, got {values.size} values"
            )
        return np.broadcast_to(values, self.num_layers)
