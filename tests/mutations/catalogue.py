"""The list of mutations: small bugs, each of which `make test` has to catch."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
NATIVE = "native"


class BadMutation(Exception):
    """A mutation does not fit its file."""


@dataclass(frozen=True)
class Mutation:
    """One bug.

    Args:
        id: its name.
        room: the folder of src/hocket that it is in, or "native".
        file: that is changed, from the root of the project.
        old: text that occurs once in it.
        new: text that takes its place.
        why: what a user would notice.
    """

    id: str
    room: str
    file: str
    old: str
    new: str
    why: str

    @property
    def is_native(self) -> bool:
        """Whether the native core has to be built anew."""
        return self.room == NATIVE

    @property
    def module(self) -> str:
        """Name of the Python module that is changed."""
        return ".".join(Path(self.file).relative_to("src").with_suffix("").parts)

    def apply(self, text: str) -> str:
        """Return the content of the file with the bug in it.

        Raises:
            BadMutation: the old text does not occur exactly once.
        """
        count = text.count(self.old)
        if count != 1:
            raise BadMutation(f"{self.id}: the old text must occur once in {self.file}, not {count} times")
        return text.replace(self.old, self.new)


def load() -> Sequence[Mutation]:
    """Read the list."""
    with Path(__file__).with_name("mutations.toml").open("rb") as file:
        return [Mutation(**each) for each in tomllib.load(file)["mutation"]]
