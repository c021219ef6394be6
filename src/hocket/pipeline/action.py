"""One entry of a pipeline schedule: what a rank does, for which stage and which micro-batches."""

from __future__ import annotations

import re
from typing import NamedTuple

NONE = -1
_N = r"(\d{1,9})"  # what 32 bits hold
_TOKEN = re.compile(rf"(\+)?(?:{_N}:)?{_N}([A-Z]+(?:_[A-Z]+)*)(?:{_N}(?:-{_N})?)?(?:>{_N})?(?:@{_N})?")


class Action(NamedTuple):
    """What a rank does at one place of its program.

    Attributes:
        kind: name of a registered kind, such as "F".
        stage: that it works on.
        micro_batch: the first one that it works on; -1 for kinds that concern a stage, once a step.
        width: micro-batches from there on.
        pipe: the pipeline that it belongs to; more than one where stages have several copies.
        step: of training, in schedules of several steps.
        peer: the stage at the other end, of a message; -1 otherwise.
        with_previous: whether it is done together with the action before it, so that they overlap.
    """

    kind: str
    stage: int
    micro_batch: int = NONE
    width: int = 1
    pipe: int = 0
    step: int = 0
    peer: int = NONE
    with_previous: bool = False

    @property
    def micro_batches(self) -> range:
        """Those that it works on."""
        return range(self.micro_batch, self.micro_batch + self.width)

    def __str__(self) -> str:
        """The action as text: `[+][pipe:]stage KIND [micro_batch[-last]][>peer][@step]` without blanks."""
        return "".join(
            (
                "+" if self.with_previous else "",
                f"{self.pipe}:" if self.pipe else "",
                f"{self.stage}{self.kind}",
                str(self.micro_batch) if self.micro_batch != NONE else "",
                f"-{self.micro_batch + self.width - 1}" if self.width > 1 else "",
                f">{self.peer}" if self.peer != NONE else "",
                f"@{self.step}" if self.step else "",
            )
        )

    @classmethod
    def parse(cls, text: str) -> Action | None:
        """Return what `str` wrote, or None if it is no action. Kinds and numbers are not checked: see `validate`."""
        match = _TOKEN.fullmatch(text)
        if match is None:
            return None
        joined, pipe, stage, kind, first, last, peer, step = match.groups()
        micro_batch = int(first) if first else NONE
        return cls(
            kind,
            int(stage),
            micro_batch,
            int(last) - micro_batch + 1 if last else 1,
            int(pipe or 0),
            int(step or 0),
            int(peer) if peer else NONE,
            joined is not None,
        )
