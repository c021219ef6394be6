"""How verbs are declared: a verb's docstring is its help text."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import typer

optional = partial(typer.Option, show_default=False)
"""An option whose help text says what happens without it."""
argument = partial(typer.Argument, show_default=False)


def add_verb(group: typer.Typer, verb: Callable[..., object], name: str | None = None, **settings: Any) -> None:
    """Add a verb to the command or to a group of verbs.

    Args:
        group: the command, or a group.
        verb: function that runs the verb. Its docstring is the help text; examples at its end, below "Examples:", are
            shown after the options.
        name: name of the verb; None: that of the function.
        settings: more arguments of `typer.Typer.command`.
    """
    text, colon, examples = (inspect.getdoc(verb) or "").partition("\n\nExamples:\n")
    epilog = f"\b\nExamples:\n{examples}" if colon else None
    group.command(name or verb.__name__, help=text, epilog=epilog, **settings)(verb)
