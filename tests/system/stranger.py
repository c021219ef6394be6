"""A stranger: another user, who knows address, port and size of a job, and tries to join, read, stop or blind it.

``python stranger.py ADDRESS FIRST_PORT NUM_PORTS SIZE JOB``: becomes the user nobody, goes through all attacks once,
and prints a line of JSON for each, with how many bytes it got besides greetings. Nothing of hocket is imported: what is
tried was written from the protocol's description.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import random
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator

ADDRESS, JOB = sys.argv[1], sys.argv[5]
FIRST_PORT, NUM_PORTS, SIZE = map(int, sys.argv[2:5])
WAIT_S = 0.2
NOBODY = 65534
_GREETING_NBYTES = 73
draw = random.Random(1)


class Harm:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/hocket-stranger-was-here",)


def ports() -> Iterator[int]:
    yield from range(FIRST_PORT, FIRST_PORT + NUM_PORTS)


def talk(said: bytes | Callable[[bytes], bytes], *, pieces: int = 1 << 20) -> int:
    """Say something at every port that is open; return how many bytes came back besides greetings."""
    num_bytes = 0
    for port in ports():
        with contextlib.suppress(OSError), socket.create_connection((ADDRESS, port), timeout=WAIT_S) as connection:
            connection.settimeout(WAIT_S)
            greeting = b""
            with contextlib.suppress(OSError):
                greeting = connection.recv(_GREETING_NBYTES)
            data = said(greeting) if callable(said) else said
            for begin in range(0, len(data), pieces):
                connection.sendall(data[begin : begin + pieces])
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            while came := connection.recv(1 << 16):
                num_bytes += len(came)
    return num_bytes


def line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def hello(rank: int) -> dict[str, object]:
    facts = {"local_rank": 0, "local_size": 1, "host": "h", "place": "p", "version": "0.1.0"}
    return {"hello": {"rank": rank, "size": SIZE, "job": JOB, **facts}}


def proof(greeting: bytes, rank: int = 1, role: int = 0, proof: bytes | None = None) -> bytes:
    place = os.urandom(32) + struct.pack(">BI", role, rank)
    return place + (hashlib.sha256(greeting + place).digest() if proof is None else proof)


def frame(message: bytes, nbytes: int | None = None) -> bytes:
    return struct.pack(">I", len(message) if nbytes is None else nbytes) + bytes(32) + message


def flood(num: int, *, resets: bool) -> int:
    """Connect and go at once, many times."""
    num_done = 0
    for _ in range(num):
        with contextlib.suppress(OSError), socket.socket() as connection:
            connection.settimeout(0.2)
            if resets:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.connect((ADDRESS, FIRST_PORT))
            num_done += 1
    return 0


def hold(num: int, seconds: float) -> int:
    """Have many connections that say nothing."""
    held = []
    for _ in range(num):
        try:
            held.append(socket.create_connection((ADDRESS, FIRST_PORT), timeout=0.2))
        except OSError:
            break
    time.sleep(seconds)
    for each in held:
        each.close()
    return 0


def listen(port: int, seconds: float, answer: bytes) -> int:
    """Take a port of the job, and count what a rank tells there besides nonces and proofs."""
    num_bytes = 0
    with contextlib.suppress(OSError), socket.create_server(("", port)) as listener:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            listener.settimeout(max(0.01, deadline - time.monotonic()))
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(0.2)
                    connection.sendall(answer)
                    with contextlib.suppress(OSError):
                        num_bytes += len(connection.recv(1 << 16))
    return num_bytes


def unix_names() -> list[str]:
    """Return the abstract sockets of hocket's that this user can see."""
    with open("/proc/net/unix") as table:
        names = [each.split()[-1] for each in table]
    return [name[1:] for name in names if name.startswith("@hocket")]


def unix(said: bytes, kind: int) -> int:
    num_bytes = 0
    for name in unix_names():
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, kind) as connection:
            connection.settimeout(WAIT_S)
            connection.connect(f"\0{name}")
            connection.sendall(said)
            num_bytes += len(connection.recv(1 << 16))
    return num_bytes


def fake_greeting() -> bytes:
    """As of a server of this job, with another key."""
    digest = hashlib.sha256(b"hocket job\0" + JOB.encode()).digest()[:16]
    return b"hocket\0\2" + os.urandom(16) + digest + os.urandom(32) + b"\0"


