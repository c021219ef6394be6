"""File I/O of Python libraries, for test_io.py: ``python io_script.py FOLDER``; every file begins with its category."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def use_builtin(folder: Path) -> None:
    (folder / "builtin-text").write_text("line\n" * 30_000)
    with open(folder / "builtin-text") as file:
        file.readline()
        file.seek(1000)
        file.read(77)
        for _ in file:
            pass
    with open(folder / "builtin-binary", "wb", buffering=0) as raw:
        raw.write(bytes(100_001))
        raw.writelines([b"one", b"two"])
    with open(folder / "builtin-binary", "r+b") as both:
        both.read(10)
        both.seek(5000)
        both.write(b"changed")
        both.flush()
        os.fsync(both.fileno())
        both.readinto(bytearray(7000))
    fd = os.open(folder / "builtin-binary", os.O_RDWR)
    os.pread(fd, 1234, 99)
    os.pwrite(fd, b"there", 10)
    os.preadv(fd, [bytearray(10), bytearray(1000)], 5)
    os.pwritev(fd, [b"some", b"pieces"], 50_000)
    os.writev(fd, [b"a" * 5000, b"b"])
    target = os.open(folder / "builtin-copy", os.O_RDWR | os.O_CREAT)
    os.copy_file_range(fd, target, 3000, 0)
    os.sendfile(target, fd, 500, 4000)
    os.close(fd)
    os.close(target)
    shutil.copy(folder / "builtin-binary", folder / "builtin-shutil")
    with tempfile.NamedTemporaryFile(dir=folder, prefix="builtin-") as temporary:
        temporary.write(b"temporary")
    # as bytes: a newline, and what is no UTF-8
    for name in (b"builtin-new\nline", b"builtin-\xff\xfe", "builtin-ä>ö".encode()):
        with open(os.path.join(os.fsencode(folder), name), "wb") as odd:
            odd.write(b"odd" * 100)


def use_numpy(folder: Path) -> None:
    import numpy as np

    values = np.arange(300_000.0)
    np.save(folder / "numpy-save.npy", values)
    assert np.load(folder / "numpy-save.npy").sum() == values.sum()
    np.savez(folder / "numpy-savez.npz", values=values, others=values[:10])
    assert np.load(folder / "numpy-savez.npz")["others"].size == 10
    values.tofile(folder / "numpy-tofile")
    assert np.fromfile(folder / "numpy-tofile").sum() == values.sum()
    with open(folder / "numpy-tofile", "rb") as file:
        file.read(80)
        assert np.fromfile(file, count=1000)[0] == 10.0
        assert np.fromfile(file, count=10, offset=800)[0] == 1110.0
    np.savetxt(folder / "numpy-text", values[:3000])
    assert np.loadtxt(folder / "numpy-text").size == 3000
    mapped = np.memmap(folder / "numpy-memmap", dtype=np.float64, mode="w+", shape=1000)
    mapped[:] = 1
    mapped.flush()


def use_torch(folder: Path) -> None:
    import torch

    state = {"weight": torch.ones(500, 700), "bias": torch.zeros(700), "name": "layer"}
    torch.save(state, folder / "torch-save")
    assert torch.load(folder / "torch-save")["weight"].sum() == 350_000
    torch.save(state, folder / "torch-legacy", _use_new_zipfile_serialization=False)
    assert torch.load(folder / "torch-legacy")["name"] == "layer"
    torch.load(folder / "torch-save", mmap=True)
    with open(folder / "torch-file", "wb") as file:
        torch.save(state, file)


def use_arrow(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.feather as feather
    import pyarrow.parquet as parquet

    table = pa.table({"number": list(range(50_000)), "text": [str(i % 1000) for i in range(50_000)]})
    parquet.write_table(table, folder / "arrow-parquet")
    assert parquet.read_table(folder / "arrow-parquet", columns=["number"]).num_rows == 50_000
    feather.write_feather(table, str(folder / "arrow-feather"))
    assert feather.read_table(str(folder / "arrow-feather"), memory_map=False).num_rows == 50_000
    with pa.OSFile(str(folder / "arrow-stream"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def use_children(folder: Path) -> None:
    shared = os.open(folder / "children-shared", os.O_RDWR | os.O_CREAT)
    os.write(shared, b"of the parent")
    pid = os.fork()
    if pid == 0:
        os.write(shared, b"of a child")
        (folder / "children-forked").write_bytes(bytes(12_345))
        os._exit(0)
    os.waitpid(pid, 0)
    with open(folder / "children-output", "wb") as output:
        subprocess.run(["cat", folder / "children-forked"], stdout=output, check=True)
        subprocess.run(["sh", "-c", "echo text; wc -c < children-forked"], stdout=output, cwd=folder, check=True)
    pid = os.posix_spawn("/bin/cp", ["cp", str(folder / "children-output"), str(folder / "children-copy")], os.environ)
    os.waitpid(pid, 0)
    with open(folder / "children-mapped", "w+b") as file:
        file.write(bytes(8192))
        file.flush()
        with mmap.mmap(file.fileno(), 8192) as mapping:
            mapping[0] = 1
            mapping.flush()


if __name__ == "__main__":
    place = Path(sys.argv[1])
    use_builtin(place)
    use_numpy(place)
    use_torch(place)
    use_arrow(place)
    use_children(place)
