"""A kind that records micro-batches and their stages, and a backward pass with another name."""

from __future__ import annotations

from typing import Any

from hocket.pipeline.action import Action
from hocket.pipeline.kind import Kind, Need, Stash, register_kind

NOTED: list[tuple[int, int]] = []


def record(step: Any, action: Action) -> None:
    NOTED.extend((action.stage, micro_batch) for micro_batch in action.micro_batches if step.stage(action.stage))


def run_backward(step: Any, action: Action) -> None:
    for micro_batch in action.micro_batches:
        step.backward(action, micro_batch, inputs_only=False)


register_kind(
    Kind("TOY", "records a micro-batch", needs=(Need(("F",)),), cost="TOY", is_of_forward=True, execute=record)
)
register_kind(
    Kind(
        "TOY_B",
        "backward pass that replaces B",
        needs=(
            Need(("F",)),
            Need(("B", "I"), stages="outputs", carries="gradient"),
            Need(("RECV_B",), required=False),
            Need(("R",), required=False),
        ),
        cost="TOY_B",
        instead=("B",),
        frees=(Stash("activation"), Stash("input", only_with="R")),
        counts_as="B",
        execute=run_backward,
    )
)
