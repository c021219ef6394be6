"""How the ranks of a process group find each other: through torch's store."""

from __future__ import annotations

import os
import secrets
import time
from datetime import timedelta
from pathlib import Path

from torch._C._distributed_c10d import Store

from hocket.errors import BackendUnavailable, CommTimeout

_POLL_S = 0.002


def agree_on_name(store: Store, rank: int, size: int, timeout_s: float) -> str:
    """Agree through torch's store where to meet, after making sure that all ranks are on one host.

    The store of an elastic agent outlives the ranks, and may hold what earlier ones have written: every rank answers to
    a word that only this attempt knows.
    """
    word = secrets.token_hex(16)
    if rank == 0:
        name = f"hocket-{word}"
        hosts = {peer: _tell(store, name, peer, timeout_s) for peer in range(1, size)}
        elsewhere = [peer for peer, host in hosts.items() if host != _host_identity()]
        verdict = f"elsewhere {elsewhere}" if elsewhere else name
        store.set(f"hocket/verdict/{name}", verdict)
    else:
        patience = timedelta(seconds=timeout_s)
        store.set(f"hocket/host/{rank}", f"{word} {_host_identity()}")
        _wait_for(store, f"hocket/name/{word}", patience, rank, 0, timeout_s)
        name = store.get(f"hocket/name/{word}").decode()
        store.set(f"hocket/heard/{name}/{rank}", "")
        _wait_for(store, f"hocket/verdict/{name}", patience, rank, 0, timeout_s)
        verdict = store.get(f"hocket/verdict/{name}").decode()
    if verdict.startswith("elsewhere"):
        raise BackendUnavailable(
            f"ranks {verdict.removeprefix('elsewhere ')} are on another host or in another container than rank 0; the "
            "hocket backend of this version connects the ranks of one host"
        )
    return verdict


def _tell(store: Store, name: str, peer: int, timeout_s: float) -> str:
    """Tell a rank the name until it has heard it; return its host."""
    deadline = time.monotonic() + timeout_s
    told = ""
    while True:
        _wait_for(
            store, f"hocket/host/{peer}", timedelta(seconds=max(0.001, deadline - time.monotonic())), 0, peer, timeout_s
        )
        word, _, host = store.get(f"hocket/host/{peer}").decode().partition(" ")
        if word != told:  # at first perhaps that of an earlier attempt
            store.set(f"hocket/name/{word}", name)
            told = word
        if store.check([f"hocket/heard/{name}/{peer}"]):
            return host
        if time.monotonic() > deadline:
            raise CommTimeout(f"rank 0 waited {timeout_s:g} s at start-up: rank {peer} never arrived", (peer,))
        time.sleep(_POLL_S)


def _wait_for(store: Store, key: str, patience: timedelta, rank: int, peer: int, timeout_s: float) -> None:
    try:
        store.wait([key], patience)
    except RuntimeError as error:  # DistStoreError, whose name is not public
        raise CommTimeout(
            f"rank {rank} waited {timeout_s:g} s at start-up: rank {peer} never arrived", (peer,)
        ) from error


def _host_identity() -> str:
    """Equal for two processes that can share memory and meet at an abstract socket."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return " ".join([boot, os.readlink("/proc/self/ns/net"), os.readlink("/proc/self/ns/pid"), str(os.getuid())])
