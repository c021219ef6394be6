"""A file system of fsspec that records what another one does."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.callbacks import DEFAULT_CALLBACK, Callback
from fsspec.utils import isfilelike

from hocket import _native
from hocket.observe.fsspec_call import FsspecCall, TransferCallback, local_size, record_many

RECORDED = (
    "cat", "cat_file", "cat_ranges", "copy", "cp", "cp_file", "download", "get", "get_file", "open", "pipe",
    "pipe_file", "put", "put_file", "upload",
)  # fmt: skip
"""Methods that are events themselves."""
COMPOSED = ("get_mapper", "head", "read_block", "read_bytes", "read_text", "tail", "write_bytes", "write_text")
"""Methods that consist of recorded ones, as fsspec defines them."""
MOVES_NO_BYTES = (
    "checksum", "created", "delete", "disk_usage", "du", "end_transaction", "exists", "expand_path", "find", "glob",
    "info", "invalidate_cache", "isdir", "isfile", "lexists", "listdir", "ls", "makedir", "makedirs", "mkdir",
    "mkdirs", "modified", "move", "mv", "rename", "rm", "rm_file", "rmdir", "sign", "size", "sizes",
    "start_transaction", "stat", "touch", "tree", "ukey", "unstrip_protocol", "walk",
)  # fmt: skip
"""Methods that are handed on: names, sizes and times, and moves, which are renames or copies inside the file system."""
OF_THE_CLASS = (
    "clear_instance_cache", "current", "from_dict", "from_json", "mirror_sync_methods", "to_dict", "to_json",
)  # fmt: skip
"""What makes or describes instances, and no call of a file system."""


class RecordedFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Does what another file system does, and records each call that moves bytes.

    Args:
        fs: the other file system.
    """

    cachable = False

    def __init__(self, fs: AbstractFileSystem) -> None:
        super().__init__()
        self.fs = fs
        self.protocol = fs.protocol
        self.root_marker = fs.root_marker
        self.blocksize = fs.blocksize
        self.sep = fs.sep
        self._strip_protocol = fs._strip_protocol
        self._parent = fs._parent

    def __getattr__(self, name: str) -> Any:
        # What this kind of file system has beside the methods of all.
        return getattr(self.__dict__["fs"], name)

    @property
    def fsid(self) -> str:
        """Of the other file system."""
        return str(self.fs.fsid)

    @property
    def transaction(self) -> Any:
        """Of the other file system, which opens and writes the files."""
        return self.fs.transaction

    def to_json(self, *, include_password: bool = True) -> str:
        """Return the other file system's JSON."""
        return str(self.fs.to_json(include_password=include_password))

    def to_dict(self, *, include_password: bool = True) -> dict[str, Any]:
        """Return the other file system's description."""
        return dict(self.fs.to_dict(include_password=include_password))

    def __reduce__(self) -> Any:
        return type(self), (self.fs,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordedFileSystem) and self.fs == other.fs

    def __hash__(self) -> int:
        return hash((RecordedFileSystem, self.fs))

    def _url(self, path: object) -> str:
        return str(self.fs.unstrip_protocol(str(path)))

    def open(
        self, path: Any, mode: str = "rb", block_size: Any = None, cache_options: Any = None, compression: Any = None,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Open a file; reads and writes of it are recorded as they are in the file, before decompression."""
        if "b" not in mode:
            text = {name: kwargs.pop(name) for name in ("encoding", "errors", "newline") if name in kwargs}
            binary = self.open(path, mode.replace("t", "") + "b", block_size, cache_options, compression, **kwargs)
            return io.TextIOWrapper(binary, **text)
        with FsspecCall("open", self._url(path)):
            file = self.fs.open(path, mode, block_size, cache_options, **kwargs)
        recorded = RecordedFile(file, self._url(path))
        if compression is None:
            return recorded
        from fsspec.compression import compr
        from fsspec.core import get_compression

        method = compr[get_compression(path, compression)]
        return method(recorded, mode=mode[0]) if method else recorded

    def cat_file(self, path: Any, start: int | None = None, end: int | None = None, **kwargs: Any) -> Any:
        """Read a file, or a range of it."""
        with FsspecCall("read", self._url(path), start or 0) as call:
            content = self.fs.cat_file(path, start=start, end=end, **kwargs)
            call.nbytes = len(content)
        return content

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any) -> Any:
        """Read one file or many."""
        began, _ = _native.clock_anchor()
        result = self.fs.cat(path, recursive=recursive, on_error=on_error, **kwargs)
        found = result if isinstance(result, dict) else {path: result}
        record_many(
            "read", began, ((self._url(name), 0, len(each)) for name, each in found.items() if isinstance(each, bytes))
        )
        return result

    def cat_ranges(
        self, paths: Any, starts: Any, ends: Any, max_gap: Any = None, on_error: str = "return", **kwargs: Any
    ) -> Any:
        """Read ranges of files."""
        began, _ = _native.clock_anchor()
        result = self.fs.cat_ranges(paths, starts, ends, max_gap=max_gap, on_error=on_error, **kwargs)
        offsets = starts if isinstance(starts, list) else [starts] * len(paths)
        found = zip(paths, offsets, result, strict=True)
        ranges = ((self._url(path), begin or 0, len(part)) for path, begin, part in found if isinstance(part, bytes))
        record_many("read", began, ranges)
        return result

    def pipe_file(self, path: Any, value: Any, mode: str = "overwrite", **kwargs: Any) -> Any:
        """Write a file."""
        with FsspecCall("write", self._url(path), 0) as call:
            result = self.fs.pipe_file(path, value, mode=mode, **kwargs)
            call.nbytes = len(value)
        return result

    def pipe(self, path: Any, value: Any = None, **kwargs: Any) -> Any:
        """Write one file or many."""
        began, _ = _native.clock_anchor()
        result = self.fs.pipe(path, value, **kwargs)
        written = path if isinstance(path, dict) else {path: value}
        record_many("write", began, ((self._url(name), 0, len(content)) for name, content in written.items()))
        return result

    def get_file(
        self, rpath: Any, lpath: Any = None, callback: Callback = DEFAULT_CALLBACK, outfile: Any = None, **kwargs: Any
    ) -> Any:
        """Copy a file to this machine, or into a local file that is open."""
        into = outfile if outfile is not None else lpath if isfilelike(lpath) else None
        with FsspecCall("read", self._url(rpath), 0) as call:
            before = into.tell() if into is not None else 0
            if outfile is not None:
                kwargs["outfile"] = outfile
            result = self.fs.get_file(rpath, lpath, callback=callback, **kwargs)
            call.nbytes = local_size(lpath) if into is None else into.tell() - before
        return result

    def put_file(
        self, lpath: Any, rpath: Any, callback: Callback = DEFAULT_CALLBACK, mode: str = "overwrite", **kwargs: Any
    ) -> Any:
        """Copy a file from this machine."""
        with FsspecCall("write", self._url(rpath), 0) as call:
            result = self.fs.put_file(lpath, rpath, callback=callback, mode=mode, **kwargs)
            call.nbytes = local_size(lpath)
        return result

    def get(
        self, rpath: Any, lpath: Any, recursive: bool = False, callback: Callback = DEFAULT_CALLBACK,
        maxdepth: int | None = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Copy files to this machine."""
        recording = TransferCallback(callback, "read", self._url)
        return self.fs.get(rpath, lpath, recursive=recursive, callback=recording, maxdepth=maxdepth, **kwargs)

    def put(
        self, lpath: Any, rpath: Any, recursive: bool = False, callback: Callback = DEFAULT_CALLBACK,
        maxdepth: int | None = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Copy files from this machine."""
        recording = TransferCallback(callback, "write", self._url)
        return self.fs.put(lpath, rpath, recursive=recursive, callback=recording, maxdepth=maxdepth, **kwargs)

    def cp_file(self, path1: Any, path2: Any, **kwargs: Any) -> Any:
        """Copy a file inside the file system."""
        with FsspecCall("copy", self._url(path1), 0) as call:
            result = self.fs.cp_file(path1, path2, **kwargs)
            call.nbytes = self._size(path1)
        return result

    def copy(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, on_error: Any = None,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Copy files inside the file system."""
        began, _ = _native.clock_anchor()
        sources = path1 if isinstance(path1, list) else self.fs.expand_path(path1, recursive, maxdepth)
        sizes = [(self._url(path), 0, self._size(path)) for path in sources]
        result = self.fs.copy(path1, path2, recursive=recursive, maxdepth=maxdepth, on_error=on_error, **kwargs)
        record_many("copy", began, sizes)
        return result

    cp, download, upload = copy, get, put

    def _size(self, path: Any) -> int:
        try:
            info = self.fs.info(path)
        except FileNotFoundError:
            return 0
        return int(info["size"] or 0) if info["type"] == "file" else 0


def _handed_on(name: str) -> Callable[..., Any]:
    @wraps(getattr(AbstractFileSystem, name))
    def call(self: RecordedFileSystem, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.fs, name)(*args, **kwargs)

    return call


for _name in MOVES_NO_BYTES:
    if hasattr(AbstractFileSystem, _name):
        setattr(RecordedFileSystem, _name, _handed_on(_name))


class RecordedFile(io.IOBase):
    """An open file whose reads and writes are events.

    Args:
        file: the file that does the work.
        url: its name.
    """

    def __init__(self, file: Any, url: str) -> None:
        self._file = file
        self._url = url

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_file"], name)

    def __enter__(self) -> RecordedFile:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        with FsspecCall("close", self._url):
            return self._file.__exit__(*error)

    def __del__(self) -> None:
        pass  # the file closes itself

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    def __next__(self) -> bytes:
        line = self.readline()
        if not line:
            raise StopIteration
        return bytes(line)

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return bool(self._file.closed)

    def close(self) -> None:
        """Close it."""
        if not self._file.closed:
            with FsspecCall("close", self._url):
                self._file.close()

    def read(self, *args: Any) -> Any:
        """Read bytes."""
        return self._moved("read", "read", len, args)

    def read1(self, *args: Any) -> Any:
        """Read bytes with at most one call below, if the file can do so."""
        return self._moved("read", "read1" if hasattr(self._file, "read1") else "read", len, args)

    def readline(self, *args: Any) -> Any:
        """Read a line."""
        return self._moved("read", "readline", len, args)

    def readlines(self, *args: Any) -> Any:
        """Read lines."""
        return self._moved("read", "readlines", lambda lines: sum(map(len, lines)), args)

    def readuntil(self, *args: Any, **kwargs: Any) -> Any:
        """Read until a delimiter."""
        return self._moved("read", "readuntil", len, args, kwargs)

    def readinto(self, buffer: Any) -> Any:
        """Read into memory."""
        return self._moved("read", "readinto", int, (buffer,))

    def readinto1(self, buffer: Any) -> Any:
        """Read into memory."""
        return self._moved("read", "readinto1" if hasattr(self._file, "readinto1") else "readinto", int, (buffer,))

    def write(self, content: Any) -> Any:
        """Write bytes."""
        nbytes = memoryview(content).nbytes
        return self._moved("write", "write", lambda written: nbytes if written is None else int(written), (content,))

    def writelines(self, lines: Any) -> None:
        """Write several pieces."""
        for line in lines:
            self.write(line)

    def seek(self, *args: Any) -> Any:
        """Move to another place."""
        return self._file.seek(*args)

    def tell(self) -> Any:
        """Return the present place."""
        return self._file.tell()

    def truncate(self, *args: Any) -> Any:
        """Shorten the file."""
        return self._file.truncate(*args)

    def flush(self, *args: Any, **kwargs: Any) -> Any:
        """Write what is buffered."""
        return self._file.flush(*args, **kwargs)

    def readable(self) -> bool:
        """Whether it can be read."""
        return bool(self._file.readable())

    def writable(self) -> bool:
        """Whether it can be written."""
        return bool(self._file.writable())

    def seekable(self) -> bool:
        """Whether it has places."""
        return bool(self._file.seekable())

    def fileno(self) -> int:
        """Return its descriptor; what is done with that is not recorded here."""
        return int(self._file.fileno())

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return False

    def _moved(self, kind: str, method: str, count: Callable[[Any], int], args: Any, kwargs: Any = None) -> Any:
        try:
            offset = self._file.tell()
        except (OSError, ValueError):
            offset = None  # the file says so itself, if it is closed
        with FsspecCall(kind, self._url, offset) as call:
            result = getattr(self._file, method)(*args, **(kwargs or {}))
            call.nbytes = 0 if result is None and kind == "read" else count(result)
        return result
