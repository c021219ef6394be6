"""One step of a pipeline on one rank: the state that its actions share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from hocket import _native
from hocket.errors import InvalidArgument
from hocket.pipeline.action import Action
from hocket.train.data.micro_batches import MicroBatch
from hocket.train.data.randomness import random_key
from hocket.train.model.specs import ValueSpec, flatten
from hocket.train.model.stage import Stage
from hocket.train.model.wiring import StageEnds
from hocket.train.run.backward import Gradients, SplitBackward
from hocket.train.run.channels import Channels, Leaves, Parcel, from_leaves, to_leaves
from hocket.train.run.copies import Copies
from hocket.train.run.gradients import StageGradients
from hocket.train.run.layout import Layout
from hocket.train.run.loss import CheckedLoss
from hocket.train.run.messages import with_strides
from hocket.train.run.probe import Specs
from hocket.train.run.regions import name_of


@dataclass
class Pass:
    """The state of a micro-batch in a stage between its forward and its backward pass.

    Args:
        inputs: values that the module was called with.
        received: for each incoming hop, the leaves whose gradients are sent back.
        sent: for each outgoing hop, the tensors whose gradients are received.
        loss: the weighted loss, in the last stage, plus the terms that the stage adds to it.
        split: the backward pass, between its two parts.
    """

    inputs: dict[str, Any]
    received: dict[int, Leaves]
    sent: dict[int, Leaves] = field(default_factory=dict)
    loss: torch.Tensor | None = None
    split: SplitBackward | None = None


@dataclass(frozen=True)
class StepOptions:
    """The options of a step.

    Args:
        number: number of training steps before it; random numbers are derived from it.
        is_training: whether the step has backward passes.
        keeps_outputs: whether outputs of the model are kept.
        loss: the loss function; None: compute no losses.
        loss_scale: factor of losses in the backward pass.
    """

    number: int
    is_training: bool
    keeps_outputs: bool
    loss: CheckedLoss | None
    loss_scale: float = 1.0


class Step:
    """The state of a step.

    Args:
        layout: layout of this rank.
        channels: carry the parcels.
        copies: gradients of this rank's stages.
        micro_batches: micro-batches of this replica.
        specs: for each micro-batch, the specs of all values.
        options: options of the step.
    """

    def __init__(
        self,
        layout: Layout,
        channels: Channels,
        copies: Copies,
        micro_batches: Sequence[MicroBatch],
        specs: Sequence[Specs],
        options: StepOptions,
    ) -> None:
        self.copies = copies
        self.losses: dict[int, torch.Tensor] = {}
        self.extra_losses: dict[tuple[int, int], torch.Tensor] = {}
        self.outputs: dict[int, Any] = {}
        self.times = np.zeros((2, len(layout.actions)))
        self._layout, self._channels, self._options = layout, channels, options
        self._micro_batches = micro_batches
        self._specs = specs
        self._passes: dict[tuple[int, int, int], Pass] = {}
        self._to_send: dict[Parcel, Gradients] = {}  # computed, and sent by a later action
        self._are_detached: list[bool] = []  # for each loss, whether it lacks the graph that the model's output has
        self._where = ""
        self._has_computed = False
        self._begin_s = 0.0
        for stage in layout.own_stages:
            self.stage(stage).train(options.is_training)
        copies.reset()

    @property
    def is_training(self) -> bool:
        """Whether the step has backward passes."""
        return self._options.is_training

    def run(self, actions: Sequence[Action], handlers: Mapping[str, Callable[[Step, Action], None]]) -> None:
        """Execute actions in order, and record when each began and ended; waiting for messages does not count.

        Args:
            actions: actions of this rank.
            handlers: functions that execute actions, by kind.
        """
        self._channels.expect(self._parcels_of(actions), self._options.number)
        for number, action in enumerate(actions):
            self._where = f"action {number} of the step, {action},"
            self._has_computed = False
            with _native.region(name_of(action), self._options.number):
                self._begin_s = time.perf_counter()
                handlers[action.kind](self, action)
                self.times[:, number] = self._begin_s, time.perf_counter()
        # The loss of some micro-batches may be a constant, if all their items are masked.
        if self._are_detached and all(self._are_detached):
            raise InvalidArgument(
                "the loss has no gradient, and the output of the model has one: the loss must not detach it"
            )

    def stage(self, number: int) -> Stage:
        """Return a stage of the model."""
        return self._layout.split.stages[number]

    def recomputes(self, action: Action) -> bool:
        """Return whether the forward pass is repeated before the backward pass."""
        return (action.pipe, action.stage) in self._layout.recomputed

    def forward(self, action: Action, micro_batch: int) -> None:
        """Run the forward pass of one micro-batch, and send its outputs."""
        inputs, received = self._collect(action, micro_batch)
        state = Pass(inputs, received)
        is_repeated = self.is_training and self.recomputes(action)
        outputs = self._call(action, micro_batch, state, with_graph=self.is_training and not is_repeated)
        if self.is_training:
            self._passes[action.pipe, action.stage, micro_batch] = state
        for number in self._ends(action).outwards:
            value = {**inputs, **outputs}[self._hop(number).value]
            self._send(Parcel(number, action.pipe, micro_batch, False), _detached(to_leaves(value)))

    def recompute(self, action: Action, micro_batch: int) -> None:
        """Repeat the forward pass with the same random numbers; running statistics stay unchanged."""
        state = self._passes[action.pipe, action.stage, micro_batch]
        with self.stage(action.stage).with_buffers_kept():
            self._call(action, micro_batch, state, with_graph=True)

    def backward(self, action: Action, micro_batch: int, *, inputs_only: bool) -> None:
        """Run the backward pass of one micro-batch, and send the gradients of the received inputs."""
        key = (action.pipe, action.stage, micro_batch)
        state = self._passes[key] if inputs_only else self._passes.pop(key)
        roots, root_gradients = self._roots(action, micro_batch, state)
        leaves = [leaf for number in self._ends(action).inwards for leaf in state.received[number]]
        tied = [self._parameter(number) for number in self._ends(action).tied_inwards]
        gradients = self.copies.gradients(action.pipe, action.stage)
        self._has_computed = True
        if inputs_only:
            state.split = SplitBackward(roots, root_gradients, [*leaves, *tied], gradients.parameters)
            input_gradients = state.split.input_gradients
            state.sent, state.loss, state.received, state.inputs = {}, None, {}, {}
        else:
            input_gradients = _backward(roots, root_gradients, leaves, tied, gradients, micro_batch)
        self._send_back(action, micro_batch, input_gradients)

    def weights(self, action: Action, micro_batch: int) -> None:
        """Run the second part of a backward pass: the gradients of the weights."""
        state = self._passes.pop((action.pipe, action.stage, micro_batch))
        assert state.split is not None
        self._has_computed = True
        self.copies.gradients(action.pipe, action.stage).add(micro_batch, state.split.weight_gradients())

    def receive(self, action: Action, *, is_gradient: bool) -> None:
        """Receive the parcels of an edge, for later actions."""
        for micro_batch in action.micro_batches:
            for number in self._between(action, is_gradient, inwards=True):
                parcel = Parcel(number, action.pipe, micro_batch, is_gradient)
                self._channels.keep(parcel, self._take(parcel))

    def send(self, action: Action, *, is_gradient: bool) -> None:
        """Send the parcels of an edge that earlier actions computed."""
        for micro_batch in action.micro_batches:
            for number in self._between(action, is_gradient, inwards=False):
                parcel = Parcel(number, action.pipe, micro_batch, is_gradient)
                spec = self._spec(number, micro_batch)
                self._channels.send(parcel, spec, self._to_send.pop(parcel), self._where)

    def _collect(self, action: Action, micro_batch: int) -> tuple[dict[str, Any], dict[int, Leaves]]:
        """Return all values that a stage may take, and for each incoming hop the leaves that need gradients."""
        values = dict(self._micro_batches[micro_batch].inputs)
        received: dict[int, Leaves] = {}
        for number in self._ends(action).inwards:
            name = self._hop(number).value
            spec = self._specs[micro_batch].values[name]
            leaves = [leaf for leaf in self._take(Parcel(number, action.pipe, micro_batch, False)) if leaf is not None]
            for leaf, each in zip(leaves, spec.leaves, strict=True):
                leaf.requires_grad_(each.has_gradient and self.is_training)
            received[number] = [leaf for leaf, each in zip(leaves, spec.leaves, strict=True) if each.has_gradient]
            values[name] = from_leaves(leaves, spec)
        return values, received

    def _call(self, action: Action, micro_batch: int, state: Pass, with_graph: bool) -> dict[str, Any]:
        """Run the module, and the loss in the last stage; keep the roots of the backward pass in `state`."""
        layout, stage = self._layout, self.stage(action.stage)
        changed = self._specs[micro_batch].changed[action.stage]
        self._has_computed = True
        part = self._micro_batches[micro_batch]
        share = part.weight if part.share is None else part.share
        # Repeated samples, which only fill up a batch, must not change running statistics.
        with torch.set_grad_enabled(with_graph), nullcontext() if share else stage.with_buffers_kept():
            inputs = [
                pytree.tree_map_only(torch.Tensor, torch.clone, state.inputs[name])
                if name in changed
                else state.inputs[name]
                for name in stage.inputs
            ]
            if self.is_training:
                number = layout.first_micro_batch + micro_batch
                stage.seed(random_key(layout.seed, self._options.number, action.stage, number))
            outputs = dict(zip(stage.outputs, stage(inputs), strict=True))
            if action.stage == layout.split.num_stages - 1:
                self._finish(micro_batch, outputs, state)
            extra = stage.extra_loss() if self._options.loss is not None and share else None
            if extra is not None:
                self.extra_losses[action.stage, micro_batch] = extra.detach()
                weighted = extra * (share * self._options.loss_scale)
                state.loss = weighted if state.loss is None else state.loss + weighted
            if with_graph:
                for number in self._ends(action).outwards:
                    name = self._hop(number).value
                    spec = self._specs[micro_batch].values[name]
                    state.sent[number] = [
                        # A forwarded value gets its own node, made last, so that autograd visits it first.
                        leaf if name in outputs else torch.ops.aten.alias(leaf)
                        for leaf, each in zip(flatten({**state.inputs, **outputs}[name])[0], spec.leaves, strict=True)
                        if each.has_gradient
                    ]
                for number in self._ends(action).tied_outwards:
                    parameter = self._parameter(number)
                    state.sent[number] = [torch.ops.aten.alias(parameter)]
        return outputs

    def _finish(self, micro_batch: int, outputs: Mapping[str, Any], state: Pass) -> None:
        split, options, part = self._layout.split, self._options, self._micro_batches[micro_batch]
        result = split.make_output([outputs[name] for name in split.outputs])
        # With a weight of 0 the loss may be a mean over no items, which is nan, and 0 * nan is nan.
        if options.loss is not None and part.weight:
            loss = options.loss(result, part.target)
            if isinstance(result, torch.Tensor) and result.requires_grad:
                self._are_detached.append(not loss.requires_grad)
            self.losses[micro_batch] = loss.detach()
            state.loss = loss * (part.weight * options.loss_scale)
        if options.keeps_outputs:
            self.outputs[micro_batch] = pytree.tree_map_only(torch.Tensor, _without_graph, result)

    def _roots(self, action: Action, micro_batch: int, state: Pass) -> tuple[Leaves, Gradients]:
        roots: Leaves = []
        gradients: Gradients = []
        if state.loss is not None and state.loss.requires_grad:
            roots.append(state.loss)
            gradients.append(None)
        ends = self._ends(action)
        for number in (*ends.outwards, *ends.tied_outwards):
            received = self._take(Parcel(number, action.pipe, micro_batch, True))
            for root, gradient in zip(state.sent[number], received, strict=True):
                if gradient is not None and root.requires_grad:
                    roots.append(root)
                    gradients.append(gradient)
        return roots, gradients

    def _send_back(self, action: Action, micro_batch: int, input_gradients: Gradients) -> None:
        ends = self._ends(action)
        remaining = iter(input_gradients)
        for number in (*ends.inwards, *ends.tied_inwards):
            count = sum(leaf.has_gradient for leaf in self._spec(number, micro_batch).leaves)
            self._send(Parcel(number, action.pipe, micro_batch, True), [next(remaining) for _ in range(count)])

    def _send(self, parcel: Parcel, leaves: Gradients) -> None:
        if (
            self._layout.crossings.are_sends_named[parcel.is_gradient]
            and self._channels.destination(parcel) != self._channels.rank
        ):
            self._to_send[parcel] = leaves
        else:
            self._channels.send(parcel, self._spec(parcel.hop, parcel.micro_batch), leaves, self._where)

    def _take(self, parcel: Parcel) -> Gradients:
        leaves = self._channels.take(parcel, self._where)
        if not self._has_computed:
            self._begin_s = time.perf_counter()
        return leaves

    def _between(self, action: Action, is_gradient: bool, inwards: bool) -> list[int]:
        """Return the indices of the hops that a message action carries."""
        ends = self._layout.wiring.of(action.stage)
        hops = self._layout.wiring.hops
        is_from_earlier = inwards != is_gradient  # whether the other end is an earlier stage
        values, tied = (ends.inwards, ends.tied_inwards) if is_from_earlier else (ends.outwards, ends.tied_outwards)
        return [
            number
            for number in (*values, *(tied if is_gradient else ()))
            if (hops[number].from_stage if is_from_earlier else hops[number].to_stage) == action.peer
        ]

    def _parcels_of(self, actions: Sequence[Action]) -> list[tuple[Parcel, ValueSpec]]:
        """Return the parcels that this rank takes, in order, and their specs."""
        parcels = []
        for action in actions:
            for is_gradient in self._layout.crossings.taken[action.kind]:
                ends = self._ends(action)
                if self._layout.crossings.is_receive(action.kind):
                    numbers: Sequence[int] = self._between(action, is_gradient, inwards=True)
                else:
                    numbers = [*ends.outwards, *ends.tied_outwards] if is_gradient else ends.inwards
                for micro_batch in action.micro_batches:
                    for number in numbers:
                        parcel = Parcel(number, action.pipe, micro_batch, is_gradient)
                        parcels.append((parcel, self._spec(number, micro_batch)))
        return parcels

    def _spec(self, number: int, micro_batch: int) -> ValueSpec:
        return self._specs[micro_batch].values[self._hop(number).value]

    def _ends(self, action: Action) -> StageEnds:
        return self._layout.wiring.of(action.stage)

    def _hop(self, number: int) -> Any:
        return self._layout.wiring.hops[number]

    def _parameter(self, number: int) -> nn.Parameter:
        parameter: nn.Parameter = self._hop(number).parameter
        return parameter


def _backward(
    roots: Leaves,
    root_gradients: Gradients,
    leaves: Leaves,
    tied: list[nn.Parameter],
    gradients: StageGradients,
    micro_batch: int,
) -> Gradients:
    """Run a whole backward pass; return the gradients of leaves and of tied parameters.

    The gradients of leaves have the strides with which autograd computed them; ``.grad`` has the strides of the leaf.
    """
    strides: dict[int, tuple[int, ...]] = {}

    def record_stride(gradient: torch.Tensor, place: int) -> None:
        strides[place] = gradient.stride()

    for place, leaf in enumerate(leaves):
        leaf.grad = None
        leaf.register_hook(partial(record_stride, place=place))  # type: ignore[no-untyped-call]
    kept = [parameter.grad for parameter in tied]
    with gradients.collecting(micro_batch):
        for parameter in tied:
            parameter.grad = None
        inputs = [*leaves, *tied, *gradients.parameters]
        if roots and inputs:
            torch.autograd.backward(roots, root_gradients, inputs=inputs)
        results: Gradients = [None if leaf.grad is None else with_strides(leaf.grad, strides[place])
                              for place, leaf in enumerate(leaves)]  # fmt: skip
        results += [parameter.grad for parameter in tied]
    for parameter, before in zip(tied, kept, strict=True):
        parameter.grad = before
    for leaf in leaves:
        leaf.grad = None
    return results


def _without_graph(output: torch.Tensor) -> torch.Tensor:
    detached = output.detach()
    vars(detached).update(vars(output))  # attributes of the tensor: Keras keeps masks there
    return detached


def _detached(leaves: Leaves) -> Gradients:
    return [leaf.detach() for leaf in leaves]
