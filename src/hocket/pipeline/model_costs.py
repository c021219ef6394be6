"""What a model's layers cost, and from that what stages cost."""

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
    """Layers of a model along a chain; a number stands for all layers alike.

    Args:
        num_layers: of the model.
        forward_s: of one sample, in seconds.
        backward_s: of one sample; None: twice the forward pass.
        overhead_s: of a forward pass whatever its samples, and the same again of a backward pass: small micro-batches
            pay for it.
        weight_share: the part of a backward pass that is the gradient of the weights.
        weight_nbytes: with gradients and the optimizer's state.
        gradient_nbytes: that are summed over copies.
        activation_nbytes: of one sample, kept from forward to backward pass.
        kept_gradient_nbytes: of one sample, kept between the two parts of a split backward pass.
        output_nbytes: of one sample, after the layer: what crosses if a stage ends there.
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
            raise InvalidArgument(f"a model has 1 layer or more, not {self.num_layers!r}")
        if not (isinstance(self.weight_share, (int, float)) and 0 <= self.weight_share <= 1):
            raise InvalidArgument(f"weight_share is between 0 and 1, not {self.weight_share}")
        for name in ("forward_s", "backward_s", "overhead_s", "weight_nbytes", "gradient_nbytes", "activation_nbytes",
                     "kept_gradient_nbytes", "output_nbytes"):  # fmt: skip
            if getattr(self, name) is not None:
                values = self._of_layers(name)
                if not ((values >= 0) & np.isfinite(values)).all():
                    raise InvalidArgument(f"{name} is 0 or more in every layer")

    def stages(
        self,
        num_stages: int,
        micro_batch_size: int,
        *,
        fabric: Fabric | Link | None = None,
        num_replicas: int = 1,
    ) -> CostModel:
        """Cut the layers into stages of as equal times as can be, and return what those cost.

        Args:
            num_stages: at most as many as layers.
            micro_batch_size: samples.
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
            raise InvalidArgument(f"{name} is a number, or one for every layer, not {getattr(self, name)!r}") from None
        if values.ndim and values.shape != (self.num_layers,):
            raise InvalidArgument(f"{name}: there are {self.num_layers} layers, and {values.size} values")
        return np.broadcast_to(values, self.num_layers)
