"""Elements of an array with their places, and the codecs of their messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.errors import InvalidArgument
from hocket.suggestions import unknown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
            some), or "packed" (the gaps between places with as many bits as they need: about log2(1 / density) + 2).
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

    @property
    def rounds(self) -> bool:
        """Whether values change."""
        return self.values != "float32"
