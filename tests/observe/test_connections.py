"""TCP connections of recorded runs: against what the programs sent, the kernel's headers and `ss`."""

from __future__ import annotations

import json
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hocket.errors import RecorderError
from hocket.observe import ObservedRun, connections_of, link_loads, open_run, record_run
from hocket.observe.connections import CONNECTIONS_FILE, ConnectionSampler
from hocket.observe.netlink import DUMP, ROUTE, SOCKETS, NetlinkSocket, attribute, attributes
from hocket.observe.network_devices import device_to, sample_queues
from hocket.observe.tcp_sockets import _FIELDS, TcpSockets, parse_socket

from ..load import scaled
from ..naming import raises

pytestmark = pytest.mark.timeout(120)

# Sends and answers over one connection that lives longer than two samples, and one that is closed at once.
_PROGRAM = """
import socket, sys, time

def pair():
    server = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(server.getsockname())
    return server, one, server.accept()[0]

def receive(end, count):
    while count:
        count -= len(end.recv(count))

_, one, other = pair()
time.sleep(0.3)
for _ in range(20):
    one.sendall(bytes(50_000))
    receive(other, 50_000)
    other.sendall(bytes(7))
    receive(one, 7)
    time.sleep(0.02)
one.close()
other.close()
time.sleep(1.0)  # so that a device has a sample after the last ones of the connections, also when samples are late
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ObservedRun:
    folder = tmp_path_factory.mktemp("connections") / "run"
    assert record_run([sys.executable, "-c", _PROGRAM], folder, interval_s=0.1).problems == ()
    return open_run(folder)


def test_bytes_are_those_of_the_program(run: ObservedRun) -> None:
    ends = [each for each in connections_of(run) if each.process is not None]
    assert [(each.sent_nbytes, each.process, each.peer, each.device) for each in ends] == [
        (20 * 50_000.0, 0, 0, "lo"), (20 * 7.0, 0, 0, "lo"),
    ]  # fmt: skip
    assert (ends[0].local, ends[0].remote) == (ends[1].remote, ends[1].local)
    # The kernel counts the end of a connection as a byte.
    assert [each.received_nbytes for each in ends] == [20 * 7.0 + 1, 20 * 50_000.0 + 1]
    for each in ends:
        parts = each.receiver_limited_s + each.buffer_limited_s + each.network_limited_s
        assert 0 <= each.busy_s <= each.last_s and each.busy_s == pytest.approx(parts, abs=1e-6)
        assert 0 < each.least_rtt_s <= each.rtt_s < 10
        assert 0 <= each.first_s < each.last_s <= run.description.ended_s - run.description.began_s + 1


def test_bytes_of_a_device_are_those_of_its_connections(run: ObservedRun) -> None:
    (loopback,) = [each for each in link_loads(run) if each.device == "lo"]
    assert loopback.rank_nbytes == 20 * 50_007.0
    assert min(loopback.sent_nbytes, loopback.received_nbytes) >= loopback.rank_nbytes


def test_a_connection_of_another_program_is_counted_from_the_begin(tmp_path: Path) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with socket.create_connection(server.getsockname()) as one, server.accept()[0] as other:
        one.sendall(bytes(300_000))
        left = 300_000
        while left:
            left -= len(other.recv(left))
        assert record_run(["sleep", "0.3"], tmp_path / "run", interval_s=0.1).problems == ()
        name = "{}:{}".format(*one.getsockname())
    server.close()
    mine = [each for each in connections_of(open_run(tmp_path / "run")) if name in (each.local, each.remote)]
    assert [(each.process, each.sent_nbytes, each.received_nbytes) for each in mine] == [(None, 0.0, 0.0)] * 2


def test_nobody_owns_a_connection_that_was_closed_unseen(tmp_path: Path) -> None:
    program = _PROGRAM.replace("time.sleep(0.3)", "").replace("time.sleep(0.02)", "")
    assert record_run([sys.executable, "-c", program], tmp_path / "run", interval_s=5.0).exit_code == 0
    found = open_run(tmp_path / "run")
    (host,) = found.connections
    last = {int(row["connection"]): float(row["sent_nbytes"]) for row in host.rows}
    own = [host.ends[place] for place, sent in last.items() if sent in (20 * 50_000.0, 20 * 7.0)]
    assert len(own) == 2 and {end.process for end in own} <= {"?", found.processes[0].name}


def test_a_program_has_no_connections_of_the_one_that_started_it(tmp_path: Path) -> None:
    # Between fork and exec a process has the sockets of its parent.
    program = "import os, sys; print(flush=True); sys.stdin.readline(); os.set_inheritable({}, False); os.execvp(*{})"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        program = program.format(one.fileno(), ("sleep", ["sleep", "30"]))
        sampler = ConnectionSampler(tmp_path)
        with subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[one.fileno()]
        ) as started:
            try:
                assert started.stdin is not None and started.stdout is not None
                started.stdout.readline()
                sampler.sample({"a": started.pid})
                started.stdin.write(b"\n")
                started.stdin.flush()
                deadline = time.monotonic() + scaled(30)
                while Path(f"/proc/{started.pid}/comm").read_text() != "sleep\n":
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
                mine = "{}:{}".format(*one.getsockname())
                assert _owners(sampler, tmp_path, mine) == ["a"]
                sampler.sample({"a": started.pid})
                sampler.sample({"a": started.pid})
                assert _owners(sampler, tmp_path, mine) == [""]
            finally:
                started.kill()
                sampler.close()


def _owners(sampler: ConnectionSampler, folder: Path, local: str) -> list[str]:
    sampler.save()
    ends = json.loads((folder / CONNECTIONS_FILE).read_text())["connections"]
    return [each["process"] for each in ends if each["local"] == local]


def test_places_of_fields_are_those_of_the_kernels_header(tmp_path: Path) -> None:
    names = {
        "sent_nbytes": "tcpi_bytes_sent", "resent_nbytes": "tcpi_bytes_retrans",
        "received_nbytes": "tcpi_bytes_received", "sent_segments": "tcpi_segs_out",
        "resent_segments": "tcpi_total_retrans", "received_segments": "tcpi_segs_in", "busy_s": "tcpi_busy_time",
        "receiver_limited_s": "tcpi_rwnd_limited", "buffer_limited_s": "tcpi_sndbuf_limited",
        "rtt_s": "tcpi_rtt", "least_rtt_s": "tcpi_min_rtt", "delivered_nbytes_s": "tcpi_delivery_rate",
    }  # fmt: skip
    lines = [
        f'printf("{name} %zu %zu\\n", offsetof(tcp_info, {field}), sizeof tcp_info().{field});'
        for name, field in names.items()
    ]
    source = "#include <linux/tcp.h>\n#include <cstddef>\n#include <cstdio>\nint main() {" + "\n".join(lines) + "}"
    (tmp_path / "fields.cpp").write_text(source)
    subprocess.run(["g++", "-o", tmp_path / "fields", tmp_path / "fields.cpp"], check=True, timeout=scaled(60))
    text = subprocess.run([tmp_path / "fields"], check=True, capture_output=True, text=True, timeout=scaled(10)).stdout
    found = {name: (int(offset), int(size)) for name, offset, size in map(str.split, text.splitlines())}
    assert found == {name: (offset, struct.calcsize(form)) for name, (form, offset, _) in _FIELDS.items()}


@pytest.mark.skipif(shutil.which("ss") is None, reason="ss is not installed")
def test_counts_are_those_of_ss() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with socket.create_connection(server.getsockname()) as one, server.accept()[0] as other:
        one.sendall(bytes(12_345))
        other.recv(12_345, socket.MSG_WAITALL)
        local = "{}:{}".format(*one.getsockname())
        sockets = TcpSockets()
        (mine,) = [each for each in sockets.open_sockets() if each.local == local]
        sockets.close()
        text = subprocess.run(["ss", "-tinH", "src", local], capture_output=True, text=True, timeout=scaled(20)).stdout
    server.close()
    assert mine.numbers["sent_nbytes"] == 12_345.0 == float(re.findall(r"bytes_sent:(\d+)", text)[0])
    assert mine.numbers["sent_segments"] == float(re.findall(r"segs_out:(\d+)", text)[0])
    assert mine.numbers["least_rtt_s"] == pytest.approx(float(re.findall(r"minrtt:([\d.]+)", text)[0]) * 1e-3)


def test_both_families_and_closed_sockets() -> None:
    sockets = TcpSockets()
    assert list(sockets.closed_sockets()) is not None
    wanted = {}
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        server = socket.create_server((address, 0), family=family)
        one = socket.create_connection(server.getsockname()[:2])
        other = server.accept()[0]
        one.sendall(bytes(500 + family))
        other.recv(500 + family, socket.MSG_WAITALL)
        name = f"[{address}]" if family == socket.AF_INET6 else address
        local = f"{name}:{one.getsockname()[1]}"
        wanted[local] = 500.0 + family
        found = {each.local: each.numbers["sent_nbytes"] for each in sockets.open_sockets()}
        assert found[local] == wanted[local]
        for each in (one, other, server):
            each.close()
    closed: dict[str, float | None] = {}
    for _ in range(200):
        closed |= {each.local: each.numbers["sent_nbytes"] for each in sockets.closed_sockets()}
        if wanted.items() <= closed.items():
            break
        time.sleep(scaled(0.01))
    assert wanted.items() <= closed.items()
    sockets.close()


@pytest.mark.parametrize("seed", range(200))
def test_messages_of_any_form_are_bounded(seed: int) -> None:
    generator = random.Random(seed)
    family = generator.choice((socket.AF_INET, socket.AF_INET6, 0, 99))
    info = attribute(2, generator.randbytes(generator.randrange(300)))
    body = bytes([family]) + generator.randbytes(71) + generator.choice((info, generator.randbytes(100), b""))
    cut = memoryview(body)[: generator.randrange(len(body) + 1)]
    found = parse_socket(cut)
    assert found is None or (":" in found.local and len(found.numbers) == len(_FIELDS))
    for value in attributes(cut, generator.randrange(80)).values():
        assert len(value) <= len(cut)


def test_an_older_kernel_has_fewer_numbers() -> None:
    head = bytes([socket.AF_INET]) + bytes(71)
    found = parse_socket(memoryview(head + attribute(2, bytes(104))))
    assert found is not None
    assert (found.numbers["rtt_s"], found.numbers["busy_s"], found.numbers["sent_nbytes"]) == (0.0, None, None)


def test_what_the_kernel_refuses_is_an_error() -> None:
    with raises(RecorderError, names="31"):
        NetlinkSocket(31)
    with NetlinkSocket(SOCKETS) as kernel, raises(RecorderError, names="9999"):
        list(kernel.ask(9999, b"", DUMP))
    with NetlinkSocket(ROUTE) as kernel, raises(RecorderError, names="26"):
        list(kernel.ask(26, b""))


def test_devices_and_queues() -> None:
    assert device_to("127.0.0.1") == device_to("::1") == "lo"
    assert device_to("no address") is None
    problems: set[str] = set()
    for each in sample_queues(problems):
        assert each.source == "queue" and len(each.name.split(" ")) == 4 and (each.numbers["drops"] or 0) >= 0
    assert problems == set()


_DAMAGES = {
    "no JSON": (lambda content: "{", "JSON"),
    "other version": (lambda content: {**content, "format": "hocket connections, version 99"}, "version"),
    "no list": (lambda content: {**content, "connections": 3}, "must be a list"),
    "an entry without fields": (lambda content: {**content, "connections": [{}]}, "a connection has no 'process'"),
    "an entry with a number": (
        lambda content: {**content, "connections": [{**content["connections"][0], "local": 3}]}, 'connection, "local"'
    ),
    "no time": (lambda content: {**content, "began_ns": -1}, '"began_ns" must be nanoseconds'),
}  # fmt: skip


@pytest.mark.parametrize("name", _DAMAGES)
def test_damaged_lists(run: ObservedRun, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    path = folder / "connections.json"
    damage, message = _DAMAGES[name]
    damaged = damage(json.loads(path.read_text()))
    path.write_text(damaged if isinstance(damaged, str) else json.dumps(damaged))
    found = open_run(folder)
    assert found.connections == () and len(found.processes) == len(run.processes)
    assert any(str(path) in problem and message in problem for problem in found.problems), found.problems


def test_rows_of_no_connection(run: ObservedRun, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    path = folder / "connections.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "connections": []}))
    found = open_run(folder)
    assert connections_of(found) == () and any("of no connection" in problem for problem in found.problems)


def test_closed_sockets_without_another_end_do_not_crowd_out_the_others() -> None:
    sockets = TcpSockets()
    server = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(server.getsockname())
    other = server.accept()[0]
    wanted = "{}:{}".format(*one.getsockname())
    for each in [socket.create_server(("127.0.0.1", 0)) for _ in range(3000)]:
        each.close()
    for each in (one, other, server):
        each.close()
    found: list[str] = []
    for _ in range(200):
        found += [each.local for each in sockets.closed_sockets()]
        if wanted in found:
            break
        time.sleep(scaled(0.01))
    sockets.close()
    assert wanted in found and len(found) < 1000
