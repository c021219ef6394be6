"""A simulated InfiniBand fabric (ibsim): what we find is what the tools of infiniband-diags find."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket.observe import parse_fabric

pytestmark = pytest.mark.timeout(180)
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""Whoever is killed would leave a simulator that takes a whole core."""
PRELOAD = "/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so"
NUM_LEAVES, NUM_SPINES, NUM_HOSTS = 3, 2, 3
"""Switches, and hosts of each leaf."""
COMPARED = (("sent_nbytes", "PortXmitData", 4), ("received_nbytes", "PortRcvData", 4),
            ("sent_packets", "PortXmitPkts", 1), ("received_packets", "PortRcvPkts", 1))  # fmt: skip
ERROR_NAMES = {
    "symbol_errors": "SymbolErrorCounter", "link_recoveries": "LinkErrorRecoveryCounter",
    "link_downs": "LinkDownedCounter", "receive_errors": "PortRcvErrors",
    "remote_errors": "PortRcvRemotePhysicalErrors", "relay_errors": "PortRcvSwitchRelayErrors",
    "send_discards": "PortXmitDiscards", "send_waits": "PortXmitWait",
}  # fmt: skip
_COUNTERS = """
import json, sys
from hocket.observe import FabricCounters, discover_fabric
fabric = discover_fabric()
ports = [(sys.argv[2], int(sys.argv[3]))] if sys.argv[2:] else None
with FabricCounters(fabric, ports, most_under_way=int(sys.argv[1])) as counters:
    found = counters.sweep().counters
print(json.dumps([[guid, port, values] for (guid, port), values in found.items()]))
"""


def _topology() -> str:
    parts = []
    for leaf in range(NUM_LEAVES):
        parts += ["", f'Switch 8 "leaf{leaf}"']
        parts += [f'[{host + 1}] "host{leaf}-{host}"[1]' for host in range(NUM_HOSTS)]
        parts += [f'[{spine + 7}] "spine{spine}"[{leaf + 1}]' for spine in range(NUM_SPINES)]
    for spine in range(NUM_SPINES):
        parts += ["", f'Switch 8 "spine{spine}"']
        parts += [f'[{leaf + 1}] "leaf{leaf}"[{spine + 7}]' for leaf in range(NUM_LEAVES)]
    for leaf in range(NUM_LEAVES):
        for host in range(NUM_HOSTS):
            parts += ["", f'Hca 1 "host{leaf}-{host}"', f'[1] "leaf{leaf}"[{host + 1}]']
    return "\n".join(parts) + "\n"


class SimulatedFabric:
    """A running ibsim whose subnet manager has given addresses and routes."""

    def __init__(self, folder: Path) -> None:
        for tool in ("ibsim", "opensm", "ibnetdiscover"):
            assert shutil.which(tool), f"{tool} is missing: install ibsim-utils, opensm and infiniband-diags"
        (folder / "net").write_text(_topology())
        self.environment = {**os.environ, "IBSIM_SOCKNAME": f"hocket-{os.getpid()}", "SIM_HOST": "host0-0"}
        self.folder = folder
        """Where the simulator's library leaves its files."""
        self._log = (folder / "log").open("w+")
        self._simulator = subprocess.Popen(
            [*DIES_WITH_US, "ibsim", "-s", str(folder / "net")], stdin=subprocess.PIPE, stdout=self._log,
            stderr=subprocess.STDOUT, text=True, env=self.environment,
        )  # fmt: skip
        deadline = time.monotonic() + 30
        while not self._answers():
            assert time.monotonic() < deadline and self._simulator.poll() is None, (folder / "log").read_text()
            time.sleep(0.1)
        self.ask("opensm", "-o", "-f", str(folder / "opensm.log"))

    def ask(self, *command: str) -> str:
        """Run a program on a host of the fabric."""
        done = self._run(*command)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def _answers(self) -> bool:
        try:
            return not self._run("ibnetdiscover", "-p", timeout=2).returncode
        except subprocess.TimeoutExpired:
            return False

    def _run(self, *command: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, "LD_PRELOAD": PRELOAD}
        return subprocess.run(
            command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=timeout
        )

    def tell(self, order: str) -> None:
        """Give the simulator an order."""
        assert self._simulator.stdin is not None
        self._simulator.stdin.write(order + "\n")
        self._simulator.stdin.flush()
        time.sleep(0.3)

    def hocket(self, *words: str) -> Any:
        """What `hocket observe fabric --json` says."""
        return json.loads(self.ask(sys.executable, "-m", "hocket.cli", "observe", "fabric", "--json", *words))

    def close(self) -> None:
        """End the simulator."""
        self._simulator.kill()
        self._simulator.wait(10)
        self._log.close()


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedFabric]:
    """Three leaves, two spines, nine hosts."""
    found = SimulatedFabric(tmp_path_factory.mktemp("fabric"))
    yield found
    found.close()


