"""The gradients of this rank's copies of stages, and their sums over ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import nn

from hocket.comm import Communicator
from hocket.comm.unseen import warn_at_the_users_line
from hocket.train.engines.engine import SummingEngine
from hocket.train.engines.registry import EngineChoice
from hocket.train.model.split_model import Tie
from hocket.train.run.gradient_sync import GradientSync
from hocket.train.run.gradients import StageGradients, added
from hocket.train.run.layout import Layout


class Copies:
    """The gradients of this rank's copies of stages.

    The gradients of parameters that stages share are summed separately. In exact mode, the gradient of every
    micro-batch is sent to the first stage that uses the parameter, and the sum is sent back at the end of the step.
    Otherwise each stage sums its own gradients, and the sums are added at the end.

    Args:
        layout: layout of this rank.
        comm: a communicator of the ranks of all replicas.
        exact: see `PipelineExecutor`.
        timeout_s: timeout of every wait, in seconds.
        engine: engine that sums gradients of copies on several ranks; with one that changes the parameters itself,
            nothing is summed.
    """

    def __init__(self, layout: Layout, comm: Communicator, exact: bool, timeout_s: float, engine: EngineChoice) -> None:
        schedule = layout.schedule
        self._split, self._holders = layout.split, layout.holders
        self._comm, self._exact, self._timeout_s, self._engine = comm, exact, timeout_s, engine
        self._ties = [tie for tie in self._split.ties if tie.parameter.requires_grad]
        self._gradients: dict[tuple[int, int], StageGradients] = {}
        forward = schedule.columns.counted_as("F")
        for pipe, stage in schedule.placement.stages_of(layout.rank):
            order = sorted(
                micro_batch
                for actions in schedule.actions
                for action in actions
                if action.kind in forward and action.stage == stage and action.pipe == pipe
                for micro_batch in action.micro_batches
            )
            self._gradients[pipe, stage] = StageGradients(self._trained(stage), self._exact, order)
        self.comms: list[Communicator] = []
        self._syncs = self._make_syncs()
        if comm.rank == 0 and comm.size > 1 and not self._syncs and engine != EngineChoice() and not engine.updates:
            warn_at_the_users_line(
                f"engine {engine.name!r} has nothing to sum: it sums the gradients of copies, and these ranks have one "
                'copy of the model together; strategy="data" gives each a copy'
            )
        self._tie_comms = [self._group(self._holders_of(tie)) for tie in self._ties]

    def gradients(self, pipe: int, stage: int) -> StageGradients:
        """Return the gradients of one copy."""
        return self._gradients[pipe, stage]

    def reset(self) -> None:
        """Reset the gradients for a new step."""
        for each in self._gradients.values():
            each.reset()

    def start(self, stage: int) -> None:
        """Start the sum of a stage's gradients, when it was called for all of this rank's copies."""
        if stage in self._syncs:
            self._syncs[stage].start()

    def wait(self, stage: int) -> None:
        """Wait for the sum of a stage's gradients."""
        if stage in self._syncs:
            self._syncs[stage].wait()

    def engines(self) -> list[SummingEngine]:
        """Return the engines that sum on this rank."""
        return [each.engine for each in self._syncs.values() if each.engine is not None]

    def close(self) -> None:
        """Close the engines. Idempotent."""
        for each in self._syncs.values():
            each.close()

    def finish(self) -> None:
        """Put every gradient into its parameter's ``.grad``."""
        for stage in range(self._split.num_stages):
            copies = self._copies_of(stage)
            if copies and stage not in self._syncs:
                for other in copies[1:]:  # all copies are on this rank
                    copies[0].sums = added(copies[0].sums, other.sums)
            for copy in copies[:1]:
                for parameter, total in zip(copy.parameters, copy.sums, strict=True):
                    parameter.grad = total
        for tie, comm in zip(self._ties, self._tie_comms, strict=True):
            if comm is not None:
                self._sum_tied(tie, comm)

    def _sum_tied(self, tie: Tie, comm: Communicator) -> None:
        """Put the whole gradient of a shared parameter into its ``.grad``, on all ranks that use it."""
        parameter = tie.parameter
        first, *others = tie.stages
        # the gradient, and behind it whether one exists
        both = torch.zeros(parameter.numel() + 1, dtype=parameter.dtype, device=parameter.device)
        stages = (first,) if self._exact else (first, *others)
        for stage in stages:
            copies = self._copies_of(stage)
            is_summed = self._exact or stage not in self._syncs  # all copies are on this rank: `finish` has summed them
            for copy in copies[:1] if is_summed else copies:
                total = copy.sums[_index(copy.parameters, parameter)]
                if total is not None:
                    both[:-1] += total.reshape(-1)
                    both[-1] = 1
        if self._exact:
            comm.broadcast(both, self._holders_of(tie).index(self._holders[first][0]), timeout=self._timeout_s)
        else:
            comm.all_reduce(both, timeout=self._timeout_s)
        parameter.grad = both[:-1].view(parameter.shape) if both[-1] > 0 else None

    def _trained(self, stage: int) -> list[nn.Parameter]:
        """Return the parameters whose gradients a stage sums."""
        elsewhere = {id(tie.parameter) for tie in self._ties if self._exact and stage in tie.stages[1:]}
        parameters = self._split.stages[stage].parameters().values()
        return [each for each in parameters if each.requires_grad and id(each) not in elsewhere]

    def _make_syncs(self) -> dict[int, GradientSync]:
        """Return a sum for every stage that several ranks hold. All ranks make communicators in the same order."""
        syncs: dict[int, GradientSync] = {}
        if self._engine.updates:  # gradients stay those of the rank
            return syncs
        apart = set() if self._exact else {id(tie.parameter) for tie in self._ties}
        for stage, holders in enumerate(self._holders):
            ranks = Counter(holders)
            comm = self._group(list(ranks)) if len(ranks) > 1 else None
            if comm is not None:
                copies = self._copies_of(stage)
                numbers = [number for number, each in enumerate(copies[0].parameters) if id(each) not in apart]
                names = self._names(stage, [copies[0].parameters[number] for number in numbers])
                syncs[stage] = GradientSync(
                    comm, list(ranks.values()), copies, numbers, names, self._exact, self._timeout_s, self._engine
                )
        return syncs

    def _names(self, stage: int, parameters: Sequence[nn.Parameter]) -> list[str]:
        names = {id(each): name for name, each in self._split.stages[stage].parameters().items()}
        return [names[id(each)] for each in parameters]

    def _copies_of(self, stage: int) -> list[StageGradients]:
        return [each for (_, number), each in sorted(self._gradients.items()) if number == stage]

    def _holders_of(self, tie: Tie) -> list[int]:
        return sorted({rank for stage in tie.stages for rank in self._holders[stage]})

    def _group(self, ranks: Sequence[int]) -> Communicator | None:
        """Return a communicator of some ranks; None on other ranks."""
        if self._comm.rank not in ranks:
            return None
        self.comms.append(self._comm.group(list(ranks)))
        return self.comms[-1]


def _index(parameters: list[nn.Parameter], parameter: nn.Parameter) -> int:
    return next(number for number, each in enumerate(parameters) if each is parameter)
