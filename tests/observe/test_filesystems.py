"""File systems of fsspec that are recorded: fsspec's own tests, every public method, and bytes that are exact."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec import AbstractFileSystem
from fsspec.callbacks import Callback
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)

from hocket import observe
from hocket._native import IO_NAMES, IO_ROUTE_NAMES
from hocket.errors import InvalidArgument
from hocket.observe.completeness import recorded_bytes
from hocket.observe.fsspec_call import clean_url
from hocket.observe.fsspec_files import COMPOSED, MOVES_NO_BYTES, OF_THE_CLASS, RECORDED, RecordedFileSystem
from hocket.trace import EVENT_STATES, find_recorders

from ..naming import raises

pytestmark = pytest.mark.timeout(120)
_ROUTE = IO_ROUTE_NAMES.index("fsspec")


class RecordedEvents:
    """Events of file systems of this process since the object was made."""

    def __init__(self) -> None:
        self._place = find_recorders(os.getpid())[0]
        self._begin = self._place.read(1).rings["io"].next_place

    def take(self) -> list[tuple[str, str, int, int, str]]:
        """Kind, URL, offset, bytes and state of each since the last call."""
        snapshot = self._place.read()
        ring = snapshot.rings["io"]
        found = [
            (
                IO_NAMES[int(event["kind"])], snapshot.names["file", int(event["comm"]), 0], int(event["aux"]),
                int(event["nbytes"]), EVENT_STATES[int(event["state"])],
            )
            for place, event in zip(ring.places, ring.events, strict=True)
            if place >= self._begin and int(event["backend"]) == _ROUTE
        ]  # fmt: skip
        self._begin = ring.next_place
        return found

    def total(self) -> Counter[str]:
        """Bytes by kind."""
        total: Counter[str] = Counter()
        for kind, _, _, nbytes, _ in self.take():
            total[kind] += nbytes
        return +total


@pytest.fixture(autouse=True)
def _recorder() -> Iterator[None]:
    observe.mark("begin")
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def events() -> RecordedEvents:
    return RecordedEvents()


@pytest.fixture
def memory() -> AbstractFileSystem:
    return observe.recorded_filesystem(MemoryFileSystem())


class MemoryFixtures(AbstractFixtures):
    @pytest.fixture
    def fs(self) -> AbstractFileSystem:
        return observe.recorded_filesystem(MemoryFileSystem())

    @pytest.fixture
    def fs_join(self) -> Any:
        return lambda *args: "/".join(args)

    @pytest.fixture
    def fs_path(self, fs: AbstractFileSystem) -> str:
        fs.mkdirs("/test", exist_ok=True)
        return "/test"


class LocalFixtures(AbstractFixtures):
    @pytest.fixture
    def fs(self) -> AbstractFileSystem:
        return observe.recorded_filesystem(LocalFileSystem(auto_mkdir=True))

    @pytest.fixture
    def fs_path(self, tmpdir: Any) -> str:
        return str(tmpdir)

    @pytest.fixture
    def fs_sanitize_path(self) -> Any:
        return lambda path: path


class TestMemoryCopy(AbstractCopyTests, MemoryFixtures):
    """fsspec's own."""


class TestMemoryGet(AbstractGetTests, MemoryFixtures):
    """fsspec's own."""


class TestMemoryPut(AbstractPutTests, MemoryFixtures):
    """fsspec's own."""


class TestMemoryOpen(AbstractOpenTests, MemoryFixtures):
    """fsspec's own."""


class TestMemoryPipe(AbstractPipeTests, MemoryFixtures):
    """fsspec's own."""


class TestLocalCopy(AbstractCopyTests, LocalFixtures):
    """fsspec's own."""


class TestLocalGet(AbstractGetTests, LocalFixtures):
    """fsspec's own."""


class TestLocalPut(AbstractPutTests, LocalFixtures):
    """fsspec's own."""


class TestLocalOpen(AbstractOpenTests, LocalFixtures):
    """fsspec's own."""


class TestLocalPipe(AbstractPipeTests, LocalFixtures):
    """fsspec's own."""


def test_every_public_method_is_recorded_or_known_to_move_no_bytes() -> None:
    public = {
        name
        for name in dir(AbstractFileSystem)
        if not name.startswith("_") and callable(getattr(AbstractFileSystem, name)) and name != "transaction_type"
    }
    named = [*RECORDED, *COMPOSED, *MOVES_NO_BYTES, *OF_THE_CLASS]
    assert len(set(named)) == len(named)
    assert public <= set(named), f"new in fsspec: {sorted(public - set(named))}"
    for name in (*RECORDED, *MOVES_NO_BYTES):
        own = vars(RecordedFileSystem).get(name)
        assert own is not None or not hasattr(AbstractFileSystem, name), name
    for name in COMPOSED:
        assert name not in vars(RecordedFileSystem)


