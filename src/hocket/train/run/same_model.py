"""Make sure that all ranks train the same model by the same schedule, from the same parameters."""

from __future__ import annotations

import hashlib
from itertools import zip_longest

import torch

from hocket.comm import Communicator
from hocket.errors import InvalidArgument
from hocket.pipeline.schedule import PipelineSchedule
from hocket.train.model.split_model import SplitModel


def check_same_model(comm: Communicator, split: SplitModel, schedule: PipelineSchedule, messages: str | None) -> None:
    """Check that all ranks have the same model, schedule and form of messages; raises InvalidArgument on every rank."""
    own = (
        [f"{name} {each.dtype} {tuple(each.shape)}" for name, each in split.parameters().items()],
        [f"{stage.inputs} -> {stage.outputs}" for stage in split.stages],
        [f"{schedule.name} {hash_of(schedule)[:8]}"],
        [repr(messages)],
    )
    words = ("parameters", "stages", "schedules", "messages=")
    for rank, other in enumerate(comm.all_gather_object(own)):
        for what, mine, theirs in zip(words, own, other, strict=True):
            if mine != theirs:
                pairs = zip_longest(mine, theirs, fillvalue="nothing")
                here, there = next(pair for pair in pairs if pair[0] != pair[1])
                raise InvalidArgument(
                    f"rank {comm.rank} and rank {rank} must have equal {what}: {here} on rank {comm.rank}, "
                    f"{there} on rank {rank}"
                )


def hash_of(schedule: PipelineSchedule) -> str:
    """Return a hash of the table's actions, equal in every process."""
    content = (schedule.placement, schedule.num_micro_batches, schedule.edges, schedule.actions)
    return hashlib.sha256(repr(content).encode()).hexdigest()


def broadcast_state(comm: Communicator, split: SplitModel) -> None:
    """Send the parameters and buffers of rank 0 to all ranks."""
    tensors = [*split.parameters().values(), *split.buffers().values()]
    if isinstance(split.model, torch.nn.Module):  # also those that no stage uses
        tensors += [*split.model.parameters(), *split.model.buffers()]
    if comm.size > 1:
        for tensor in {id(each): each for each in tensors}.values():
            comm.broadcast(tensor.detach(), 0)
