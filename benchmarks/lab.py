"""A laboratory of two hosts on one machine, joined by a network of a given speed.

Each host is a set of namespaces: its own network, name, /dev/shm, /sys and System V memory, so that libraries cannot
bypass the link. One or more veth pairs join the hosts; a token bucket limits each pair to the given rate. When the
laboratory closes, it kills the processes inside, which removes the namespaces. It needs root, and Debian's iproute2.

    python benchmarks/lab.py run --rate 1 -n 1 -- script.py args     # run ranks on both hosts, as `hocket run` does
    python benchmarks/lab.py up --rate 10                            # run until Enter; print how to enter the hosts
    python benchmarks/lab.py speed --rate 10                         # measure the throughput of the link
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

NUM_HOSTS = 2
_NETWORKS = "10.{}.0.{}"  # address, by the numbers of the link and of the host
_TIMEOUT_S = 20.0
_MASTER_PORT = 29500
# Program of the first process of a host: sets up the host, and keeps it until the standard input ends.
_KEEPER = """
set -e
hostname "$1"
mount -t tmpfs -o size=4g tmpfs /dev/shm
mount -t sysfs sysfs /sys
ip link set lo up
echo ready
read -r _ || true
"""


class LabError(RuntimeError):
    """The laboratory cannot be set up; the message names what is missing."""


class Host:
    """One host of the laboratory.

    Args:
        number: 0 or 1.
        keeper: the process that owns the namespaces.
    """

    def __init__(self, number: int, keeper: subprocess.Popen[str]) -> None:
        self.number = number
        self.address = self.address_on(0)
        self.keeper = keeper

    def address_on(self, link: int) -> str:
        """Return the address of this host on a link; link i is its device eth<i>."""
        return _NETWORKS.format(77 + link, self.number + 1)

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs `argv` on this host."""
        spaces = ("--net", "--uts", "--mount", "--ipc")
        return ["nsenter", "-t", str(self.keeper.pid), *spaces, f"--wd={os.getcwd()}", *argv]

    def set_rate(self, rate_gbit_s: float, device: str = "eth0") -> None:
        """Limit what this host sends over a device."""
        # A burst is the data of one millisecond, but at least the largest segment of the kernel.
        burst = max(65536 * 2, int(rate_gbit_s * 1e9 / 8 / 1000))
        self.run(
            *("tc", "qdisc", "replace", "dev", device, "root", "tbf"),
            *("rate", f"{rate_gbit_s:g}gbit", "burst", str(burst), "latency", "50ms"),
        )

    def run(self, *argv: str) -> str:
        """Run a command here and return its output."""
        done = subprocess.run(self.command(argv), capture_output=True, text=True, timeout=_TIMEOUT_S)
        if done.returncode != 0:
            raise LabError(f"{' '.join(argv)} failed on host {self.number}: {done.stderr.strip()}")
        return done.stdout


class Lab:
    """Two hosts and the link between them; a context manager.

    Args:
        rate_gbit_s: rate of a link in Gbit/s, in each direction.
        num_links: number of links between the hosts; host names and launchers use the first one.

    Raises:
        LabError: a permission or a tool is missing.
    """

    def __init__(self, rate_gbit_s: float, num_links: int = 1) -> None:
        self.rate_gbit_s = rate_gbit_s
        self.devices = [f"eth{link}" for link in range(num_links)]
        self.hosts: list[Host] = []
        self._folder = tempfile.TemporaryDirectory(prefix="hocket-lab-")

    def __enter__(self) -> Lab:
        reason = find_obstacle()
        if reason is not None:
            raise LabError(reason)
        try:
            for number in range(NUM_HOSTS):
                self.hosts.append(_start_host(number))
            for link, device in enumerate(self.devices):
                self._join(link, device)
            self._await_link()
        except BaseException:
            self.close()
            raise
        return self

    def _join(self, link: int, device: str) -> None:
        first, second = self.hosts
        first.run("ip", "link", "add", device, "type", "veth", "peer", "name", device, "netns", str(second.keeper.pid))
        for host in self.hosts:
            host.run("ip", "addr", "add", f"{host.address_on(link)}/24", "dev", device)
            host.run("ip", "link", "set", device, "up")
            host.set_rate(self.rate_gbit_s, device)

    def _await_link(self) -> None:
        """Wait until the kernel reports that both ends are up: libraries ignore a device that is not."""
        deadline = time.monotonic() + _TIMEOUT_S
        states = [f"/sys/class/net/{device}/operstate" for device in self.devices]
        while any(set(host.run("cat", *states).split()) != {"up"} for host in self.hosts):
            if time.monotonic() > deadline:
                raise LabError("the link between the hosts does not come up")
            time.sleep(0.01)

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all processes on the hosts, and end the hosts."""
        for host in self.hosts:
            for pid in _processes_in(host.keeper.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for host in self.hosts:
            host.keeper.communicate(timeout=_TIMEOUT_S)
        self.hosts = []
        self._folder.cleanup()

    def remote_shell(self) -> Path:
        """Write a program that launchers call like ssh (ADDRESS COMMAND...); it exists as long as the laboratory."""
        path = Path(self._folder.name) / "shell"
        cases = [f'  {host.address}) exec {shlex.join(host.command(["sh", "-c"]))} "$*" ;;' for host in self.hosts]
        path.write_text("\n".join(["#!/bin/sh", "host=$1; shift", "case $host in", *cases, "esac", "exit 127", ""]))
        path.chmod(0o755)
        return path

    def launchers(self, argv: Sequence[str], num_local: int) -> list[list[str]]:
        """Return the commands, one per host, that run a script as one job with `num_local` ranks on each host."""
        run = [sys.executable, "-m", "hocket.cli", "run", "-n", str(num_local), "--nnodes", str(NUM_HOSTS)]
        run += ["--master-addr", self.hosts[0].address, "--master-port", str(_MASTER_PORT)]
        return [host.command([*run, "--node-rank", str(host.number), *argv]) for host in self.hosts]

    def rank_commands(self, argv: Sequence[str], num_local: int) -> list[tuple[list[str], Mapping[str, str]]]:
        """Return the same without a launcher: the command and the environment variables of each rank."""
        world = {
            "WORLD_SIZE": str(NUM_HOSTS * num_local),
            "LOCAL_WORLD_SIZE": str(num_local),
            "MASTER_ADDR": self.hosts[0].address,
            "MASTER_PORT": str(_MASTER_PORT),
        }
        return [
            (host.command(argv), {**world, "RANK": str(host.number * num_local + local), "LOCAL_RANK": str(local)})
            for host in self.hosts
            for local in range(num_local)
        ]


def find_obstacle() -> str | None:
    """Return why the laboratory cannot run here, or None."""
    missing = [tool for tool in ("ip", "tc", "nsenter", "unshare", "mount") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found: install Debian's packages iproute2 and util-linux"
    if os.geteuid() != 0:
        return "the laboratory needs root to make network namespaces"
    return None


def _start_host(number: int) -> Host:
    keeper = subprocess.Popen(
        ["unshare", "--net", "--uts", "--mount", "--ipc", "sh", "-c", _KEEPER, "sh", f"lab{number}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C must reach only the processes that use the laboratory
    )
    assert keeper.stdout is not None
    if keeper.stdout.readline() != "ready\n":
        _, error = keeper.communicate(timeout=_TIMEOUT_S)
        raise LabError(f"a host could not be set up: {error.strip()}")
    return Host(number, keeper)


def _processes_in(keeper: int) -> list[int]:
    """Return all processes in a host's network namespace, except its keeper."""
    own = os.readlink(f"/proc/{keeper}/ns/net")
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended, or is a zombie
            if os.readlink(entry / "ns/net") == own and int(entry.name) != keeper:
                found.append(int(entry.name))
    return found


