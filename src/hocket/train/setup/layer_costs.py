"""What the layers of a model cost: measured on this machine, or counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from hocket.errors import InvalidArgument
from hocket.pipeline.costs import CostModel
from hocket.pipeline.model_costs import ModelCosts
from hocket.train.model.layer_graph import LayerGraph
from hocket.train.model.split_model import SplitModel
from hocket.train.model.stage import Stage
from hocket.train.run.backward import SplitBackward

_LEAST_SHARE = 0.05  # of a pass that is taken to grow with its samples
Report = Callable[[int, int, str], object]


@dataclass(frozen=True)
class StageCosts:
    """What one micro-batch costs in a part of a model.

    Args:
        forward_s, input_s, weight_s: seconds of the forward pass, and of the two parts of the backward pass.
        backward_s: seconds of the backward pass as a whole.
        weight_nbytes: of parameters; their gradients take as much.
        activation_nbytes: that are kept from the forward to the backward pass.
        kept_gradient_nbytes: that are kept from the first to the second part of the backward pass.
        output_nbytes: of the values that go to later parts.
    """

    forward_s: float
    backward_s: float
    input_s: float
    weight_s: float
    weight_nbytes: float
    activation_nbytes: float
    kept_gradient_nbytes: float
    output_nbytes: float


def profile_layers(
    graph: LayerGraph,
    inputs: Mapping[str, Any],
    *,
    repeats: int = 3,
    report: Report = lambda done, total, state: None,
) -> list[StageCosts]:
    """Measure every layer of a model on a micro-batch, one after the other, on this process alone.

    Args:
        graph: of the model.
        inputs: a micro-batch, by the names that the model takes.
        repeats: each is measured so often; the fastest counts.
        report: called after each layer.
    """
    number = len(graph.layers)
    return profile_stages(graph.split(list(range(number + 1))), inputs, repeats=repeats, report=report)


def profile_stages(
    split: SplitModel,
    inputs: Mapping[str, Any],
    *,
    repeats: int = 3,
    report: Report = lambda done, total, state: None,
) -> list[StageCosts]:
    """Measure every stage of a split model on a micro-batch, on this process alone; buffers stay as they are.

    Args:
        split: the model.
        inputs, repeats, report: as of `profile_layers`.
    """
    values: dict[str, Any] = dict(inputs)
    last_use = {name: number for number, stage in enumerate(split.stages) for name in stage.inputs}
    found = []
    random_state = torch.get_rng_state()
    try:
        for number, stage in enumerate(split.stages):
            stage.train()
            costs, outputs = _profile(stage, values, repeats)
            found.append(costs)
            values.update(zip(stage.outputs, outputs, strict=True))
            values = {name: value for name, value in values.items() if last_use.get(name, -1) > number}
            report(number + 1, split.num_stages, "")
    finally:
        torch.set_rng_state(random_state)
    return found


def count_flops(graph: LayerGraph, inputs: Mapping[str, Any]) -> list[float]:
    """Return the floating-point operations of every layer's forward pass on a micro-batch, as torch counts them, and
    one for each number that a layer gives, so that what torch does not count costs something too."""
    values: dict[str, Any] = dict(inputs)
    found = []
    for stage in graph.split(list(range(len(graph.layers) + 1))).stages:
        with torch.no_grad(), stage.with_buffers_kept(), FlopCounterMode(display=False) as counter:
            outputs = stage([values[name] for name in stage.inputs])
        values.update(zip(stage.outputs, outputs, strict=True))
        numbers = sum(leaf.numel() for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor))
        found.append(float(counter.get_total_flops() + numbers))
    return found


def costs_of_stages(stages: Sequence[StageCosts], **options: Any) -> CostModel:
    """Return what measured stages cost in a schedule.

    Args:
        stages: of one micro-batch.
        options: further fields of `CostModel`, such as fabric.
    """
    return CostModel(
        seconds={
            "F": [each.forward_s for each in stages],
            "B": [each.backward_s for each in stages],
            "I": [each.input_s for each in stages],
            "W": [each.weight_s for each in stages],
        },
        message_nbytes=[each.output_nbytes for each in stages],
        stash_nbytes={
            "activation": [each.activation_nbytes for each in stages],
            "input": [0.0, *(each.output_nbytes for each in stages[:-1])],
            "output_gradient": [each.kept_gradient_nbytes for each in stages],
        },
        weight_nbytes=[2 * each.weight_nbytes for each in stages],
        gradient_nbytes=[each.weight_nbytes for each in stages],
        **options,
    )


def costs_of_model(
    small: Sequence[StageCosts], large: Sequence[StageCosts], num_samples: tuple[int, int]
) -> ModelCosts:
    """Return what layers cost for any size of micro-batch, from measurements with two sizes: a part that every pass
    costs, and one that every sample does.

    Args:
        small, large: measured layers.
        num_samples: of a micro-batch in each.

    Raises:
        InvalidArgument: the second size is not larger.
    """
    first, second = num_samples
    if not 0 < first < second:
        raise InvalidArgument(f"the second size has to be larger, of {first} and {second} samples")
    forward, backward, overhead = [], [], []
    for a, b in zip(small, large, strict=True):
        of_sample = [
            # Measurements that are as long with fewer samples are noise, or all overhead.
            max((y - x) / (second - first), _LEAST_SHARE * y / second)
            for x, y in ((a.forward_s, b.forward_s), (a.backward_s, b.backward_s))
        ]
        forward.append(of_sample[0])
        backward.append(of_sample[1])
        overhead.append(max(0.0, (b.forward_s + b.backward_s - sum(of_sample) * second) / 2))
    input_s, weight_s = (sum(getattr(each, name) for each in large) for name in ("input_s", "weight_s"))
    return ModelCosts(
        len(large),
        forward,
        backward,
        overhead,
        weight_s / (input_s + weight_s) if input_s + weight_s else 0.5,
        weight_nbytes=[2 * each.weight_nbytes for each in large],
        gradient_nbytes=[each.weight_nbytes for each in large],
        activation_nbytes=[each.activation_nbytes / second for each in large],
        kept_gradient_nbytes=[each.kept_gradient_nbytes / second for each in large],
        output_nbytes=[each.output_nbytes / second for each in large],
    )


def _profile(stage: Stage, values: Mapping[str, Any], repeats: int) -> tuple[StageCosts, tuple[Any, ...]]:
    """Measure one stage; return its costs, and its outputs without their graph, which say if gradients are wanted."""
    parameters = [each for each in stage.parameters().values() if each.requires_grad]
    times: dict[str, list[float]] = {name: [] for name in ("forward", "backward", "input", "weight")}
    held = _Held(stage)
    kept_gradient_nbytes = 0
    outputs: tuple[Any, ...] = ()
    with stage.with_buffers_kept(), torch.enable_grad():
        for _ in range(repeats):
            for is_split in (False, True):
                given, leaves = _as_leaves([values[name] for name in stage.inputs])
                with held:
                    begin_s = time.perf_counter()
                    outputs = stage(given)
                    times["forward"].append(time.perf_counter() - begin_s)
                roots = [
                    leaf
                    for leaf in pytree.tree_leaves(outputs)
                    if isinstance(leaf, torch.Tensor) and leaf.requires_grad
                ]
                gradients = [torch.ones_like(root) for root in roots]
                if not roots:
                    continue
                begin_s = time.perf_counter()
                if is_split:
                    split = SplitBackward(roots, gradients, leaves, parameters)
                    middle_s = time.perf_counter()
                    kept_gradient_nbytes = split.kept_nbytes
                    split.weight_gradients()
                    times["input"].append(middle_s - begin_s)
                    times["weight"].append(time.perf_counter() - middle_s)
                elif leaves or parameters:
                    torch.autograd.grad(roots, [*leaves, *parameters], gradients, allow_unused=True)
                    times["backward"].append(time.perf_counter() - begin_s)
    fastest = {name: min(seconds, default=0.0) for name, seconds in times.items()}
    outputs = pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.detach().requires_grad_(leaf.requires_grad), outputs)
    crossing = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    costs = StageCosts(
        fastest["forward"],
        fastest["backward"],
        fastest["input"],
        fastest["weight"],
        float(sum(each.nbytes for each in parameters)),
        float(held.nbytes),
        float(kept_gradient_nbytes),
        float(sum(leaf.nbytes for leaf in crossing)),
    )
    return costs, outputs


def _as_leaves(values: Sequence[Any]) -> tuple[list[Any], list[torch.Tensor]]:
    """Values, and the tensors among them that gradients are wanted of, as earlier layers made them of parameters."""
    leaves: list[torch.Tensor] = []

    def made(leaf: torch.Tensor) -> torch.Tensor:
        if not leaf.requires_grad:
            return leaf
        leaves.append(leaf.detach().requires_grad_())
        return leaves[-1].clone()  # as a stage may write to what it takes

    return [pytree.tree_map_only(torch.Tensor, made, value) for value in values], leaves


class _Held:
    """Counts the bytes that autograd keeps of a forward pass, parameters left out."""

    def __init__(self, stage: Stage) -> None:
        own = (*stage.parameters().values(), *stage.buffers().values())
        self._known = {each.untyped_storage().data_ptr() for each in own}
        self._seen: dict[int, int] = {}
        self._hooks: Any = None

    @property
    def nbytes(self) -> int:
        return sum(self._seen.values())

    def __enter__(self) -> None:
        self._seen.clear()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)
        self._hooks.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._known:
            self._seen[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # An output that its own node kept with its graph would never be freed.
