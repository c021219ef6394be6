"""What `hocket simulate --json` prints, and how it is read again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from hocket.errors import InvalidArgument
from hocket.session.simulated_step import SimulatedStep
from hocket.typed_json import record_from
from hocket.versioned_json import Head

HEAD = Head("hocket simulated step, version ", 1, InvalidArgument)


@dataclass(frozen=True)
class SimulationFile:
    """A simulated step, and what was simulated.

    Args:
        step: name of the step.
        num_ranks: number of virtual ranks.
        source: where the operations of the step come from.
        fabric: the links between the ranks, as a text.
        simulated: the times.
    """

    step: str
    num_ranks: int
    source: str
    fabric: str
    simulated: SimulatedStep

    def to_json(self) -> str:
        """Return one JSON object."""
        return json.dumps({HEAD.key: HEAD.text, **asdict(self)})

    @classmethod
    def from_json(cls, text: str, place: str) -> SimulationFile:
        """Read the output of `to_json`.

        Args:
            text: JSON.
            place: origin of the text, for messages.

        Raises:
            InvalidArgument: the text is no such object; names the place, and the field that is wrong.
        """
        _, content = HEAD.parse(text, place)
        try:
            return record_from(cls, content)
        except KeyError as error:
            raise InvalidArgument(f"{place}: {error} is missing") from None
        except TypeError as error:
            raise InvalidArgument(f"{place}: {error}") from None
