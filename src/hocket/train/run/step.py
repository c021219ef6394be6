"""One step of a pipeline on one rank: what its actions share while they are executed."""

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


@dataclass
class Pass:
    """What is kept of a forward pass of a micro-batch through a stage until its backward pass.

    Args:
        inputs: values that the module was called with.
        taken: of every hop inwards, the leaves that gradients are wanted of.
        handed_on: of every hop outwards, the tensors that gradients come back for.
        loss: with its weight, in the last stage; and what a stage adds to it.
        split: the backward pass between its two parts.
    """

    inputs: dict[str, Any]
    taken: dict[int, Leaves]
    handed_on: dict[int, Leaves] = field(default_factory=dict)
    loss: torch.Tensor | None = None
    split: SplitBackward | None = None


@dataclass(frozen=True)
class StepOptions:
    """What kind of step it is.

    Args:
        number: of training steps before it, from which random numbers follow.
        is_training: whether there are backward passes.
        keeps_outputs: whether outputs of the model are kept.
        loss: None: no losses are computed.
        loss_scale: that losses are multiplied by before the backward pass.
    """

    number: int
    is_training: bool
    keeps_outputs: bool
    loss: CheckedLoss | None
    loss_scale: float = 1.0


class Step:
    """The state of a step.

    Args:
        layout: of this rank.
        channels: that parcels take.
        copies: gradients of the stages here.
        micro_batches: of this replica.
        specs: of all values, for each micro-batch.
        options: what kind of step it is.
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
        self._waiting: dict[Parcel, Gradients] = {}  # for the action that sends them
        self._are_detached: list[bool] = []  # losses, where the model's output is not
        self._where = ""
        self._has_computed = False
        self._begin_s = 0.0
        for stage in layout.own_stages:
            self.stage(stage).train(options.is_training)
        copies.reset()

    @property
    def is_training(self) -> bool:
        """Whether there are backward passes."""
        return self._options.is_training

    def run(self, actions: Sequence[Action], handlers: Mapping[str, Callable[[Step, Action], None]]) -> None:
        """Execute actions in their order, and note when each began, after what it waited for, and ended.

        Args:
            actions: of this rank.
            handlers: what executes actions, by kind.
        """
        self._channels.expect(self._parcels_of(actions))
        for number, action in enumerate(actions):
            self._where = f"action {number} of the step, {action},"
            self._has_computed = False
            self._begin_s = time.perf_counter()
            handlers[action.kind](self, action)
            self.times[:, number] = self._begin_s, time.perf_counter()
        # That of some micro-batches may be a constant, where nothing in them counts.
        if self._are_detached and all(self._are_detached):
            raise InvalidArgument("the loss has no gradient, though what the model gives has one: is it detached?")

    def stage(self, number: int) -> Stage:
        """Return a stage of the model."""
        return self._layout.split.stages[number]

    def recomputes(self, action: Action) -> bool:
        """Return whether the forward pass is done again before the backward pass."""
        return (action.pipe, action.stage) in self._layout.recomputed

    def forward(self, action: Action, micro_batch: int) -> None:
        """Run the forward pass of one micro-batch, and send what it gives."""
        inputs, taken = self._collect(action, micro_batch)
        kept = Pass(inputs, taken)
        again = self.is_training and self.recomputes(action)
        outputs = self._call(action, micro_batch, kept, with_graph=self.is_training and not again)
        if self.is_training:
            self._passes[action.pipe, action.stage, micro_batch] = kept
        for number in self._ends(action).outwards:
            value = {**inputs, **outputs}[self._hop(number).value]
            self._send(Parcel(number, action.pipe, micro_batch, False), _detached(to_leaves(value)))

    def recompute(self, action: Action, micro_batch: int) -> None:
        """Run the forward pass again, with the same random numbers, and leave running statistics alone."""
        kept = self._passes[action.pipe, action.stage, micro_batch]
        with self.stage(action.stage).with_buffers_kept():
            self._call(action, micro_batch, kept, with_graph=True)

    def backward(self, action: Action, micro_batch: int, *, inputs_only: bool) -> None:
        """Run the backward pass of one micro-batch, and send gradients of what came in."""
        key = (action.pipe, action.stage, micro_batch)
        kept = self._passes[key] if inputs_only else self._passes.pop(key)
        roots, root_gradients = self._roots(action, micro_batch, kept)
        leaves = [leaf for number in self._ends(action).inwards for leaf in kept.taken[number]]
        tied = [self._parameter(number) for number in self._ends(action).tied_inwards]
        gradients = self.copies.gradients(action.pipe, action.stage)
        self._has_computed = True
        if inputs_only:
            wanted = [*leaves, *tied]
            kept.split = SplitBackward(roots, root_gradients, wanted, gradients.parameters)
            found = kept.split.input_gradients
            kept.handed_on, kept.loss, kept.taken, kept.inputs = {}, None, {}, {}
        else:
            found = _backward(roots, root_gradients, leaves, tied, gradients, micro_batch)
        self._send_back(action, micro_batch, found)

    def weights(self, action: Action, micro_batch: int) -> None:
        """Run the rest of a backward pass: the gradients of the weights."""
        kept = self._passes.pop((action.pipe, action.stage, micro_batch))
        assert kept.split is not None
        self._has_computed = True
        self.copies.gradients(action.pipe, action.stage).add(micro_batch, kept.split.weight_gradients())

    def receive(self, action: Action, *, is_gradient: bool) -> None:
        """Wait for what crosses an edge, for the actions that need it."""
        for micro_batch in action.micro_batches:
            for number in self._between(action, is_gradient, inwards=True):
                parcel = Parcel(number, action.pipe, micro_batch, is_gradient)
                self._channels.keep(parcel, self._take(parcel))

    def send(self, action: Action, *, is_gradient: bool) -> None:
        """Send what earlier actions gave."""
        for micro_batch in action.micro_batches:
            for number in self._between(action, is_gradient, inwards=False):
                parcel = Parcel(number, action.pipe, micro_batch, is_gradient)
                spec = self._spec(number, micro_batch)
                self._channels.send(parcel, spec, self._waiting.pop(parcel), self._where)

    def _collect(self, action: Action, micro_batch: int) -> tuple[dict[str, Any], dict[int, Leaves]]:
        """All that a stage takes, and the leaves among it that gradients are wanted of."""
        values = dict(self._micro_batches[micro_batch].inputs)
        taken: dict[int, Leaves] = {}
        for number in self._ends(action).inwards:
            name = self._hop(number).value
            spec = self._specs[micro_batch].values[name]
            leaves = [leaf for leaf in self._take(Parcel(number, action.pipe, micro_batch, False)) if leaf is not None]
            for leaf, each in zip(leaves, spec.leaves, strict=True):
                leaf.requires_grad_(each.has_gradient and self.is_training)
            taken[number] = [leaf for leaf, each in zip(leaves, spec.leaves, strict=True) if each.has_gradient]
            values[name] = from_leaves(leaves, spec)
        return values, taken

    def _call(self, action: Action, micro_batch: int, kept: Pass, with_graph: bool) -> dict[str, Any]:
        """Run the module, and the loss in the last stage; keep what the backward pass begins with."""
        layout, stage = self._layout, self.stage(action.stage)
        changed = self._specs[micro_batch].changed[action.stage]
        self._has_computed = True
        given_part = self._micro_batches[micro_batch]
        share = given_part.weight if given_part.share is None else given_part.share
        # What only fills up a batch leaves no trace in running statistics.
        with torch.set_grad_enabled(with_graph), nullcontext() if share else stage.with_buffers_kept():
            given = [
                pytree.tree_map_only(torch.Tensor, torch.clone, kept.inputs[name])
                if name in changed
                else kept.inputs[name]
                for name in stage.inputs
            ]
            if self.is_training:
                number = layout.first_micro_batch + micro_batch
                stage.seed(random_key(layout.seed, self._options.number, action.stage, number))
            outputs = dict(zip(stage.outputs, stage(given), strict=True))
            if action.stage == layout.split.num_stages - 1:
                self._finish(micro_batch, outputs, kept)
            extra = stage.extra_loss() if self._options.loss is not None and share else None
            if extra is not None:
                self.extra_losses[action.stage, micro_batch] = extra.detach()
                weighted = extra * (share * self._options.loss_scale)
                kept.loss = weighted if kept.loss is None else kept.loss + weighted
            if with_graph:
                for number in self._ends(action).outwards:
                    name = self._hop(number).value
                    spec = self._specs[micro_batch].values[name]
                    kept.handed_on[number] = [
                        # A value that is handed on has a node of its own, made last: autograd comes to it first.
                        leaf if name in outputs else torch.ops.aten.alias(leaf)
                        for leaf, each in zip(flatten({**kept.inputs, **outputs}[name])[0], spec.leaves, strict=True)
                        if each.has_gradient
                    ]
                for number in self._ends(action).tied_outwards:
                    parameter = self._parameter(number)
                    kept.handed_on[number] = [torch.ops.aten.alias(parameter)]
        return outputs

    def _finish(self, micro_batch: int, outputs: Mapping[str, Any], kept: Pass) -> None:
        split, options, given = self._layout.split, self._options, self._micro_batches[micro_batch]
        result = split.make_output([outputs[name] for name in split.outputs])
        # The mean over nothing is no number, and neither is 0 times it.
        if options.loss is not None and given.weight:
            loss = options.loss(result, given.target)
            if isinstance(result, torch.Tensor) and result.requires_grad:
                self._are_detached.append(not loss.requires_grad)
            self.losses[micro_batch] = loss.detach()
            kept.loss = loss * (given.weight * options.loss_scale)
        if options.keeps_outputs:
            self.outputs[micro_batch] = pytree.tree_map_only(torch.Tensor, _without_graph, result)

    def _roots(self, action: Action, micro_batch: int, kept: Pass) -> tuple[Leaves, Gradients]:
        roots: Leaves = []
        gradients: Gradients = []
        if kept.loss is not None and kept.loss.requires_grad:
            roots.append(kept.loss)
            gradients.append(None)
        ends = self._ends(action)
        for number in (*ends.outwards, *ends.tied_outwards):
            came = self._take(Parcel(number, action.pipe, micro_batch, True))
            for root, gradient in zip(kept.handed_on[number], came, strict=True):
                if gradient is not None and root.requires_grad:
                    roots.append(root)
                    gradients.append(gradient)
        return roots, gradients

    def _send_back(self, action: Action, micro_batch: int, found: Gradients) -> None:
        ends = self._ends(action)
        wanted = iter(found)
        for number in (*ends.inwards, *ends.tied_inwards):
            count = sum(leaf.has_gradient for leaf in self._spec(number, micro_batch).leaves)
            self._send(Parcel(number, action.pipe, micro_batch, True), [next(wanted) for _ in range(count)])

    def _send(self, parcel: Parcel, leaves: Gradients) -> None:
        if (
            self._layout.crossings.are_sends_named[parcel.is_gradient]
            and self._channels.destination(parcel) != self._channels.rank
        ):
            self._waiting[parcel] = leaves
        else:
            self._channels.send(parcel, self._spec(parcel.hop, parcel.micro_batch), leaves, self._where)

    def _take(self, parcel: Parcel) -> Gradients:
        leaves = self._channels.take(parcel, self._where)
        if not self._has_computed:
            self._begin_s = time.perf_counter()
        return leaves

    def _between(self, action: Action, is_gradient: bool, inwards: bool) -> list[int]:
        """The hops that a message stands for."""
        ends = self._layout.wiring.of(action.stage)
        hops = self._layout.wiring.hops
        comes = inwards != is_gradient  # whether the other end is an earlier stage
        values, tied = (ends.inwards, ends.tied_inwards) if comes else (ends.outwards, ends.tied_outwards)
        return [
            number
            for number in (*values, *(tied if is_gradient else ()))
            if (hops[number].from_stage if comes else hops[number].to_stage) == action.peer
        ]

    def _parcels_of(self, actions: Sequence[Action]) -> list[tuple[Parcel, ValueSpec]]:
        """What this rank takes, in its order."""
        found = []
        for action in actions:
            for goes_back in self._layout.crossings.taken[action.kind]:
                ends = self._ends(action)
                if self._layout.crossings.is_receive(action.kind):
                    numbers: Sequence[int] = self._between(action, goes_back, inwards=True)
                else:
                    numbers = [*ends.outwards, *ends.tied_outwards] if goes_back else ends.inwards
                for micro_batch in action.micro_batches:
                    for number in numbers:
                        parcel = Parcel(number, action.pipe, micro_batch, goes_back)
                        found.append((parcel, self._spec(number, micro_batch)))
        return found

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

    Those of leaves have the strides with which they came, and not those of the leaf, as ``.grad`` has.
    """
    strides: dict[int, tuple[int, ...]] = {}

    def note(gradient: torch.Tensor, place: int) -> None:
        strides[place] = gradient.stride()

    for place, leaf in enumerate(leaves):
        leaf.grad = None
        leaf.register_hook(partial(note, place=place))  # type: ignore[no-untyped-call]
    kept = [parameter.grad for parameter in tied]
    with gradients.collecting(micro_batch):
        for parameter in tied:
            parameter.grad = None
        inputs = [*leaves, *tied, *gradients.parameters]
        if roots and inputs:
            torch.autograd.backward(roots, root_gradients, inputs=inputs)
        found: Gradients = [None if leaf.grad is None else with_strides(leaf.grad, strides[place])
                            for place, leaf in enumerate(leaves)]  # fmt: skip
        found += [parameter.grad for parameter in tied]
    for parameter, before in zip(tied, kept, strict=True):
        parameter.grad = before
    for leaf in leaves:
        leaf.grad = None
    return found


def _without_graph(output: torch.Tensor) -> torch.Tensor:
    found = output.detach()
    vars(found).update(vars(output))  # what hangs on it, as Keras hangs masks
    return found


def _detached(leaves: Leaves) -> Gradients:
    return [leaf.detach() for leaf in leaves]
