"""Executes a pipeline schedule: the table, action by action, on the stages of a model, over a communicator."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.comm import Communicator
from hocket.errors import Aborted, InvalidArgument, InvalidModel, InvalidState
from hocket.pipeline.action import Action
from hocket.pipeline.checks.validate import validate
from hocket.pipeline.costs import CostModel
from hocket.pipeline.kind import kinds
from hocket.pipeline.passes.gradient_sync import add_gradient_sync
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.timeline import PipelineTimeline
from hocket.train.actions.registry import find_handlers
from hocket.train.channels import Channels
from hocket.train.checks import check_content, check_loss_graph
from hocket.train.copies import Copies
from hocket.train.crossings import crossings_of
from hocket.train.measured import measured_timeline
from hocket.train.probe import Probe
from hocket.train.split_model import SplitModel
from hocket.train.step import Step
from hocket.train.wiring import Wiring

Loss = Callable[[Any, Any], torch.Tensor]


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """A part of a batch that goes through the pipeline as one.

    Args:
        inputs: what the model takes, by name; the same on all ranks of a pipeline.
        target: what the loss takes beside the model's output.
        weight: of its loss in that of the batch: its part of the samples, where the loss is a mean over samples. Of one
            with a weight of 0 the loss is not computed.
        share: of what stages add to the loss, such as regularizers; None: as `weight`.
    """

    inputs: Mapping[str, Any]
    target: Any = None
    weight: float = 1.0
    share: float | None = None


@dataclass(frozen=True, eq=False)
class StepResult:
    """What a step gave on this rank.

    Args:
        losses: of micro-batches whose last stage is here, by number; as the loss function gave them.
        extra_losses: what stages here add to that, by stage and micro-batch.
        outputs: what the model returned for them, where that was asked for.
    """

    losses: Mapping[int, torch.Tensor]
    extra_losses: Mapping[tuple[int, int], torch.Tensor]
    outputs: Mapping[int, Any]


class PipelineExecutor:
    """Runs training steps of a split model by a schedule; made and called by all ranks alike.

    Ranks of the communicator follow one another: rank r of replica i is rank i D + r, of a schedule of D ranks. Every
    rank has the whole model's module objects, and trains its own stages' parameters in them; all begin with those of
    the first rank of all.

    In exact mode gradients are bit for bit those of one process that runs the unsplit model on one micro-batch after
    the other and adds up: per pipe in the order of micro-batches, then over pipes, and then over replicas.

    Args:
        schedule: a table of one step; sums of gradients are added to it where copies of stages need them and it has
            none.
        split: the model in as many stages as the table has.
        comm: of all ranks; the executor makes its own ones from it.
        loss: of the model's output and the target of a micro-batch; gives a scalar.
        exact: see above; costs memory where micro-batches do not come in order, and traffic where stages share
            parameters.
        seed: of random numbers; those of a forward pass follow from it, the step, stage and micro-batch.
        timeout: seconds that anything is waited for; None: that of the communicator.
        ahead: how many parcels of activations or gradients a rank takes before it needs them.

    Attributes:
        loss_scale: that losses are multiplied by before the backward pass, and so gradients, the same on every rank;
            who updates parameters divides by it. Losses that a step returns are not.

    Raises:
        InvalidSchedule: see `hocket.pipeline.validate`.
        InvalidModel: a parameter has no content.
        InvalidArgument: ranks or stages are not as many as they have to be, or the table has actions that nobody
            executes.
    """

    def __init__(
        self,
        schedule: PipelineSchedule,
        split: SplitModel,
        comm: Communicator,
        loss: Loss | None = None,
        *,
        exact: bool = False,
        seed: int = 0,
        timeout: float | None = None,
        ahead: int = 4,
    ) -> None:
        check_content({**split.parameters(), **split.buffers()})
        self.wiring = Wiring(split, with_ties=exact)
        self.schedule = _prepare(schedule, split, self.wiring, comm.size)
        comm = comm.dup()  # whatever happens to the pipeline, the caller's goes on
        self.split, self.comm, self.loss = split, comm, loss
        self.exact, self.seed = exact, seed
        self.timeout_s = comm.timeout if timeout is None else timeout
        self.num_replicas = comm.size // self.schedule.num_ranks
        self.replica, self.rank = divmod(comm.rank, self.schedule.num_ranks)
        self.num_steps = 0
        self.loss_scale = 1.0
        self._failure: str | None = None
        self._has_checked_loss = False
        self._are_trained = [(name, each, each.requires_grad) for name, each in split.parameters().items()]
        self._own_actions = self.schedule.actions[self.rank]
        self._own_forward = [action for action in self._own_actions if kinds()[action.kind].is_of_forward]
        self.handlers = find_handlers(self.schedule.columns.kinds)
        self.crossings = crossings_of(self.schedule.columns.kinds)
        again = self.schedule.columns.counted_as("R")
        self.recomputed = {(action.pipe, action.stage) for action in self._own_actions if action.kind in again}
        _check_same_model(comm, split, self.schedule)
        _broadcast_state(comm, split)
        pipeline_comm = comm.group(self._ranks_of_replica())
        self._channels = Channels(
            pipeline_comm,
            self.schedule.placement,
            self.wiring.hops,
            self.schedule.num_micro_batches,
            self.timeout_s,
            ahead,
            self._name_of,
        )
        self._comms = [pipeline_comm, pipeline_comm.dup()]
        self._probe = Probe(split, self.wiring, self.schedule.placement, self._comms[-1])
        self.copies = Copies(self)
        self._first_ranks: dict[int, int] = {}
        for stage, each in enumerate(split.stages):
            for parameter in each.parameters().values():
                self._first_ranks.setdefault(id(parameter), self.holders(stage)[0])
        self._times: deque[NDArray[np.float64]] = deque(maxlen=_STEPS_REMEMBERED)

    def step(self, micro_batches: Sequence[MicroBatch], *, keeps_outputs: bool = False) -> StepResult:
        """Run forward and backward passes of a batch, and sum gradients; every ``.grad`` is there afterwards.

        Args:
            micro_batches: of this replica: as many as the table has.
            keeps_outputs: whether the result has what the model returned.

        Raises:
            CommTimeout: something did not come in time; names what, from whom, and who waits for it.
            PeerFailure: a rank has died.
            InvalidArgument: micro-batches are too many or too few.
            InvalidModel: a stage cannot be run so.
            InvalidState: an earlier step failed.
        """
        self._check(micro_batches)
        if self.loss is None:
            raise InvalidArgument("a training step needs a loss")
        self._check_trained()
        return self._run(micro_batches, self._own_actions, True, keeps_outputs, True)

    def forward(
        self, micro_batches: Sequence[MicroBatch], *, keeps_outputs: bool = True, with_losses: bool = False
    ) -> StepResult:
        """Run forward passes alone, as in evaluation: without random numbers, gradients or running statistics.

        Args:
            micro_batches: as of `step`.
            keeps_outputs: whether the result has what the model returned.
            with_losses: whether it has losses.

        Raises as `step`.
        """
        self._check(micro_batches)
        if with_losses and self.loss is None:
            raise InvalidArgument("there are losses where there is a loss")
        return self._run(micro_batches, self._own_forward, False, keeps_outputs, with_losses)

    def timeline(self, costs: CostModel | None = None) -> PipelineTimeline:
        """Return when everything happened on replica 0, in the one of the last 16 training steps that took as long as
        their median; called by all ranks.

        Args:
            costs: that it is compared with, for bytes.

        Raises:
            InvalidState: there was no step.
        """
        if not self._times:
            raise InvalidState("there is a timeline after a step")
        return measured_timeline(self.comm, self.schedule, self._times, costs or CostModel())

    def close(self) -> None:
        """Leave the communicators that it has made. The model stays as it is, in training mode."""
        for stage in self.split.stages:
            stage.train()
        self._failure = self._failure or "it was closed"
        self.comm.finalize()

    def __enter__(self) -> PipelineExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_micro_batches(self) -> int:
        """Of a step, over all replicas."""
        return self.num_replicas * self.schedule.num_micro_batches

    @property
    def first_micro_batch(self) -> int:
        """The number of this replica's first micro-batch among those of all replicas."""
        return self.replica * self.schedule.num_micro_batches

    def holders(self, stage: int) -> list[int]:
        """Return the ranks of the copies of a stage: replica after replica, pipe after pipe."""
        return self.copies.holders[stage]

    def speaks_for(self, parameter: torch.nn.Parameter) -> bool:
        """Return whether this rank is the first of those that train a parameter."""
        return self._first_ranks[id(parameter)] == self.comm.rank

    def check_loss_graph(self, loss: torch.Tensor) -> None:
        """Check the first loss that is asked for. Raises as `hocket.train.checks.check_loss_graph`."""
        if not self._has_checked_loss and loss.requires_grad:
            own = {id(each) for each in self.split.stages[-1].parameters().values()}
            check_loss_graph(
                loss, {id(each): name for name, each in self.split.parameters().items() if id(each) not in own}
            )
            self._has_checked_loss = True

    def _check_trained(self) -> None:
        for name, parameter, was_trained in self._are_trained:
            if parameter.requires_grad != was_trained:
                then, now = ("was", "is not") if was_trained else ("was not", "is")
                raise InvalidModel(
                    f"parameter {name!r} {then} to be trained when the training began, and now {now} (requires_grad): "
                    "end it, and begin another one"
                )

    def trained_stages(self) -> list[int]:
        """Return the stages whose parameters this rank trains."""
        return sorted({stage for _, stage in self.schedule.placement.stages_of(self.rank)})

    def _run(
        self,
        micro_batches: Sequence[MicroBatch],
        actions: Sequence[Action],
        is_training: bool,
        keeps_outputs: bool,
        has_losses: bool,
    ) -> StepResult:
        if self._failure is not None:
            raise InvalidState(f"an earlier step failed, and with it the pipeline: {self._failure}")
        random_state = torch.get_rng_state()
        try:
            specs = [self._probe.specs_of(each.inputs, is_training) for each in micro_batches]
            step = Step(self, self._channels, micro_batches, specs, is_training, keeps_outputs, has_losses)
            step.run(actions)
            if is_training:
                self.copies.finish()
            self._channels.finish()
            if is_training:
                self._times.append(step.times)
                self.num_steps += 1
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            torch.set_rng_state(random_state)
        return StepResult(step.losses, step.extra_losses, step.outputs)

    def _fail(self, error: BaseException) -> None:
        """Remember why there is no going on, and tell the others, who need not wait for their deadlines then."""
        self._failure = f"{type(error).__name__}: {error}"
        if not isinstance(error, Aborted):
            for comm in (*self.copies.comms, *self._comms, self.comm):
                comm.abort(f"a training step failed on {self._name_of(self.rank)}: {self._failure}")

    def _check(self, micro_batches: Sequence[MicroBatch]) -> None:
        wanted = self.schedule.num_micro_batches
        if len(micro_batches) != wanted:
            raise InvalidArgument(f"the table is for {wanted} micro-batches, not {len(micro_batches)}")
        for number, each in enumerate(micro_batches):
            absent = [name for name in self.split.batch_inputs if name not in each.inputs]
            if absent:
                raise InvalidArgument(f"micro-batch {number} has no {absent[0]!r}, which the model takes")

    def _ranks_of_replica(self) -> list[int]:
        first = self.replica * self.schedule.num_ranks
        return list(range(first, first + self.schedule.num_ranks))

    def _name_of(self, rank: int) -> str:
        return f"rank {self.replica * self.schedule.num_ranks + rank}"