def test_whole_files(memory: AbstractFileSystem, events: RecordedEvents, tmp_path: Path) -> None:
    memory.pipe_file("/a", b"12345")
    assert memory.cat_file("/a", 1, 3) == b"23"
    assert memory.cat("/a") == b"12345" and memory.read_bytes("/a") == b"12345"
    memory.pipe({"/b": b"123", "/c/d": b"1"})
    assert memory.cat(["/a", "/b"]) == {"/a": b"12345", "/b": b"123"}
    assert memory.cat_ranges(["/a", "/b"], [1, 0], [2, 3]) == [b"2", b"123"]
    memory.get_file("/a", str(tmp_path / "a"))
    into = io.BytesIO(b"xx")
    into.seek(2)
    memory.get_file("/a", into)
    memory.put_file(str(tmp_path / "a"), "/e")
    memory.cp_file("/a", "/f")
    memory.copy("/a", "/g")
    assert events.take() == [
        ("write", "memory:///a", 0, 5, "completed"), ("read", "memory:///a", 1, 2, "completed"),
        ("read", "memory:///a", 0, 5, "completed"), ("read", "memory:///a", 0, 5, "completed"),
        ("write", "memory:///b", 0, 3, "completed"), ("write", "memory:///c/d", 0, 1, "completed"),
        ("read", "memory:///a", 0, 5, "completed"), ("read", "memory:///b", 0, 3, "completed"),
        ("read", "memory:///a", 1, 1, "completed"), ("read", "memory:///b", 0, 3, "completed"),
        ("read", "memory:///a", 0, 5, "completed"), ("read", "memory:///a", 0, 5, "completed"),
        ("write", "memory:///e", 0, 5, "completed"), ("copy", "memory:///a", 0, 5, "completed"),
        ("copy", "memory:///a", 0, 5, "completed"),
    ]  # fmt: skip
    assert into.getvalue() == b"xx12345" and memory.ls("/c", detail=False) == ["/c/d"]


def test_open_files(memory: AbstractFileSystem, events: RecordedEvents) -> None:
    with memory.open("/text", "w", encoding="utf-16-le", newline="") as file:
        file.write("äb\n")
    with memory.open("/lines", "wb") as file:
        file.writelines([b"one\n", b"two\n"])
    assert events.total() == {"write": 6 + 8}
    with memory.open("/lines") as file:
        assert file.readline() == b"one\n" and list(file) == [b"two\n"]
        file.seek(1)
        data = bytearray(3)
        assert (file.readinto(data), bytes(data), file.tell()) == (3, b"ne\n", 4)
        assert file.read(2) == b"tw" and file.readlines() == [b"o\n"]
    taken = events.take()
    reads = [(offset, nbytes) for kind, _, offset, nbytes, _ in taken if kind == "read"]
    assert reads == [(0, 4), (4, 4), (8, 0), (1, 3), (4, 2), (6, 2)]
    assert [kind for kind, *_ in taken if kind != "read"] == ["open", "close"]
    assert memory.read_text("/text", encoding="utf-16-le", newline="") == "äb\n"
    assert memory.head("/lines", 3) == b"one" and memory.tail("/lines", 3) == b"wo\n"
    assert memory.read_block("/lines", 2, 3) == b"e\nt"
    assert events.total() == {"read": 6 + 3 + 3 + 3}


def test_compressed_files_are_recorded_as_they_are_stored(memory: AbstractFileSystem, events: RecordedEvents) -> None:
    with memory.open("/data.gz", "wb", compression="gzip") as file:
        file.write(bytes(100_000))
    stored = memory.size("/data.gz")
    assert events.total() == {"write": stored} and 0 < stored < 1000
    with memory.open("/data.gz", compression="infer") as file:
        assert file.read() == bytes(100_000)
    assert events.total() == {"read": stored}


