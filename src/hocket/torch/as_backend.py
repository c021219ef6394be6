"""The part of torch's `Backend` interface that moves no data. A process group written in Python is its own backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from hocket.errors import UnsupportedCall


class AsBackend:
    """Stateless methods of torch's `Backend` and `ProcessGroup`: capabilities, and calls that hocket refuses."""

    supports_coalescing = False  # torch then calls the coalesced operations, which have the same effect
    supports_shrinking = False
    supports_splitting = True
    supports_time_estimate = False
    use_pg_for_symm_mem_rendezvous = False

    def setUsePgForSymmMemRendezvous(self, value: bool) -> None:
        self.use_pg_for_symm_mem_rendezvous = value

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Do nothing: ranks are connected when the group is made."""

    @property
    def mem_allocator(self) -> NoReturn:
        raise _refusal("mem_allocator", "allocate_tensor() makes tensors in shared memory")

    def memory_stats(self) -> NoReturn:
        raise _refusal("memory_stats()", "read RssShmem in /proc/self/status for shared memory")

    def suspend(self) -> NoReturn:
        raise _refusal("suspend()", "quiesce() of its communicator waits until nothing is in flight")

    def resume(self) -> NoReturn:
        raise _refusal("resume()", "a group cannot be suspended either")

    def shrink(self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, opts_override: Any = None) -> NoReturn:
        raise _refusal("shrink()", "shrink() of its communicator makes a communicator without the lost ranks")

    def _register_on_completion_hook(self, hook: object) -> NoReturn:
        raise _refusal("completion hooks", "records() of its communicator say when operations began and ended")


def _refusal(what: str, instead: str) -> UnsupportedCall:
    return UnsupportedCall(f"hocket process groups do not support {what}; {instead}")