_STEPS_REMEMBERED = 16


def _prepare(schedule: PipelineSchedule, split: SplitModel, wiring: Wiring, num_ranks: int) -> PipelineSchedule:
    if schedule.num_steps > 1:
        raise InvalidArgument(f"a table of one step is executed again and again; this one has {schedule.num_steps}")
    if schedule.num_stages != split.num_stages:
        raise InvalidArgument(
            f"the table has {schedule.num_stages} stages, the model was split into {split.num_stages}"
        )
    if num_ranks % schedule.num_ranks:
        raise InvalidArgument(f"the table is for {schedule.num_ranks} ranks; {num_ranks} ranks are no multiple of that")
    find_handlers(schedule.columns.kinds)  # refuses actions that nothing executes
    has_messages = any(kinds()[kind].message for kind in schedule.columns.kinds)
    if schedule.edges != wiring.edges:
        if has_messages:
            raise InvalidArgument(
                f"the table has messages for edges {schedule.edges}, the model has edges {wiring.edges}: lower "
                "messages after `edges` were set"
            )
        schedule = replace(schedule, edges=wiring.edges)
    validate(schedule)
    if not schedule.columns.counted_as("SYNC_START"):
        costs = CostModel(num_replicas=num_ranks // schedule.num_ranks)
        schedule = add_gradient_sync(schedule, costs=costs)
    return schedule


def _check_same_model(comm: Communicator, split: SplitModel, schedule: PipelineSchedule) -> None:
    """Raise on every rank where they would train different models, or by different tables."""
    own = (
        [f"{name} {each.dtype} {tuple(each.shape)}" for name, each in split.parameters().items()],
        [f"{stage.inputs} -> {stage.outputs}" for stage in split.stages],
        [f"{schedule.name} {hash_of(schedule)[:8]}"],
    )
    words = ("parameters", "stages", "schedules")
    for rank, other in enumerate(comm.all_gather_object(own)):
        for what, mine, theirs in zip(words, own, other, strict=True):
            if mine != theirs:
                pairs = zip_longest(mine, theirs, fillvalue="nothing")
                here, there = next(pair for pair in pairs if pair[0] != pair[1])
                raise InvalidArgument(
                    f"rank {comm.rank} and rank {rank} have different {what}: {here} on rank {comm.rank}, "
                    f"{there} on rank {rank}"
                )


def hash_of(schedule: PipelineSchedule) -> str:
    """Return a name for what a table does, the same in every process."""
    import hashlib

    content = (schedule.placement, schedule.num_micro_batches, schedule.edges, schedule.actions)
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _broadcast_state(comm: Communicator, split: SplitModel) -> None:
    """Have all ranks begin with the parameters and buffers of the first one."""
    tensors = [*split.parameters().values(), *split.buffers().values()]
    if isinstance(split.model, torch.nn.Module):  # and what no stage uses
        tensors += [*split.model.parameters(), *split.model.buffers()]
    if comm.size > 1:
        for tensor in {id(each): each for each in tensors}.values():
            comm.broadcast(tensor.detach(), 0)