def _links_of_topology(text: str) -> set[frozenset[tuple[str, int]]]:
    """Links in the other format of ibnetdiscover, which names nodes in blocks."""
    links, name = set(), ""
    for line in text.splitlines():
        if head := re.match(r'(?:Switch|Ca)\t\d+ "[SH]-[0-9a-f]+".*# "([^"]*)"', line):
            name = head[1]
        elif port := re.match(r'\[(\d+)\](?:\([0-9a-f]+\))?\s+"[SH]-[0-9a-f]+"\[(\d+)\].*# "([^"]*)"', line):
            links.add(frozenset({(name, int(port[1])), (port[3], int(port[2]))}))
    return links


def test_the_topology_is_that_of_ibnetdiscover_and_of_the_simulator(fabric: SimulatedFabric) -> None:
    found = fabric.hocket("--interval", "0.01")
    links = {frozenset({(each["name"], each["port"]), (each["to"]["name"], each["to"]["port"])})
             for each in found["links"]}  # fmt: skip
    assert links == _links_of_topology(fabric.ask("ibnetdiscover"))
    assert len(links) == NUM_LEAVES * (NUM_HOSTS + NUM_SPINES)
    assert sorted(node["kind"] for node in found["nodes"]) == ["adapter"] * 9 + ["switch"] * 5
    assert found["without_answer"] == found["changes"] == []


