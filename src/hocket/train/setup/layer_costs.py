"""The costs of a model's layers: measured on this machine, or counted."""

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

_LEAST_SHARE = 0.05  # least fraction of a pass's time that is assumed to grow with the samples
Report = Callable[[int, int, str], object]


@dataclass(frozen=True)
class StageCosts:
    """The costs of one micro-batch in a part of a model.

    Args:
        forward_s: seconds of the forward pass.
        backward_s: seconds of the whole backward pass.
        input_s, weight_s: seconds of the backward pass in two parts: gradients of inputs, gradients of weights.
        weight_nbytes: bytes of the parameters; their gradients have the same size.
        activation_nbytes: bytes that are kept between the forward and the backward pass.
        kept_gradient_nbytes: bytes that are kept between the two parts of the backward pass.
        output_nbytes: bytes of the values that later parts take.

    Examples:
        >>> costs = hk.train.StageCosts(
        ...     forward_s=0.01, backward_s=0.02, input_s=0.01, weight_s=0.01, weight_nbytes=4e6,
        ...     activation_nbytes=1e6, kept_gradient_nbytes=1e5, output_nbytes=1e5
        ... )
        >>> schedule = hk.pipeline.build("1f1b", num_ranks=2, num_micro_batches=4)
        >>> round(hk.pipeline.simulate(schedule, hk.train.costs_of_stages([costs, costs])).makespan_s, 3)
        0.15
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
    """Measure the layers of a model with a micro-batch, one after the other, in this process.

    Args:
        graph: layers of the model.
        inputs: inputs of a micro-batch, by name.
        repeats: number of measurements of each layer; the fastest counts.
        report: called after each layer with (layers done, layers in all, "").

    Examples:
        >>> import torch
        >>> graph = hk.train.graph_of(torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1)))
        >>> layers = hk.train.profile_layers(graph, {"input": torch.ones(8, 2)}, repeats=1)
        >>> [(layer.weight_nbytes, layer.output_nbytes) for layer in layers]
        [(48.0, 128.0), (20.0, 32.0)]
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
    """Measure the stages of a split model with a micro-batch, in this process; buffers stay unchanged.

    Args:
        split: the model.
        inputs, repeats, report: see `profile_layers`.

    Examples:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        >>> split = hk.train.graph_of(model).split([0, 2, 3])
        >>> stages = hk.train.profile_stages(split, {"input": torch.ones(8, 2)}, repeats=1)
        >>> [stage.weight_nbytes for stage in stages]
        [48.0, 20.0]
    """
    values: dict[str, Any] = dict(inputs)
    last_use = {name: number for number, stage in enumerate(split.stages) for name in stage.inputs}
    measured = []
    random_state = torch.get_rng_state()
    try:
        for number, stage in enumerate(split.stages):
            stage.train()
            costs, outputs = _profile(stage, values, repeats)
            measured.append(costs)
            values.update(zip(stage.outputs, outputs, strict=True))
            values = {name: value for name, value in values.items() if last_use.get(name, -1) > number}
            report(number + 1, split.num_stages, "")
    finally:
        torch.set_rng_state(random_state)
    return measured


def count_flops(graph: LayerGraph, inputs: Mapping[str, Any]) -> list[float]:
    """Return the floating-point operations of every layer's forward pass on a micro-batch.

    They are counted by torch, plus one for each number in the layer's output: torch counts none for some operations.
    """
    values: dict[str, Any] = dict(inputs)
    flops = []
    for stage in graph.split(list(range(len(graph.layers) + 1))).stages:
        with torch.no_grad(), stage.with_buffers_kept(), FlopCounterMode(display=False) as counter:
            outputs = stage([values[name] for name in stage.inputs])
        values.update(zip(stage.outputs, outputs, strict=True))
        numbers = sum(leaf.numel() for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor))
        flops.append(float(counter.get_total_flops() + numbers))
    return flops


def costs_of_stages(stages: Sequence[StageCosts], **options: Any) -> CostModel:
    """Return the costs of measured stages as a `CostModel`, for simulations.

    Args:
        stages: measured costs of the stages.
        options: further fields of `CostModel`, such as fabric.

    Examples:
        >>> costs = hk.train.StageCosts(0.01, 0.02, 0.01, 0.01, 4e6, 1e6, 1e5, 1e5)
        >>> model = hk.train.costs_of_stages([costs, costs], num_replicas=2)
        >>> model.seconds["F"], model.num_replicas
        ([0.01, 0.01], 2)
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
    """Return the costs of layers for any size of micro-batch, from measurements with two sizes.

    They have a fixed part for every pass, and a part for every sample.

    Args:
        small, large: measured costs of the layers.
        num_samples: samples of a micro-batch in `small` and in `large`.

    Raises:
        InvalidArgument: the second size is not larger than the first.
    """
    first, second = num_samples
    if not 0 < first < second:
        raise InvalidArgument(f"num_samples must be two rising numbers of 1 or more, not {first} and {second}")
    forward, backward, overhead = [], [], []
    for a, b in zip(small, large, strict=True):
        of_sample = [
            # If fewer samples take as long, the measurement is noise, or all of it is overhead.
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
    """Measure one stage; return its costs, and its outputs without graph, with ``requires_grad`` as computed."""
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
    """Return the values with new leaves for the tensors that require gradients, and these leaves."""
    leaves: list[torch.Tensor] = []

    def with_leaf(leaf: torch.Tensor) -> torch.Tensor:
        if not leaf.requires_grad:
            return leaf
        leaves.append(leaf.detach().requires_grad_())
        return leaves[-1].clone()  # a stage may write to its inputs, and a leaf must not be written to

    return [pytree.tree_map_only(torch.Tensor, with_leaf, value) for value in values], leaves


class _Held:
    """Counts the bytes that autograd keeps of a forward pass, without parameters and buffers."""

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
        return tensor.detach()  # otherwise a node that saves its own output would never be freed
