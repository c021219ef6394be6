"""The executor of pipeline schedules: runs the actions of a table on the stages of a model, over a communicator."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hocket import _native
from hocket.collectives.compressed.kept import SCALED, KeptOfTensors
from hocket.comm import Communicator
from hocket.errors import Aborted, InvalidArgument, InvalidModel, InvalidState
from hocket.pipeline.action import Action
from hocket.pipeline.costs import CostModel
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.timeline import PipelineTimeline
from hocket.train.data.micro_batches import MicroBatch
from hocket.train.engines.registry import EngineChoice
from hocket.train.model.checks import check_content
from hocket.train.model.split_model import SplitModel
from hocket.train.run.actions.registry import find_handlers
from hocket.train.run.channels import Channels
from hocket.train.run.copies import Copies
from hocket.train.run.layout import lay_out
from hocket.train.run.loss import CheckedLoss, Loss
from hocket.train.run.lossless import check_messages, packed_text
from hocket.train.run.measured_timeline import measured_timeline
from hocket.train.run.probe import Probe
from hocket.train.run.regions import EVALUATION, GRADIENTS, STEP
from hocket.train.run.same_model import broadcast_state, check_same_model
from hocket.train.run.step import Step, StepOptions

_STEPS_REMEMBERED = 16


@dataclass(frozen=True, eq=False)
class StepResult:
    """The results of a step on this rank.

    Args:
        losses: unweighted losses of the micro-batches whose last stage this rank has, by micro-batch.
        extra_losses: terms that this rank's stages add to the loss, by stage and micro-batch.
        outputs: results of the model, by micro-batch, if they were requested.

    Examples:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
        >>> split = hk.train.graph_of(model).split([0, 1, 2])
        >>> schedule = hk.pipeline.build("gpipe", num_ranks=2, num_micro_batches=2)
        >>> with hk.train.PipelineExecutor(schedule, split, comm) as executor:
        ...     result = executor.forward([hk.train.MicroBatch({"input": torch.ones(4, 2)})] * 2)
        >>> comm.all_gather_object({number: tuple(output.shape) for number, output in result.outputs.items()})
        [{}, {0: (4, 1), 1: (4, 1)}]
    """

    losses: Mapping[int, torch.Tensor]
    extra_losses: Mapping[tuple[int, int], torch.Tensor]
    outputs: Mapping[int, Any]


class PipelineExecutor:
    """Runs training steps of a split model by a schedule; all ranks make it and call its methods together.

    With a schedule of D ranks, rank r of replica i is rank i D + r of the communicator. Every rank has the module
    objects of the whole model, and trains the parameters of its own stages. All ranks begin with the parameters of
    rank 0.

    In exact mode, gradients are equal bit for bit to those of one process that runs the unsplit model on one
    micro-batch after the other. They are summed in the order of micro-batches for each pipe, then over pipes, then over
    replicas.

    Args:
        schedule: a table of one step. If copies of stages need sums of gradients and the table has none, the executor
            adds them.
        split: the model, with as many stages as the table.
        comm: a communicator of all ranks; the executor makes its own communicators from it.
        loss: (output of the model, target) -> scalar, for a micro-batch; None: forward passes only.
        exact: see above; costs memory if micro-batches arrive out of order, and messages if stages share parameters.
        seed: seed of random numbers; the seed of a forward pass is derived from it, the step, stage and micro-batch.
        timeout: timeout of every wait in seconds; None: the timeout of the communicator.
        ahead: number of activations or gradients that a rank receives before it needs them.
        engine: the gradient engine that sums over copies of a stage on several ranks; None: the default one.
        messages: "lossless": what stages on different hosts send each other is packed into fewer bytes, from which
            every bit comes back; None: it is sent as it is.

    Attributes:
        loss_scale: factor of losses, and so of gradients, in the backward pass; equal on all ranks. The update of the
            parameters must divide by it. The losses that a step returns are unscaled.

    Raises:
        InvalidSchedule: see `hocket.pipeline.validate`.
        InvalidModel: a parameter has no content.
        InvalidArgument: the number of ranks or stages does not fit the table, or no function executes an action of it.

    Examples:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
        >>> split = hk.train.graph_of(model).split([0, 1, 2])
        >>> schedule = hk.pipeline.build("1f1b", num_ranks=2, num_micro_batches=2)
        >>> half = hk.train.MicroBatch({"input": torch.ones(4, 2)}, torch.zeros(4, 1), weight=0.5)
        >>> with hk.train.PipelineExecutor(schedule, split, comm, torch.nn.functional.mse_loss) as executor:
        ...     result = executor.step([half, half])
        ...     comm.all_gather_object((executor.trained_stages(), sorted(result.losses)))
        [([0], []), ([1], [0, 1])]
        >>> model[comm.rank].weight.grad is not None
        True
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
        engine: EngineChoice | None = None,
        messages: str | None = None,
    ) -> None:
        check_messages(messages)
        engine = engine or EngineChoice()
        engine.check(exact=exact)
        check_content({**split.parameters(), **split.buffers()})
        self.layout = layout = lay_out(schedule, split, comm.rank, comm.size, exact=exact, seed=seed)
        if engine.updates and layout.num_replicas != comm.size:
            raise InvalidArgument(
                f"engine {engine.name!r} needs a whole copy of the model on every rank: use strategy='data'"
            )
        self._handlers = find_handlers(layout.schedule.columns.kinds)
        comm = comm.dup()  # the caller's communicator stays usable if the pipeline fails
        self.schedule, self.split, self.comm = layout.schedule, split, comm
        self.timeout_s = comm.timeout if timeout is None else timeout
        self.num_steps = 0
        self.loss_scale = 1.0
        self._loss = None if loss is None else CheckedLoss(loss, split)
        self._failure: str | None = None
        self._trained_at_start = [(name, each, each.requires_grad) for name, each in split.parameters().items()]
        check_same_model(comm, split, self.schedule, messages)
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
            messages,
        )
        self._comms = [pipeline_comm, pipeline_comm.dup()]
        self._probe = Probe(split, layout.wiring, self.schedule.placement, self._comms[-1])
        self._copies = Copies(layout, comm, exact, self.timeout_s, engine)
        self._times: deque[NDArray[np.float64]] = deque(maxlen=_STEPS_REMEMBERED)
        self._before_close: list[Callable[[], None]] = []

    def step(self, micro_batches: Sequence[MicroBatch], *, keeps_outputs: bool = False) -> StepResult:
        """Run forward and backward passes of a batch, and sum the gradients into every parameter's ``.grad``.

        Args:
            micro_batches: micro-batches of this replica, as many as the table has.
            keeps_outputs: whether the result has the outputs of the model.

        Raises:
            CommTimeout: a message did not arrive in time; the error names the message, its sender and the waiting rank.
            PeerFailure: a rank has died.
            InvalidArgument: the number of micro-batches is not that of the table.
            InvalidModel: a stage cannot be run on these inputs.
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
        """Run forward passes only, in evaluation mode: without random numbers, gradients or running statistics.

        Args:
            micro_batches: see `step`.
            keeps_outputs: whether the result has the outputs of the model.
            with_losses: whether the result has losses.

        Raises the errors of `step`.
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
        """Return the measured times of all actions of replica 0 in a recent training step; called by all ranks.

        It is the step of median length among the last 16.

        Args:
            costs: costs of a simulation to compare with; gives the sizes of messages.

        Raises:
            InvalidState: no training step has run.
        """
        if not self._times:
            raise InvalidState("no step has run yet, so there is no timeline")
        return measured_timeline(self.comm, self.schedule, self._times, costs or CostModel())

    def kept_gradients(self) -> KeptOfTensors:
        """Return what engines keep of gradients for the next step.

        All ranks call it; residuals and momenta are means over the ranks that sum them.
        """
        found = KeptOfTensors()
        for engine in self._copies.engines():
            kept = engine.kept()
            for what in SCALED:
                for each in getattr(kept, what).values():
                    engine.comm.all_reduce(each, "avg", timeout=self.timeout_s)
            found.add(kept)
        return found

    def keep_gradients(self, kept: KeptOfTensors) -> None:
        """Set what engines keep of gradients on every rank; it is taken out of `kept`."""
        for engine in self._copies.engines():
            engine.keep(kept)

    def undo_kept_gradients(self) -> None:
        """Take back what engines kept of gradients before the last step, which is skipped."""
        for engine in self._copies.engines():
            engine.undo_kept()

    def scale_kept_gradients(self, factor: float) -> None:
        """Multiply what engines keep of gradients, since gradients are scaled otherwise from now on."""
        for engine in self._copies.engines():
            engine.scale_kept(factor)

    def explain_messages(self) -> str:
        """Return how many bytes packed messages between stages have taken so far; all ranks call it.

        Examples:
            >>> import torch
            >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
            >>> schedule = hk.pipeline.build("gpipe", num_ranks=2, num_micro_batches=2)
            >>> split = hk.train.graph_of(model).split([0, 1, 2])
            >>> with hk.train.PipelineExecutor(schedule, split, comm, messages="lossless") as executor:
            ...     executor.explain_messages()
            'no message between stages was packed: only those of 4 KiB and more between hosts are'
        """
        rooms = self._channels.rooms
        totals = np.array([rooms.raw_nbytes, rooms.sent_nbytes], np.int64)
        self.comm.all_reduce(totals, timeout=self.timeout_s)
        return packed_text(*totals.tolist())

    def before_close(self, call: Callable[[], None]) -> None:
        """Let `close` first call a function, such as one that closes communicators made from `comm`."""
        self._before_close.append(call)

    def close(self) -> None:
        """Close the executor's communicators. The model keeps its values, and is in training mode."""
        while self._before_close:
            self._before_close.pop()()
        for stage in self.split.stages:
            stage.train()
        self._failure = self._failure or "the executor was closed"
        self._copies.close()
        self.comm.finalize()

    def __enter__(self) -> PipelineExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def rank(self) -> int:
        """This rank's number in its replica."""
        return self.layout.rank

    @property
    def replica(self) -> int:
        """The replica of this rank."""
        return self.layout.replica

    @property
    def num_replicas(self) -> int:
        """Number of replicas of the pipeline."""
        return self.layout.num_replicas

    @property
    def num_micro_batches(self) -> int:
        """Number of micro-batches of a step, over all replicas."""
        return self.num_replicas * self.schedule.num_micro_batches

    @property
    def first_micro_batch(self) -> int:
        """Index of this replica's first micro-batch among those of all replicas."""
        return self.layout.first_micro_batch

    def holders(self, stage: int) -> tuple[int, ...]:
        """Return the ranks that hold copies of a stage: replica after replica, pipe after pipe."""
        return self.layout.holders[stage]

    def speaks_for(self, parameter: torch.nn.Parameter) -> bool:
        """Return whether this rank is the first rank that trains a parameter."""
        return self.layout.is_first_holder(parameter)

    def _check_trained(self) -> None:
        for name, parameter, was_trained in self._trained_at_start:
            if parameter.requires_grad != was_trained:
                raise InvalidModel(
                    f"parameter {name!r} has requires_grad={parameter.requires_grad}, and had {was_trained} when the "
                    "training began: start a new training run"
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
            raise InvalidState(f"the pipeline cannot run a step any more: {self._failure}; make a new executor")
        random_state = torch.get_rng_state()
        try:
            specs = [self._probe.specs_of(each.inputs, options.is_training) for each in micro_batches]
            step = Step(self.layout, self._channels, self._copies, micro_batches, specs, options)
            with _native.region(STEP if options.is_training else EVALUATION, options.number):
                step.run(actions, self._handlers)
                if options.is_training:
                    with _native.region(GRADIENTS, options.number):
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
        """Keep the reason of the failure, and abort the communicators, so that the other ranks fail before their
        deadlines."""
        self._failure = f"{type(error).__name__}: {error}"
        if not isinstance(error, Aborted):
            for comm in (*self._copies.comms, *self._comms, self.comm):
                comm.abort(f"a training step failed on {self.layout.name_of(self.rank)}: {self._failure}")

    def _check(self, micro_batches: Sequence[MicroBatch]) -> None:
        count = self.schedule.num_micro_batches
        if len(micro_batches) != count:
            raise InvalidArgument(f"the table is for {count} micro-batches, not {len(micro_batches)}")
        for number, each in enumerate(micro_batches):
            absent = [name for name in self.split.batch_inputs if name not in each.inputs]
            if absent:
                raise InvalidArgument(f"micro-batch {number} must have input {absent[0]!r} of the model")
