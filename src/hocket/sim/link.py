"""The cost of a message: Hockney's model, with a cost for reducing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hocket.errors import InvalidArgument


@dataclass(frozen=True)
class Link:
    """A connection between two ranks. Each rank sends one message at a time, and receives one at a time.

    Args:
        alpha_s: seconds that a message of any size takes.
        beta_s: seconds per byte of a message.
        gamma_s: seconds per byte for reducing one array into another.

    Examples:
        >>> link = hk.sim.Link(alpha_s=2e-6, beta_s=1e-9)
        >>> f"{link.message_s(nbytes=3000):.1e} s"
        '5.0e-06 s'
    """

    alpha_s: float
    beta_s: float
    gamma_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("alpha_s", "beta_s", "gamma_s"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and 0 <= value < math.inf):
                raise InvalidArgument(f"{name} must be a number of seconds, 0 or more, not {value!r}")

    @classmethod
    def of(cls, latency_us: float, bandwidth_gb_s: float, reduce_gb_s: float = math.inf) -> Link:
        """Make a link from its usual figures: latency in microseconds, bandwidth of sending and of reducing in GB/s.

        Examples:
            >>> hk.sim.Link.of(latency_us=2, bandwidth_gb_s=1) == hk.sim.Link(alpha_s=2e-6, beta_s=1e-9)
            True
        """
        if not (latency_us >= 0 and bandwidth_gb_s > 0 and reduce_gb_s > 0):
            raise InvalidArgument(
                "a link must have a latency of 0 us or more and bandwidths above 0 GB/s, not "
                f"{latency_us} us, {bandwidth_gb_s} and {reduce_gb_s} GB/s"
            )
        return cls(latency_us * 1e-6, 1e-9 / bandwidth_gb_s, 1e-9 / reduce_gb_s)

    def message_s(self, nbytes: float) -> float:
        """Return the seconds that a message takes."""
        return self.alpha_s + self.beta_s * nbytes

    def reduce_s(self, nbytes: float) -> float:
        """Return the seconds that reducing this number of bytes takes."""
        return self.gamma_s * nbytes
