"""Elements of an array with their places, and the codecs of their messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.errors import InvalidArgument
from hocket.suggestions import unknown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_HEAD_NBYTES = 4
_SCALED = 128
"""Values of int8 that share a scale."""
MOST_IN_WORDS = 4096
"""Up to so many elements a rank, packed places are sent as words: to tell the lengths of messages would take longer."""
PLACE_CODECS = ("words", "halves", "packed")
VALUE_CODECS = ("float32", "bfloat16", "int8")


@dataclass(frozen=True)
class Elements:
    """Elements of an array of single precision.

    Args:
        places: of the elements, ascending; uint32.
        values: as many; float32.
    """

    places: NDArray[np.uint32]
    values: NDArray[np.float32]


@dataclass(frozen=True)
class ElementCodec:
    """How elements become bytes.

    Args:
        places: "words" (32 bits each), "halves" (16 bits each, and 8 bytes for every 65,536 places in which there are
            some), or "packed" (the gaps between places with as many bits as they need: about log2(1 / density) + 2;
            where a rank sends up to 4,096 elements, words, whose lengths ranks need not tell each other).
        values: "float32" (exact), "bfloat16", or "int8" (with a scale for every 128 values). The rounding error of the
            last two stays in the residual of the rank that has rounded.

    Raises:
        InvalidArgument: there is no such codec.

    Examples:
        >>> from hocket.collectives.sparse.elements import ElementCodec
        >>> ElementCodec(values="bfloat16")
        ElementCodec(places='packed', values='bfloat16')
    """

    places: str = "packed"
    values: str = "float32"

    def __post_init__(self) -> None:
        for what, name, known in (("places", self.places, PLACE_CODECS), ("values", self.values, VALUE_CODECS)):
            if name not in known:
                raise InvalidArgument(unknown(f"codec of {what}", name, known))

    @property
    def numbers(self) -> tuple[int, int]:
        """The numbers of both in the native core."""
        return PLACE_CODECS.index(self.places), VALUE_CODECS.index(self.values)

    def for_count(self, k: int) -> ElementCodec:
        """Return the codec that is used if each rank sends so many elements.

        Examples:
            >>> from hocket.collectives.sparse.elements import ElementCodec
            >>> ElementCodec().for_count(100), ElementCodec().for_count(10_000)
            (ElementCodec(places='words', values='float32'), ElementCodec(places='packed', values='float32'))
        """
        return ElementCodec("words", self.values) if self.places == "packed" and k <= MOST_IN_WORDS else self

    def nbytes_of(self, counts: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the lengths of messages with so many elements; None: they depend on the elements.

        Examples:
            >>> from hocket.collectives.sparse.elements import ElementCodec
            >>> ElementCodec("words", "int8").nbytes_of(np.array([0, 1, 129]))
            array([  4,  13, 657])
        """
        if self.places != "words":
            return None
        of_values = {"float32": 4 * counts, "bfloat16": 2 * counts, "int8": counts + 4 * (-(-counts // _SCALED))}
        return _HEAD_NBYTES + 4 * counts + of_values[self.values]

    @property
    def rounds(self) -> bool:
        """Whether values change."""
        return self.values != "float32"
