"""Executes a pipeline schedule: the table, action by action, on the stages of a model, over a communicator."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.comm import Communicator
from hocket.errors import Aborted, InvalidArgument, InvalidModel, InvalidState
from hocket.pipeline.action import Action
from hocket.pipeline.costs import CostModel
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.timeline import PipelineTimeline
from hocket.train.data.micro_batches import MicroBatch
from hocket.train.model.checks import check_content
from hocket.train.model.split_model import SplitModel
from hocket.train.run.actions.registry import find_handlers
from hocket.train.run.channels import Channels
from hocket.train.run.copies import Copies
from hocket.train.run.layout import lay_out
from hocket.train.run.loss import CheckedLoss, Loss
from hocket.train.run.measured_timeline import measured_timeline
from hocket.train.run.probe import Probe
from hocket.train.run.same_model import broadcast_state, check_same_model
from hocket.train.run.step import Step, StepOptions

_STEPS_REMEMBERED = 16


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
        self.layout = layout = lay_out(schedule, split, comm.rank, comm.size, exact=exact, seed=seed)
        self._handlers = find_handlers(layout.schedule.columns.kinds)
        comm = comm.dup()  # whatever happens to the pipeline, the caller's goes on
        self.schedule, self.split, self.comm = layout.schedule, split, comm
        self.timeout_s = comm.timeout if timeout is None else timeout
        self.num_steps = 0
        self.loss_scale = 1.0
        self._loss = None if loss is None else CheckedLoss(loss, split)
        self._failure: str | None = None
        self._are_trained = [(name, each, each.requires_grad) for name, each in split.parameters().items()]
        check_same_model(comm, split, self.schedule)
        broadcast_state(comm, split)
        pipeline_comm = comm.group([layout.job_rank_of(rank) for rank in range(self.schedule.num_ranks)])
        self._channels = Channels(
            pipeline_comm,
            self.schedule.placement,
            layout.wiring.hops,
            self.schedule.num_micro_batches,
            self.timeout_s,
            ahead,
            layout.name_of,
        )
        self._comms = [pipeline_comm, pipeline_comm.dup()]
        self._probe = Probe(split, layout.wiring, self.schedule.placement, self._comms[-1])
        self._copies = Copies(layout, comm, exact, self.timeout_s)
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
        if self._loss is None:
            raise InvalidArgument("a training step needs a loss: pass `loss=`")
        self._check_trained()
        options = StepOptions(
            number=self.num_steps,
            is_training=True,
            keeps_outputs=keeps_outputs,
            loss=self._loss,
            loss_scale=self.loss_scale,
        )
        return self._run(micro_batches, self.layout.actions, options)

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
        if with_losses and self._loss is None:
            raise InvalidArgument("pass `loss=` to compute losses")
        options = StepOptions(
            number=self.num_steps,
            is_training=False,
            keeps_outputs=keeps_outputs,
            loss=self._loss if with_losses else None,
        )
        return self._run(micro_batches, self.layout.forward_actions, options)

    def timeline(self, costs: CostModel | None = None) -> PipelineTimeline:
        """Return when everything happened on replica 0, in the one of the last 16 training steps that took as long as
        their median; called by all ranks.

        Args:
            costs: that it is compared with, for bytes.

        Raises:
            InvalidState: there was no step.
        """
        if not self._times:
            raise InvalidState("no step has run yet, so there is no timeline")
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
    def rank(self) -> int:
        """This rank, in its replica."""
        return self.layout.rank

    @property
    def replica(self) -> int:
        """The replica that this rank belongs to."""
        return self.layout.replica

    @property
    def num_replicas(self) -> int:
        """Replicas of the pipeline."""
        return self.layout.num_replicas

    @property
    def num_micro_batches(self) -> int:
        """Of a step, over all replicas."""
        return self.num_replicas * self.schedule.num_micro_batches

    @property
    def first_micro_batch(self) -> int:
        """The number of this replica's first micro-batch among those of all replicas."""
        return self.layout.first_micro_batch

    def holders(self, stage: int) -> tuple[int, ...]:
        """Return the ranks of the copies of a stage: replica after replica, pipe after pipe."""
        return self.layout.holders[stage]

    def speaks_for(self, parameter: torch.nn.Parameter) -> bool:
        """Return whether this rank is the first of those that train a parameter."""
        return self.layout.is_first_holder(parameter)

    def _check_trained(self) -> None:
        for name, parameter, was_trained in self._are_trained:
            if parameter.requires_grad != was_trained:
                then, now = ("was", "is not") if was_trained else ("was not", "is")
                raise InvalidModel(
                    f"parameter {name!r} {then} to be trained when the training began, and now {now} (requires_grad): "
                    "start a new training run"
                )

    def trained_stages(self) -> list[int]:
        """Return the stages whose parameters this rank trains."""
        return list(self.layout.own_stages)

    def _run(
        self,
        micro_batches: Sequence[MicroBatch],
        actions: Sequence[Action],
        options: StepOptions,
    ) -> StepResult:
        if self._failure is not None:
            raise InvalidState(f"an earlier step failed, and with it the pipeline: {self._failure}")
        random_state = torch.get_rng_state()
        try:
            specs = [self._probe.specs_of(each.inputs, options.is_training) for each in micro_batches]
            step = Step(self.layout, self._channels, self._copies, micro_batches, specs, options)
            step.run(actions, self._handlers)
            if options.is_training:
                self._copies.finish()
            self._channels.finish()
            if options.is_training:
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
            for comm in (*self._copies.comms, *self._comms, self.comm):
                comm.abort(f"a training step failed on {self.layout.name_of(self.rank)}: {self._failure}")

    def _check(self, micro_batches: Sequence[MicroBatch]) -> None:
        wanted = self.schedule.num_micro_batches
        if len(micro_batches) != wanted:
            raise InvalidArgument(f"the table is for {wanted} micro-batches, not {len(micro_batches)}")
        for number, each in enumerate(micro_batches):
            absent = [name for name in self.split.batch_inputs if name not in each.inputs]
            if absent:
                raise InvalidArgument(f"micro-batch {number} has no {absent[0]!r}, which the model takes")