def test_what_is_printed_can_be_opened(fabric: SimulatedFabric, tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    from hocket.observe.serve.opened_results import open_results

    printed = fabric.ask(sys.executable, "-m", "hocket.cli", "observe", "fabric", "--json", "--interval", "0.1")
    (tmp_path / "fabric.json").write_text(printed)
    answer = json.loads(open_results([tmp_path / "fabric.json"]).answers["fabric.json"])
    assert (answer["num_adapters"], answer["num_switches"]) == (NUM_LEAVES * NUM_HOSTS, NUM_LEAVES + NUM_SPINES)
    assert answer["num_links"] == NUM_LEAVES * (NUM_HOSTS + NUM_SPINES) and answer["silent"] == []
    num_hosts = {row["name"]: row["num_hosts"] for row in answer["switches"]}
    assert num_hosts["leaf1"] == NUM_HOSTS and num_hosts["spine1"] == 0
    used = [each["use"] for each in json.loads(printed)["links"]]
    assert [row["use"] for row in answer["links"]] == sorted(used, reverse=True)


def test_the_table_has_what_json_has(fabric: SimulatedFabric) -> None:
    shown = fabric.ask(sys.executable, "-m", "hocket.cli", "observe", "fabric", "--interval", "0.01")
    for link in fabric.hocket("--interval", "0.01")["links"]:
        assert any(f"{link['name']} {link['port']}" in line and f"{link['to']['name']} {link['to']['port']}" in line
                   for line in shown.splitlines()), link  # fmt: skip


def test_routes_are_those_of_ibtracert(fabric: SimulatedFabric) -> None:
    nodes = {node["name"]: node["lid"] for node in fabric.hocket("--interval", "0.01")["nodes"]}
    for source, destination in (("host0-0", "host2-1"), ("host1-2", "host1-0"), ("host2-2", "host0-1"),
                                ("host0-0", "spine1")):  # fmt: skip
        traced = fabric.ask("ibtracert", str(nodes[source]), str(nodes[destination]))
        steps = re.finditer(r'\[(\d+)\] -> \S+ port \{\w+\}\[(\d+)\] lid \d+-\d+ "([^"]*)"', traced)
        expected = [(int(hop[1]), int(hop[2]), hop[3]) for hop in steps]
        hops = fabric.hocket("--route", source, destination)["hops"]
        assert [(hop["from"]["port"], hop["to"]["port"], hop["to"]["name"]) for hop in hops] == expected
        assert hops


def _shown(text: str, name: str) -> int:
    found = re.search(name + r":\.*(\d+)", text)
    assert found, text
    return int(found[1])


@pytest.mark.parametrize("most_under_way", [1, 16, 64])
def test_counters_are_those_of_perfquery(fabric: SimulatedFabric, most_under_way: int) -> None:
    """Questions are packets, too, so ours lie between those of perfquery before and after."""
    text = fabric.ask("ibnetdiscover", "-p")
    nodes = parse_fabric(text).nodes
    queried = {}
    for guid, node in nodes.items():
        for port in range(1, 3) if node.kind == "switch" else (1,):
            queried[guid, port] = fabric.ask("perfquery", "-x", str(node.lid), str(port))
    rows = json.loads(fabric.ask(sys.executable, "-c", _COUNTERS, str(most_under_way)))
    own = {(guid, port): values for guid, port, values in rows}
    again = {key: fabric.ask("perfquery", "-x", str(nodes[key[0]].lid), str(key[1])) for key in queried if key in own}
    for key, after in again.items():
        for name, shown, factor in COMPARED:
            least, most = (factor * _shown(each, shown) for each in (queried[key], after))
            assert least <= own[key][name] <= most, (key, name)
    assert len(again) > 15


def test_counters_of_a_quiet_port_are_those_of_perfquery_to_the_last_bit(fabric: SimulatedFabric) -> None:
    """A port without a link: no question passes it."""
    for number, (_, shown, _) in enumerate(COMPARED):
        fabric.tell(f'PerformanceSet "spine1"[8] PortCountersExtended.{shown}={123_456_789_012_345 + number}')
    for number, shown in enumerate(ERROR_NAMES.values()):
        fabric.tell(f'PerformanceSet "spine1"[8] PortCounters.{shown}={3 + number}')
    nodes = parse_fabric(fabric.ask("ibnetdiscover", "-p")).nodes
    guid, lid = next((guid, node.lid) for guid, node in nodes.items() if node.name == "spine1")
    ((_, _, own),) = json.loads(fabric.ask(sys.executable, "-c", _COUNTERS, "4", guid, "8"))
    data, errors = fabric.ask("perfquery", "-x", str(lid), "8"), fabric.ask("perfquery", str(lid), "8")
    for place, (name, shown, factor) in enumerate(COMPARED):
        assert own[name] == factor * _shown(data, shown) == factor * (123_456_789_012_345 + place)
    for name, shown in ERROR_NAMES.items():
        assert own[name] == _shown(errors, shown) > 0


def test_a_link_that_goes_down_shows_at_the_next_sweep(fabric: SimulatedFabric) -> None:
    command = [sys.executable, "-m", "hocket.cli", "observe", "fabric", "--json", "--interval", "3"]
    environment = {**fabric.environment, "LD_PRELOAD": PRELOAD}
    watching = subprocess.Popen(command, env=environment, cwd=fabric.folder, stdout=subprocess.PIPE, text=True)
    time.sleep(1.5)
    fabric.tell('Unlink "leaf1"[7]')
    found = json.loads(watching.communicate(timeout=60)[0])
    changes = {(each["kind"], each["name"], each["number"]) for each in found["changes"]}
    assert changes == {("link down", "leaf1", 7), ("link down", "spine0", 2)}
    fabric.tell('ReLink "leaf1"[7]')


def test_errors_that_the_simulator_makes_are_shown(fabric: SimulatedFabric, tmp_path: Path) -> None:
    guid = next(node["guid"] for node in fabric.hocket("--interval", "0.01")["nodes"] if node["name"] == "leaf2")
    (tmp_path / "labels").write_text(f'{guid} "rack 9"\n')
    fabric.tell('PerformanceSet "leaf2"[1] PortCounters.SymbolErrorCounter=7')
    fabric.tell('PerformanceSet "leaf2"[2] PortCounters.LinkDownedCounter=255')
    found = fabric.hocket("--interval", "0.01", "--labels", str(tmp_path / "labels"))
    errors = {(each["name"], each["port"], each["counter"]): each["value"] for each in found["errors"]}
    assert errors["rack 9", 1, "symbol_errors"] == 7
    assert errors["rack 9", 2, "link_downs"] is None  # at its largest value
