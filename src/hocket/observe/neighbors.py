"""What the network devices of this host are connected to: switches that say so by LLDP, other ends of virtual pairs.

LLDP (IEEE 802.1AB) needs a daemon, lldpd, which is asked through its command.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hocket.errors import RecorderError
from hocket.observe.host import HostSample

SOURCE = "neighbor"
_COMMAND = "lldpcli"
_TIMEOUT_S = 2.0
_MOST_NBYTES = 1 << 24
_MOST_TEXT = 200
_DEVICES = Path("/sys/class/net")


def sample_neighbors() -> list[HostSample]:
    """Return the neighbors that are known now.

    The source is "neighbor", the name that of the device and of what it is connected to, such as
    "eth0 leaf-7 port Ethernet1/7".
    """
    found = dict(_pairs())
    try:
        found |= dict(lldp_neighbors())
    except RecorderError:
        pass  # `find_sources` says why: most users may not ask the daemon
    return [HostSample(SOURCE, f"{device} {text}", {"is_there": 1.0}) for device, text in found.items()]


def lldp_neighbors() -> dict[str, str]:
    """Return what is at the other end of each device, as LLDP says.

    Raises:
        RecorderError: lldpd is not installed, does not run, may not be asked, or said something else.
    """
    if shutil.which(_COMMAND) is None:
        raise RecorderError(f"{_COMMAND} is missing: install and start lldpd")
    command = [_COMMAND, "-f", "json0", "show", "neighbors"]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RecorderError(f"{_COMMAND}: {error}") from None
    if done.returncode or len(done.stdout) > _MOST_NBYTES:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
        raise RecorderError(f"{_COMMAND}: {lines[0][:_MOST_TEXT]}")
    return parse_neighbors(done.stdout)


def parse_neighbors(text: bytes) -> dict[str, str]:
    """Return what ``lldpcli -f json0 show neighbors`` has printed, by device.

    Raises:
        RecorderError: it is something else.
    """
    try:
        interfaces = [each for part in json.loads(text)["lldp"] for each in part.get("interface", ())]
        return {str(each["name"]): _neighbor(each) for each in interfaces}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise RecorderError(f"{_COMMAND} said something else: {type(error).__name__} {error}"[:_MOST_TEXT]) from None


def _neighbor(interface: dict[str, Any]) -> str:
    chassis, port = interface["chassis"][0], interface["port"][0]
    name = _first(chassis, "name") or _first(chassis, "id")
    place = _first(port, "descr") or _first(port, "id")
    text = f"{name} port {place}" if place else name
    return "".join(each if each.isprintable() else "?" for each in text)[:_MOST_TEXT]


def _first(part: dict[str, Any], key: str) -> str:
    found = part.get(key) or [{}]
    return str(found[0].get("value", ""))


def _pairs() -> Iterator[tuple[str, str]]:
    """Virtual devices whose other end is on this host, too."""
    for device in sorted(_DEVICES.iterdir()) if _DEVICES.is_dir() else ():
        try:
            index, other = (int((device / name).read_text()) for name in ("ifindex", "iflink"))
            if index != other:
                yield device.name, socket.if_indextoname(other)
        except (OSError, ValueError):
            continue  # it was removed meanwhile, or the other end is in another namespace