def test_numpy_reads_and_writes_through_it(memory: AbstractFileSystem, events: RecordedEvents) -> None:
    values = np.arange(1000.0)
    with memory.open("/values.npy", "wb") as file:
        np.save(file, values)
    with memory.open("/values.npy") as file:
        assert np.array_equal(np.load(file), values)
    total = events.total()
    assert total["write"] == memory.size("/values.npy")
    assert total["read"] == total["write"] + 6  # NumPy looks at the first bytes twice


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_many_files_by_the_users_callback(is_asynchronous: bool, events: RecordedEvents, tmp_path: Path) -> None:
    class Counting(Callback):
        def __init__(self) -> None:
            super().__init__()
            self.branches: list[tuple[str, str]] = []

        def branched(self, path_1: str, path_2: str, **kwargs: Any) -> Callback:
            self.branches.append((path_1, path_2))
            return super().branched(path_1, path_2, **kwargs)

    plain = MemoryFileSystem()
    fs = observe.recorded_filesystem(AsyncFileSystemWrapper(plain) if is_asynchronous else plain)
    for number in range(5):
        plain.pipe_file(f"/many/{number}", bytes(number * 10))
    counting = Counting()
    fs.get("/many/", str(tmp_path / "copy"), recursive=True, callback=counting)
    fs.put([str(tmp_path / "copy" / str(n)) for n in range(5)], [f"/back/{n}" for n in range(5)], callback=counting)
    taken = Counter((kind, url.split("/")[-2], nbytes) for kind, url, _, nbytes, _ in events.take())
    expected = Counter((kind, name, n * 10) for kind, name in (("read", "many"), ("write", "back")) for n in range(5))
    assert expected <= taken and sum(nbytes for _, _, nbytes in taken) == 200
    assert len(counting.branches) >= 10 and counting.size in (5, 6)
    assert plain.cat_file("/back/4") == bytes(40)


def test_errors_are_recorded_and_raised(memory: AbstractFileSystem, events: RecordedEvents, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        memory.open("/none")
    with pytest.raises(FileNotFoundError):
        memory.cat_file("/none")
    assert [(kind, state) for kind, _, _, _, state in events.take()] == [("open", "failed"), ("read", "failed")]
    (tmp_path / "a").write_bytes(b"1")
    file = observe.recorded_filesystem(LocalFileSystem()).open(str(tmp_path / "a"))
    assert not file.closed
    file.close()
    assert file.closed
    with pytest.raises(ValueError, match="closed"):
        file.read()
    assert [(kind, state) for kind, _, _, _, state in events.take()] == [
        ("open", "completed"), ("close", "completed"), ("read", "failed"),
    ]  # fmt: skip


def test_local_files_are_counted_once(events: RecordedEvents, tmp_path: Path) -> None:
    """The hooks see what a local file system does: both are recorded, and one of them is counted."""
    place = find_recorders(os.getpid())[0]
    with observe.record_io():
        pass  # from now on the process has hooks
    before, io_before = recorded_bytes(place.read()), observe.activity_of(place.read()).io_nbytes
    fs = observe.recorded_filesystem(LocalFileSystem())
    with observe.record_io():
        fs.pipe_file(str(tmp_path / "data"), bytes(5000))
        assert fs.cat_file(str(tmp_path / "data")) == bytes(5000)
    after, io_after = recorded_bytes(place.read()), observe.activity_of(place.read()).io_nbytes
    assert events.total() == {"write": 5000, "read": 5000}
    assert after.written - before.written == 5000 and after.read - before.read == 5000
    assert io_after - io_before == 10_000


def test_transactions(events: RecordedEvents, tmp_path: Path) -> None:
    fs = observe.recorded_filesystem(LocalFileSystem())
    with fs.transaction:
        with fs.open(str(tmp_path / "kept"), "wb") as file:
            file.write(b"kept")
        assert not (tmp_path / "kept").exists()
    assert (tmp_path / "kept").read_bytes() == b"kept"
    with contextlib.suppress(KeyError), fs.transaction:
        with fs.open(str(tmp_path / "lost"), "wb") as file:
            file.write(b"lost!")
        raise KeyError
    assert not (tmp_path / "lost").exists()
    assert events.total() == {"write": 9}


def test_what_else_a_file_system_has() -> None:
    memory = MemoryFileSystem()
    fs = observe.recorded_filesystem(memory)
    assert observe.recorded_filesystem(fs) is fs
    assert isinstance(fs, AbstractFileSystem) and fs.protocol == "memory" and fs.store is memory.store
    assert fs == observe.recorded_filesystem(memory) and hash(fs) == hash(observe.recorded_filesystem(memory))
    assert pickle.loads(pickle.dumps(fs)) == fs
    assert fs.to_json() == memory.to_json() and fs.to_dict() == memory.to_dict()
    with pytest.raises(AttributeError):
        _ = fs.no_such_name
    mapper = fs.get_mapper("/root")
    mapper["key"] = b"value"
    assert mapper["key"] == b"value" and list(mapper) == ["key"]
    with raises(InvalidArgument, names=("fsspec", "str")):
        observe.recorded_filesystem("memory")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/key", "s3://bucket/key"),
        ("ftp://user:pass@host/file", "ftp://host/file"),
        ("https://host/file?X-Signature=secret&a=b", "https://host/file"),
        ("memory:///a", "memory:///a"),
        ("file:///tmp/a@b?c", "file:///tmp/a@b?c"),
    ],
)
def test_urls_show_no_secrets(url: str, shown: str) -> None:
    assert clean_url(url) == shown
