"""One entry of a pipeline schedule: the kind of an action, its stage and its micro-batches."""

from __future__ import annotations

import re
from typing import NamedTuple

NONE = -1
_N = r"(\d{1,9})"  # fits into 32 bits
_TOKEN = re.compile(rf"(\+)?(?:{_N}:)?{_N}([A-Z]+(?:_[A-Z]+)*)(?:{_N}(?:-{_N})?)?(?:>{_N})?(?:@{_N})?")


class Action(NamedTuple):
    """One action in the program of a rank.

    Attributes:
        kind: name of a registered kind, such as "F".
        stage: stage of the action.
        micro_batch: first micro-batch of the action; -1 for kinds that act on a stage once per step.
        width: number of consecutive micro-batches.
        pipe: pipeline of the action; there are several if stages have several copies.
        step: training step, in schedules of several steps.
        peer: stage at the other end of a message; -1 for other actions.
        with_previous: whether the action overlaps with the action before it.

    Examples:
        >>> action = hk.pipeline.Action("F", stage=2, micro_batch=0, width=2)
        >>> str(action)
        '2F0-1'
        >>> hk.pipeline.Action.parse("2SEND_F0>3").peer
        3
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
        """The micro-batches of the action."""
        return range(self.micro_batch, self.micro_batch + self.width)

    def __str__(self) -> str:
        """Return the action as text: `[+][pipe:]stage KIND [micro_batch[-last]][>peer][@step]` without blanks."""
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
        """Parse the text of an action, or return None. Kinds and numbers are not checked: see `validate`."""
        match = _TOKEN.fullmatch(text)
        if match is None:
            return None
        plus, pipe, stage, kind, first, last, peer, step = match.groups()
        micro_batch = int(first) if first else NONE
        return cls(
            kind,
            int(stage),
            micro_batch,
            int(last) - micro_batch + 1 if last else 1,
            int(pipe or 0),
            int(step or 0),
            int(peer) if peer else NONE,
            plus is not None,
        )
