"""Quantizers: how an array becomes few bytes, and those an array again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket import _native
from hocket.collectives.compressed.quantized import Quantizer, combine, most_nbytes
from hocket.errors import InvalidArgument, MissingPackage

if TYPE_CHECKING:
    from numpy.random import Generator as Random
    from numpy.typing import NDArray

    from hocket.collectives.compressed.quantized import Applied

_LARGEST_INT8 = 127


@dataclass(frozen=True)
class Cast(Quantizer):
    """Elements of half precision.

    Args:
        dtype: "float16" or "bfloat16".

    Raises:
        InvalidArgument: it is another type.

    Examples:
        >>> x = np.array([1.0 + 2.0**-9], np.float32)
        >>> state = hk.ResidualState()
        >>> _ = comm.compressed_all_reduce(x, "cast(bfloat16)", state=state)  # 8 bits of mantissa
        >>> x, state.residual
        (array([2.], dtype=float32), array([0.00195312], dtype=float32))
    """

    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        if not isinstance(self.dtype, str) or self.dtype not in ("float16", "bfloat16"):
            raise InvalidArgument(f"dtype must be float16 or bfloat16, not {self.dtype!r}")

    def nbytes_of(self, size: int) -> int | None:
        """See `Quantizer.nbytes_of`."""
        return 2 * size

    def encode(self, x: NDArray[np.float32], random: Random) -> NDArray[np.uint8]:
        """See `Quantizer.encode`."""
        if self.dtype == "bfloat16":
            return _native.bfloat16(x).view(np.uint8)
        with np.errstate(over="ignore"):
            return np.clip(x, -65504, 65504).astype(np.float16).view(np.uint8)

    def apply(self, message: NDArray[np.uint8], x: NDArray[np.float32], how: Applied) -> bool:
        """See `Quantizer.apply`."""
        if len(message) != self.nbytes_of(len(x)):
            return False
        if self.dtype == "bfloat16":
            return _native.apply_bfloat16(message.view(np.uint16), x, how)
        combine(x, message.view(np.float16), how)
        return True


@dataclass(frozen=True)
class Qsgd(Quantizer):
    """Integers from -levels to levels and a norm for each group, rounded by chance so that the mean is exact.

    Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization and encoding", arXiv 1610.02132, with
    the Euclidean norm of each group.

    Args:
        levels: from 1 to 127.
        group: number of elements that share a norm.
        seed: of the random numbers.

    Raises:
        InvalidArgument: an argument is out of range.

    Examples:
        >>> x = np.full(1000, 3.0, np.float32)
        >>> _ = comm.compressed_all_reduce(x, "qsgd")
        >>> 0 < float(abs(x - 6).max()) < 2, 5.9 < float(x.mean()) < 6.1
        (True, True)
    """

    levels: int = 127
    group: int = 512
    seed: int = 0

    is_unbiased = True

    def __post_init__(self) -> None:
        if type(self.levels) is not int or not 1 <= self.levels <= _LARGEST_INT8:
            raise InvalidArgument(f"levels must be an int from 1 to {_LARGEST_INT8}, not {self.levels!r}")
        if type(self.group) is not int or self.group < 1:
            raise InvalidArgument(f"group must be an int of 1 or more, not {self.group!r}")
        if type(self.seed) is not int or self.seed < 0:
            raise InvalidArgument(f"seed must be an int of 0 or more, not {self.seed!r}")

    def nbytes_of(self, size: int) -> int | None:
        """See `Quantizer.nbytes_of`."""
        return 4 * -(-size // self.group) + size

    def encode(self, x: NDArray[np.float32], random: Random) -> NDArray[np.uint8]:
        """See `Quantizer.encode`."""
        return _native.qsgd(x, self.group, self.levels, int(random.integers(1 << 63)))

    def apply(self, message: NDArray[np.uint8], x: NDArray[np.float32], how: Applied) -> bool:
        """See `Quantizer.apply`."""
        return _native.apply_qsgd(message, self.group, self.levels, x, how)


@dataclass(frozen=True)
class OneBit(Quantizer):
    """The sign of each element, and the mean magnitude of each group.

    Seide et al., "1-bit stochastic gradient descent", Interspeech 2014; with a residual as in Karimireddy et al.,
    arXiv 1901.09847.

    Args:
        group: number of elements that share a magnitude.

    Raises:
        InvalidArgument: it is not a multiple of 8.

    Examples:
        >>> x = np.array([1.0, -3.0, 2.0, -2.0] * 2, np.float32)
        >>> _ = comm.compressed_all_reduce(x, "one-bit")
        >>> x
        array([ 4., -4.,  4., -4.,  4., -4.,  4., -4.], dtype=float32)
    """

    group: int = 1024

    def __post_init__(self) -> None:
        if type(self.group) is not int or self.group < 8 or self.group % 8:
            raise InvalidArgument(f"group must be a multiple of 8, not {self.group!r}")

    def nbytes_of(self, size: int) -> int | None:
        """See `Quantizer.nbytes_of`."""
        return 4 * -(-size // self.group) + -(-size // 8)

    def encode(self, x: NDArray[np.float32], random: Random) -> NDArray[np.uint8]:
        """See `Quantizer.encode`."""
        return _native.one_bit(x, self.group)

    def apply(self, message: NDArray[np.uint8], x: NDArray[np.float32], how: Applied) -> bool:
        """See `Quantizer.apply`."""
        return _native.apply_one_bit(message, self.group, x, how)


@dataclass(frozen=True)
class Zfp(Quantizer):
    """zfp's compression of floating point arrays, to a tolerance or a rate (Lindstrom, TVCG 2014); needs `zfpy`.

    Args:
        tolerance: largest absolute error; 0: it is exact.
        rate: bits of an element instead.

    Raises:
        InvalidArgument: both or none are given, or one is out of range.
        MissingPackage: zfpy is not installed.

    Examples:
        >>> hk.collectives.compressor("zfp(rate=8)")
        Zfp(tolerance=None, rate=8)
    """

    tolerance: float | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        if (self.tolerance is None) == (self.rate is None):
            raise InvalidArgument("give either tolerance, the largest error, or rate, the bits of an element")
        if self.tolerance is not None and not (_is_number(self.tolerance) and 0 <= self.tolerance < float("inf")):
            raise InvalidArgument(f"tolerance must be a finite number of 0 or more, not {self.tolerance!r}")
        if self.rate is not None and not (_is_number(self.rate) and 1 <= self.rate <= 32):
            raise InvalidArgument(f"rate must be a number of bits from 1 to 32, not {self.rate!r}")
        _zfpy()

    def nbytes_of(self, size: int) -> int | None:
        """See `Quantizer.nbytes_of`."""
        return None

    def encode(self, x: NDArray[np.float32], random: Random) -> NDArray[np.uint8]:
        """See `Quantizer.encode`."""
        if not len(x):
            return np.empty(0, np.uint8)
        packed = _zfpy().compress_numpy(np.ascontiguousarray(x), write_header=False, **self._how)
        return np.frombuffer(packed, np.uint8)

    def apply(self, message: NDArray[np.uint8], x: NDArray[np.float32], how: Applied) -> bool:
        """See `Quantizer.apply`."""
        if not len(x):
            return not len(message)
        if len(message) > most_nbytes(len(x)):
            return False
        zfpy = _zfpy()
        try:
            found = zfpy._decompress(
                # zfp reads on behind the end of a damaged message: so there are zeros.
                message.tobytes().ljust(most_nbytes(len(x)), b"\0"),
                zfpy.dtype_to_ztype(np.dtype(np.float32)),
                (len(x),),
                **self._how,
            )
        except ValueError:
            return False
        combine(x, found, how)
        return True

    @property
    def _how(self) -> dict[str, Any]:
        if self.rate is not None:
            return {"rate": self.rate}
        return {"tolerance": self.tolerance} if self.tolerance else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _zfpy() -> Any:
    try:
        import zfpy
    except ImportError:
        raise MissingPackage("zfp needs zfpy: pip install 'hocket[zfp]'") from None
    return zfpy