def _run(lab: Lab, argv: Sequence[str], num_local: int) -> int:
    processes = [subprocess.Popen(command) for command in lab.launchers(argv, num_local)]
    while True:
        try:
            return max(abs(process.wait()) for process in processes)
        except KeyboardInterrupt:  # the launchers received it too, and forward it; a second one kills
            continue


_SEND = """
import socket, sys, time
data = bytes(1 << 20)
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        connection.sendall(data)
"""
_RECEIVE = """
import socket, sys, time
with socket.create_server(("", 0)) as server:
    print(server.getsockname()[1], flush=True)
    connection = server.accept()[0]
begin, total, buffer = time.monotonic(), 0, bytearray(1 << 20)
while count := connection.recv_into(buffer):
    total += count
print(total * 8e-9 / (time.monotonic() - begin), flush=True)
"""


def speed_gbit_s(lab: Lab) -> float:
    """Measure the throughput of one TCP connection over the link, in Gbit/s."""
    sender, receiver = lab.hosts
    with subprocess.Popen(
        receiver.command([sys.executable, "-c", _RECEIVE]), stdout=subprocess.PIPE, text=True
    ) as receiving:
        assert receiving.stdout is not None
        port = receiving.stdout.readline().strip()
        sender.run(sys.executable, "-c", _SEND, receiver.address, port)
        return float(receiving.stdout.readline())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, words in (
        ("run", "run a script as ranks on both hosts"),
        ("up", "start the laboratory, and stop it at Enter or Ctrl-C"),
        ("speed", "measure the link"),
    ):
        each = verbs.add_parser(verb, help=words)
        each.add_argument("--rate", type=float, default=1.0, metavar="GBIT", help="link rate in Gbit/s (default 1)")
        if verb == "run":
            each.add_argument("-n", type=int, default=1, metavar="N", help="ranks on each host (default 1)")
            each.add_argument("command", nargs=argparse.REMAINDER, metavar="SCRIPT", help="script and its arguments")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # closes the laboratory
    if options.rate <= 0:
        parser.error(f"--rate must be above zero, not {options.rate:g}")
    if options.verb == "run":
        argv = options.command[1:] if options.command[:1] == ["--"] else options.command
        if not argv or options.n < 1:
            parser.error("run needs a script, and at least 1 rank on each host, as in: lab.py run -n 1 -- script.py")
    try:
        with Lab(options.rate) as lab:
            if options.verb == "run":
                return _run(lab, argv, options.n)
            if options.verb == "speed":
                print(f"{speed_gbit_s(lab):.2f} Gbit/s over a link of {options.rate:g} Gbit/s")
                return 0
            for host in lab.hosts:
                print(f"host {host.number}, {host.address}: {' '.join(host.command(['sh']))}")
            try:
                input("Press Enter to stop. ")
            except (KeyboardInterrupt, EOFError):
                print()
            return 0
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
