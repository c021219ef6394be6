"""A mistake that a user makes, and what hocket has to say of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Args:
        written: what the user wrote: a statement, a command, or a command that runs `program`.
        kind: class of the error, or the exit code of a command.
        names: words that the message has to hold: what was wrong, what would be right.
        program: text of the program that the command runs, as program.py.
        varies: whether the message depends on the machine, so that no page can show it.
        ranks: the ranks that hear of it; of a statement on two ranks.
    """

    written: str
    kind: str | int
    names: tuple[str, ...]
    program: str = ""
    varies: bool = False
    ranks: tuple[int, ...] = (0, 1)


@dataclass(frozen=True)
class Outcome:
    """What came of a mistake.

    Args:
        kind: class of the error, or the exit code of a command; "" where nothing was wrong.
        message: what was said.
        left: files that were not there before.
    """

    kind: str | int
    message: str
    left: tuple[str, ...] = ()
