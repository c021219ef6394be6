"""Proofs and seals of control connections, byte by byte: changed, repeated, reflected or forged data is refused."""

from __future__ import annotations

import hashlib
import hmac
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hocket.boot.connecting import Place
from hocket.boot.sealed import MOST_NBYTES, End, ProtocolError, RankEnd, Role, ServerEnd, WrongServer, job_digest
from hocket.boot.secret import Secret
from hocket.boot.tls import TlsFiles
from hocket.errors import BootstrapMismatch

from ..naming import raises

pytestmark = pytest.mark.timeout(60)
SECRET = Secret(b"k" * 32, "this test")
JOB = "job/0"
GREETING_NBYTES = 73


def take(end: End) -> bytes:
    data = bytes(end.outgoing)
    end.outgoing.clear()
    return data


def proven(server: ServerEnd | None = None, rank: RankEnd | None = None) -> tuple[ServerEnd, RankEnd]:
    """Authenticate two ends to each other; an end that is not given is new."""
    server = server or ServerEnd(SECRET, JOB)
    rank = rank or RankEnd(SECRET, JOB, 4, 2)
    for _ in range(8):
        rank.take_in(take(server))
        server.take_in(take(rank))
    return server, rank


@pytest.mark.parametrize("role", list(Role))
def test_both_prove_themselves(role: Role) -> None:
    server, rank = proven(rank=RankEnd(SECRET, JOB, 4, 3, role))
    assert server.is_proven and rank.is_proven
    assert (server.rank, server.role) == (3, role)
    for number in range(3):
        rank.send(f"up {number}".encode())
        server.send(f"down {number}".encode())
    assert server.take_in(take(rank)) == [b"up 0", b"up 1", b"up 2"]
    assert rank.take_in(take(server)) == [b"down 0", b"down 1", b"down 2"]


def test_a_byte_at_a_time() -> None:
    server, rank = ServerEnd(SECRET, JOB), RankEnd(SECRET, JOB, 4, 1)
    came: list[bytes] = []
    for _ in range(2000):
        for sender, receiver in ((server, rank), (rank, server)):
            if sender.outgoing:
                came += receiver.take_in(bytes([sender.outgoing.pop(0)]))
        if rank.is_proven and server.is_proven and not came and not rank.outgoing:
            rank.send(b"")
    assert came[0] == b""


def test_the_proof_is_an_hmac_of_what_the_page_says() -> None:
    """An independent implementation of the description in `hocket.boot.sealed`."""
    server = ServerEnd(SECRET, JOB)
    greeting = take(server)
    assert len(greeting) == GREETING_NBYTES
    assert greeting[:8] == b"hocket\0\3" and greeting[8:24] == SECRET.key_id(job_digest(JOB))
    nonce, place = b"n" * 32, b"n" * 32 + bytes([0]) + (3).to_bytes(4, "big")
    hashed = b"".join(hashlib.sha256(part).digest() for part in (JOB.encode(), greeting[40:72], nonce))
    session = hmac.new(SECRET.key, b"hocket session\0" + hashed, "sha256").digest()
    server.take_in(place + hmac.new(session, b"rank" + place + greeting, "sha256").digest())
    assert server.is_proven and server.rank == 3
    assert take(server) == hmac.new(session, b"server" + place + greeting, "sha256").digest()
    seal = hmac.new(hmac.new(session, b"to server", "sha256").digest(), bytes(8) + b"hello", "sha256").digest()
    assert server.take_in((5).to_bytes(4, "big") + seal + b"hello") == [b"hello"]


def _answer(server: ServerEnd, rank: RankEnd, greeting: bytes) -> None:
    rank.take_in(greeting)
    server.take_in(take(rank))


@pytest.mark.parametrize("place", range(GREETING_NBYTES))
def test_a_greeting_that_was_changed(place: int) -> None:
    server, rank = ServerEnd(SECRET, JOB), RankEnd(SECRET, JOB, 4, 2)
    greeting = bytearray(take(server))
    greeting[place] ^= 1
    with pytest.raises(ProtocolError):
        _answer(server, rank, bytes(greeting))
    assert not server.is_proven


@pytest.mark.parametrize("place", range(69))
def test_a_proof_that_was_changed(place: int) -> None:
    server, rank = ServerEnd(SECRET, JOB), RankEnd(SECRET, JOB, 4, 2)
    rank.take_in(take(server))
    answer = bytearray(take(rank))
    answer[place] ^= 1
    with pytest.raises(ProtocolError):
        server.take_in(bytes(answer))
    assert not server.is_proven and not server.outgoing
    with pytest.raises(ProtocolError):  # later data is ignored
        server.take_in(bytes(answer))