def _relayed(greeting: bytes) -> bytes:
    """Hand the greeting of the true server to whoever connects here, and what he answers to the true server."""
    return proof(greeting, proof=greeting[-33:-1])


ATTACKS: dict[str, Callable[[], int]] = {
    "nothing": lambda: talk(b""),
    "HTTP": lambda: talk(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    "TLS": lambda: talk(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)),
    "200,000 brackets": lambda: talk(b"[" * 200_000 + b"\n"),
    "objects in objects": lambda: talk(b'{"a":' * 100_000 + b"\n"),
    "10 MB of zeros": lambda: talk(bytes(10_000_000)),
    "10 MB without a line's end": lambda: talk(b"a" * 10_000_000),
    "noise": lambda: talk(draw.randbytes(100_000)),
    "a byte at a time": lambda: talk(draw.randbytes(300), pieces=1),
    "hello of rank 1, as a line": lambda: talk(line(hello(1))),
    "hello of rank 0, as a line": lambda: talk(line(hello(0))),
    "hello of rank 99": lambda: talk(line(hello(99))),
    "hello of rank -1": lambda: talk(line(hello(-1))),
    "abort without hello": lambda: talk(
        line({"aborted": {"key": 3, "members": list(range(SIZE)), "code": 1, "text": "stop", "ranks": []}})
    ),
    "left without hello": lambda: talk(line({"left": {"key": 3, "members": [0, 1], "seq": 1, "history": 1}})),
    "issued, with a number of 64 bits": lambda: talk(
        line({"issued": {"key": 3, "members": [0, 1], "seq": (1 << 64) - 1, "history": 1}})
    ),
    "exchange without hello": lambda: talk(line({"exchange": "x"})),
    "bye": lambda: talk(line({"bye": None})),
    "a pickle": lambda: talk(pickle.dumps(Harm())),
    "a pickle in a frame": lambda: talk(lambda greeting: frame(pickle.dumps(Harm()))),
    "a proof that is made up": lambda: talk(proof),
    "a proof of zeros": lambda: talk(lambda greeting: proof(greeting, proof=bytes(32))),
    "the greeting as a proof": lambda: talk(lambda greeting: proof(greeting, proof=greeting[:32])),
    "the greeting sent back": lambda: talk(lambda greeting: greeting),
    "a proof of rank 0": lambda: talk(lambda greeting: proof(greeting, rank=0)),
    "a proof of a rank that there is not": lambda: talk(lambda greeting: proof(greeting, rank=0xFFFFFFFF)),
    "a proof for MPI": lambda: talk(lambda greeting: proof(greeting, role=1)),
    "a proof of a role that there is not": lambda: talk(lambda greeting: proof(greeting, role=255)),
    "half a proof": lambda: talk(lambda greeting: proof(greeting)[:40]),
    "a proof and a message": lambda: talk(lambda greeting: proof(greeting) + frame(line({"bye": None}))),
    "a proof and 4 GiB announced": lambda: talk(lambda greeting: proof(greeting) + frame(b"a", 0xFFFFFFFF)),
    "a nonce of the server's": lambda: talk(_relayed),
    "PMI's first line": lambda: talk(b"cmd=initack pmiid=1\n"),
    "PMI's barrier": lambda: talk(b"cmd=initack pmiid=1\ncmd=barrier_in\n"),
    "PMI's put": lambda: talk(b"cmd=put kvsname=hocket key=P0-businesscard value=elsewhere\n"),
    "connect and go, 500 times": lambda: flood(500, resets=False),
    "connect and reset, 500 times": lambda: flood(500, resets=True),
    "1,018 connections that say nothing": lambda: hold(1018, 1.0),
    "taking a port, silently": lambda: listen(FIRST_PORT + NUM_PORTS - 1, 1.0, b""),
    "taking a port, as a server of this job": lambda: listen(FIRST_PORT + NUM_PORTS - 1, 1.0, fake_greeting()),
    "messages to unix sockets": lambda: unix(b"cmd=initack pmiid=1\n", socket.SOCK_STREAM),
    "packets to unix sockets": lambda: unix(draw.randbytes(200), socket.SOCK_SEQPACKET),
}


def main() -> None:
    "a".encode("idna")  # which needs a file that nobody may read
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    for name, attack in ATTACKS.items():
        try:
            print(json.dumps({"attack": name, "bytes": attack()}), flush=True)
        except OSError as error:
            print(json.dumps({"attack": name, "bytes": 0, "error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
