"""Additions on the device that has the tensors, beside which the host sends and receives."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Adder(Protocol):
    """Adds tensors, perhaps later; `pipelined_ring` sends and receives meanwhile."""

    def add(self, into: torch.Tensor, other: torch.Tensor) -> Any:
        """Start ``into += other`` after everything that was started before; return a token for `wait`."""

    def wait(self, token: Any) -> None:
        """Wait until an addition is complete, so that its result can be sent and its operands be overwritten."""


class HostAdder:
    """Adds at once, on the host."""

    def add(self, into: torch.Tensor, other: torch.Tensor) -> None:
        """Add."""
        into += other

    def wait(self, token: None) -> None:
        """Return at once."""


class DeviceAdder:
    """Adds by kernels on a stream of its own.

    Args:
        device: the tensors' device.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def add(self, into: torch.Tensor, other: torch.Tensor) -> torch.cuda.Event:
        """Launch the kernel, and record an event behind it."""
        self._stream.wait_stream(torch.cuda.current_stream(into.device))
        with torch.cuda.stream(self._stream):
            into += other
            event: torch.cuda.Event = self._stream.record_event()
            return event

    def wait(self, token: torch.cuda.Event) -> None:
        """Wait for the event."""
        token.synchronize()


def adder_for(device: torch.device) -> Adder:
    """Return what adds tensors of a device."""
    return DeviceAdder(device) if device.type == "cuda" else HostAdder()