def test_a_server_that_does_not_have_the_secret() -> None:
    server, rank = ServerEnd(SECRET, JOB), RankEnd(SECRET, JOB, 4, 2)
    rank.take_in(take(server))  # a stranger relays the greeting of the real server
    take(rank)
    for proof in (b"x" * 32, bytes(32)):
        with pytest.raises(ProtocolError):
            rank.take_in(proof)
        assert not rank.is_proven


def test_what_was_recorded_is_worth_nothing() -> None:
    first, rank = ServerEnd(SECRET, JOB), RankEnd(SECRET, JOB, 4, 2)
    rank.take_in(take(first))
    recorded = take(rank)
    with pytest.raises(ProtocolError):
        ServerEnd(SECRET, JOB).take_in(recorded)


def test_what_was_said_is_not_believed_when_it_is_sent_back() -> None:
    server, rank = proven()
    rank.send(b"mine")
    with pytest.raises(ProtocolError):
        rank.take_in(take(rank))
    other_server, _ = proven()
    server.send(b"for the first")
    with pytest.raises(ProtocolError):
        other_server.take_in(take(server))


CHANGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "repeated": lambda frames: [frames[0], frames[0]],
    "dropped": lambda frames: frames[1:],
    "in another order": lambda frames: [frames[1], frames[0]],
    "longer": lambda frames: [(int.from_bytes(frames[0][:4], "big") + 1).to_bytes(4, "big") + frames[0][4:], *frames],
    "changed": lambda frames: [frames[0][:-1] + b"!"],
    "without seal": lambda frames: [frames[0][:4] + bytes(32) + frames[0][36:]],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("way", ["to the server", "to the rank"])
def test_messages_that_somebody_meddled_with(change: str, way: str) -> None:
    server, rank = proven()
    sender, receiver = (rank, server) if way == "to the server" else (server, rank)
    frames = []
    for text in (b"first", b"second"):
        sender.send(text)
        frames.append(take(sender))
    with pytest.raises(ProtocolError):
        receiver.take_in(b"".join(CHANGES[change](frames)))


def test_messages_have_a_length() -> None:
    server, rank = proven()
    rank.send(b"a" * MOST_NBYTES)
    assert server.take_in(take(rank)) == [b"a" * MOST_NBYTES]
    rank.send(b"a" * (MOST_NBYTES + 1))
    with pytest.raises(ProtocolError):
        server.take_in(take(rank)[:100])  # at once, not only after the whole message
    server, rank = proven()
    server.send(b"a" * 4 * MOST_NBYTES)  # a message of every rank
    assert [len(each) for each in rank.take_in(take(server))] == [4 * MOST_NBYTES]


@pytest.mark.parametrize(
    ("rank", "is_of_job"),
    [
        (RankEnd(Secret(b"K" * 32, "~/secret"), JOB, 4, 2), True),
        (RankEnd(SECRET, "job/1", 4, 2), False),
        (RankEnd(Secret(b"K" * 32, "x"), "job/1", 4, 2), False),
    ],
    ids=["other secret", "after a restart", "both"],
)
def test_wrong_servers(rank: RankEnd, is_of_job: bool) -> None:
    with pytest.raises(WrongServer) as caught:
        rank.take_in(take(ServerEnd(SECRET, JOB)))
    assert caught.value.is_of_job is is_of_job
    assert not rank.outgoing  # a stranger gets no information


@pytest.mark.parametrize("role", [2, 255])
def test_roles_that_there_are_not(role: int) -> None:
    server = ServerEnd(SECRET, JOB)
    rank = RankEnd(SECRET, JOB, 4, 0, role)  # type: ignore[arg-type]
    rank.take_in(take(server))
    with pytest.raises(ProtocolError):
        server.take_in(take(rank))


def test_noise_proves_nothing() -> None:
    draw = random.Random(7)
    for _ in range(2000):
        data = draw.randbytes(draw.randrange(1, 300))
        server, rank = ServerEnd(SECRET, JOB), RankEnd(SECRET, JOB, 4, 0)
        for end in (server, rank):
            try:
                assert end.take_in(data) == []
            except ProtocolError:
                continue
            assert not end.is_proven


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def make_certificate(folder: Path) -> TlsFiles:
    """Make a certificate as in the documentation."""
    files = TlsFiles(str(folder / "cert.pem"), str(folder / "key.pem"))
    assert files.key is not None
    command = ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-days", "365", "-subj", "/CN=hocket"]
    subprocess.run([*command, "-keyout", files.key, "-out", files.certificate], check=True, capture_output=True)
    return files


def test_tls_hides_what_is_said(certificate: TlsFiles) -> None:
    server = ServerEnd(SECRET, JOB, certificate.server_side().begin())
    rank = RankEnd(SECRET, JOB, 4, 2, tls=TlsFiles(certificate.certificate, None).rank_side())
    proven(server, rank)
    assert server.is_proven and rank.is_proven
    rank.send(b"a word " * 1000)
    carried = take(rank)
    assert b"a word" not in carried
    assert server.take_in(carried) == [b"a word " * 1000]


def test_another_certificate_is_refused(certificate: TlsFiles, tmp_path: Path) -> None:
    other = make_certificate(tmp_path)
    server, rank = (
        ServerEnd(SECRET, JOB, certificate.server_side().begin()),
        RankEnd(SECRET, JOB, 4, 2, tls=other.rank_side()),
    )
    with pytest.raises(ProtocolError):
        proven(server, rank)
    assert not rank.is_proven and not server.is_proven


def test_a_certificate_that_ours_has_signed_is_not_ours(certificate: TlsFiles, tmp_path: Path) -> None:
    key, request, signed = (str(tmp_path / name) for name in ("key.pem", "request.pem", "signed.pem"))
    new = ["openssl", "req", "-newkey", "ed25519", "-nodes", "-subj", "/CN=other", "-keyout", key, "-out", request]
    subprocess.run(new, check=True, capture_output=True)
    sign = ["openssl", "x509", "-req", "-in", request, "-CA", certificate.certificate, "-CAkey", str(certificate.key)]
    subprocess.run([*sign, "-CAcreateserial", "-out", signed], check=True, capture_output=True, cwd=tmp_path)
    server = ServerEnd(SECRET, JOB, TlsFiles(signed, key).server_side().begin())
    rank = RankEnd(SECRET, JOB, 4, 2, tls=TlsFiles(certificate.certificate, None).rank_side())
    with raises(WrongServer, names=("HOCKET_TLS_CERT",)) as caught:
        proven(server, rank)
    assert caught.value.is_of_job and not server.is_proven


def test_nobody_is_asked_for_a_pass_phrase(certificate: TlsFiles, tmp_path: Path) -> None:
    encrypted = str(tmp_path / "encrypted.pem")
    command = ["openssl", "pkey", "-in", str(certificate.key), "-aes256", "-passout", "pass:secret", "-out", encrypted]
    subprocess.run(command, check=True, capture_output=True)
    with raises(BootstrapMismatch, names=("HOCKET_TLS_KEY", encrypted)):
        TlsFiles(certificate.certificate, encrypted).server_side()


@pytest.mark.parametrize("who", ["server", "rank"])
def test_one_side_alone_has_a_certificate(certificate: TlsFiles, who: str) -> None:
    server = ServerEnd(SECRET, JOB, certificate.server_side().begin() if who == "server" else None)
    rank = RankEnd(SECRET, JOB, 4, 2, tls=certificate.rank_side() if who == "rank" else None)
    with raises(WrongServer, names=("HOCKET_TLS_CERT", "rank 0")) as caught:
        rank.take_in(take(server))
    assert caught.value.is_of_job


def test_files_that_are_no_certificate(tmp_path: Path, certificate: TlsFiles) -> None:
    (tmp_path / "text").write_text("hello")
    for wrong in (str(tmp_path / "text"), str(tmp_path / "missing"), str(tmp_path)):
        with raises(BootstrapMismatch, names=("HOCKET_TLS_CERT", wrong)):
            TlsFiles(wrong, certificate.key).server_side()
        with raises(BootstrapMismatch, names=("HOCKET_TLS_CERT", wrong)):
            TlsFiles(wrong, None).rank_side()
    with raises(BootstrapMismatch, names=("HOCKET_TLS_KEY", certificate.certificate)):
        TlsFiles(certificate.certificate, None).server_side()


def test_a_place_does_not_show_the_secret() -> None:
    assert SECRET.key.hex() not in repr(Place(SECRET, JOB, 2, 1)) and "kkkk" not in repr(Place(SECRET, JOB, 2, 1))


def test_a_server_whose_ranks_have_all_come_is_not_the_one() -> None:
    server = ServerEnd(SECRET, JOB, is_complete=True)
    with pytest.raises(WrongServer) as caught:
        RankEnd(SECRET, JOB, 4, 2).take_in(take(server))
    assert not caught.value.is_of_job
    rank = RankEnd(SECRET, JOB, 4, 2, Role.PMI)  # which arrives after them
    greeting = take(ServerEnd(SECRET, JOB, is_complete=True))
    rank.take_in(greeting)
    assert rank.is_greeted
