"""Arrays in device memory, and arrays with DLPack only."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest

import hocket as hk
import hocket.memory

from ..backends import WITH_COLLECTIVES
from ..load import scaled
from ..naming import raises
from . import devices
from .devices import DeviceArray, FakeDriver, tensor_on_device

pytestmark = pytest.mark.timeout(100)
cloudpickle.register_pickle_by_value(devices)  # ranks cannot import modules of the tests
TYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
         "bool", "complex64", "complex128"]  # fmt: skip


class OnlyDLPack:
    """An array of which only DLPack is visible."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __dlpack__(self, **how: Any) -> Any:
        return self.x.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


@pytest.fixture(scope="module")
def comm() -> Iterator[hk.Communicator]:
    with hk.init(backends="shm") as world:
        yield world


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    fake = FakeDriver()
    hocket.memory.use_driver(fake)
    yield fake
    hocket.memory.use_driver(None)


def _every_operation(comm: hk.Communicator, which: str, backend: str) -> bool:
    comm.finalize()
    comm = hk.init(backends=["shm", backend], timeout=scaled(30))
    fake = FakeDriver()
    hocket.memory.use_driver(fake)
    pages = iter(range(0, 1000, 2))

    def array(x: np.ndarray[Any, Any]) -> tuple[Any, Callable[[], np.ndarray[Any, Any]]]:
        if which == "device":
            device = DeviceArray(fake, x, next(pages))
            return device, device.read
        return OnlyDLPack(x), lambda: x

    own, size = float(comm.rank), comm.size
    ranks = np.arange(float(size))
    x, value = array(np.full(6, own))
    comm.all_reduce(x, backend=backend)
    np.testing.assert_array_equal(value(), np.full(6, ranks.sum()))
    for dtype in TYPES:
        x, value = array(np.full(5, comm.rank, dtype))
        comm.all_reduce(x, "max" if "complex" not in dtype else "sum", backend=backend)
        np.testing.assert_array_equal(value(), np.full(5, size - 1 if "complex" not in dtype else ranks.sum(), dtype))
    x, _ = array(np.full(3, own))
    out, value = array(np.zeros((size, 3)))
    comm.all_gather(out, x, backend=backend)
    np.testing.assert_array_equal(value(), np.repeat(ranks[:, None], 3, 1))
    # In flight at the same time, one after another on the same memory, and waited for in another order.
    y, of_y = array(np.full(1000, own))
    first = comm.all_reduce(y, backend=backend, async_op=True)
    second = comm.all_reduce(y, backend="shm", async_op=True)
    second.wait()
    first.wait()
    np.testing.assert_array_equal(of_y(), np.full(1000, size * ranks.sum()))
    prepared = comm.prepare("all_reduce", y, "avg", backend=backend)
    for _ in range(3):
        prepared.start()
        prepared.wait()
    np.testing.assert_array_equal(of_y(), np.full(1000, size * ranks.sum()))
    a, of_a = array(np.full(2, own))
    b, of_b = array(np.full(4, own + 1))
    comm.all_reduce_coalesced([a, b], backend=backend)
    np.testing.assert_array_equal(of_a(), np.full(2, ranks.sum()))
    np.testing.assert_array_equal(of_b(), np.full(4, ranks.sum() + size))
    right, left = (comm.rank + 1) % size, (comm.rank - 1) % size
    received, of_received = array(np.zeros(3))
    receive = comm.irecv(received, left, backend=backend)
    comm.send(x, right, backend=backend)
    receive.wait()
    np.testing.assert_array_equal(of_received(), np.full(3, float(left)))
    comm.finalize()
    return True


def _ends_during_the_copy(comm: hk.Communicator, how: str) -> None:
    """An operation on an array that another operation writes into until this one has made its copy."""
    comm.finalize()
    comm = hk.init(backends="shm", timeout=scaled(30), progress="thread")
    fake = FakeDriver()
    hocket.memory.use_driver(fake)
    x = DeviceArray(fake, np.full(6, comm.rank + 1.0))
    prepared = comm.prepare("all_reduce", x)
    comm.barrier()
    if comm.rank == 1:
        time.sleep(0.1)  # rank 0 has started its copy by then, and waits for its end
    first = comm.all_reduce(x, async_op=True)
    fake.copy_s = 0.3  # the first operation finishes long before, because the progress thread drives it
    if how == "asynchronous":
        comm.all_reduce(x, async_op=True).wait()
    elif how == "blocking":
        comm.all_reduce(x)
    elif how == "prepared":
        prepared()
    else:
        comm.all_reduce_coalesced([x, DeviceArray(fake, np.zeros(2), 1)])
    first.wait()
    np.testing.assert_array_equal(x.read(), np.full(6, 6.0))


@pytest.mark.parametrize("how", ["asynchronous", "blocking", "prepared", "coalesced"])
def test_an_operation_that_ends_while_the_next_one_copies(how: str) -> None:
    hk.spawn(_ends_during_the_copy, 2, how, timeout=60)


@pytest.mark.parametrize("backend", WITH_COLLECTIVES)
@pytest.mark.parametrize("which", ["device", "dlpack"])
def test_every_kind_of_operation(which: str, backend: str) -> None:
    assert hk.spawn(_every_operation, 2, which, backend, timeout=90) == [True] * 2


def test_streams_are_waited_for_as_the_interface_says(comm: hk.Communicator, driver: FakeDriver) -> None:
    x = np.ones(4, np.float32)
    for page, (fields, waited) in enumerate(
        [
            ({}, [(3, 1)]),  # version 3 without a stream: the default stream may still be filling it
            ({"stream": None}, [(3, 1)]),
            ({"stream": 7}, [(3, 7)]),
            ({"version": 2}, [(3, None)]),  # no statement about streams: all streams
        ]
    ):
        driver.synchronized.clear()
        comm.all_reduce(DeviceArray(driver, x, page, **fields))
        assert driver.synchronized == waited, fields


def test_managed_memory_is_used_in_place(comm: hk.Communicator) -> None:
    fake = FakeDriver(kind="managed")
    hocket.memory.use_driver(fake)
    array = DeviceArray(fake, np.arange(4.0), version=2)
    fake.fails = True  # no copy may be made
    comm.broadcast(array, 0)
    assert fake.synchronized == [(3, None)]
    hocket.memory.use_driver(None)


def test_a_device_that_fails(comm: hk.Communicator, driver: FakeDriver) -> None:
    array = DeviceArray(driver, np.ones(4))
    driver.fails = True
    with raises(hk.Aborted, names=("copy_to_host", "'fake'", "700")):
        comm.all_reduce(array)
    driver.fails = False
    prepared = comm.prepare("all_reduce", array)
    prepared()
    np.testing.assert_array_equal(array.read(), np.ones(4))


@pytest.mark.parametrize(
    ("fields", "error", "names"),
    [
        ({"typestr": ">f4"}, hk.UnsupportedDtype, ("x", ">f4", "float32")),
        ({"typestr": "|V2"}, hk.UnsupportedDtype, ("x", "|V2", "float32")),
        ({"mask": np.ones(4)}, hk.InvalidType, ("x", "masked")),
        ({"strides": (8,)}, hk.InvalidType, ("x", "contiguous")),
        (
            {"shape": (4096,)},
            hk.InvalidArgument,
            ("16384 bytes", "16 bytes"),
        ),
    ],
)
def test_what_cannot_be_used(
    comm: hk.Communicator, driver: FakeDriver, fields: dict[str, Any], error: type[Exception], names: tuple[str, ...]
) -> None:
    with raises(error, names=names):
        comm.all_reduce(DeviceArray(driver, np.ones(4, np.float32), **fields))


def test_read_only_device_memory_is_input_only(comm: hk.Communicator, driver: FakeDriver) -> None:
    array = DeviceArray(driver, np.full(4, 2.0))
    array.__cuda_array_interface__["data"] = (array.address, True)
    out = np.zeros(4)
    comm.all_gather(out, array)
    np.testing.assert_array_equal(out, np.full(4, 2.0))
    with raises(hk.InvalidType, names=("x", "read-only")):
        comm.all_reduce(array)


def test_torch_tensors_of_a_cuda_device(
    comm: hk.Communicator, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    devices_asked = []

    def current_stream(device: Any) -> Any:
        devices_asked.append(device)
        return SimpleNamespace(cuda_stream=11)

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    x = torch.arange(6.0)
    tensor = tensor_on_device(driver, x)
    driver.write(tensor.data_ptr(), np.full(6, 5, np.float32))  # values that the tensor's host memory does not have
    version = tensor._version
    comm.all_reduce(tensor)
    np.testing.assert_array_equal(tensor.read(), np.full(6, 5))
    assert (x == torch.arange(6.0)).all() and tensor._version == version + 1
    assert devices_asked == [torch.device("cuda", 3)] and driver.synchronized == [(3, 11)]
    out = np.zeros(6, np.float32)
    comm.all_gather(out, tensor)
    np.testing.assert_array_equal(out, np.full(6, 5))
    prepared = comm.prepare("all_reduce", tensor)
    driver.synchronized.clear()
    prepared()
    assert driver.synchronized == [(3, None)]  # before each start, because the current stream may be another one
    with raises(hk.InvalidType, names=("x", "x.contiguous()")):
        comm.all_reduce(tensor_on_device(driver, torch.zeros(4))[::2])


def test_dlpack(comm: hk.Communicator) -> None:
    x = np.arange(12.0).reshape(3, 4)
    comm.all_gather(out := np.zeros((3, 2)), OnlyDLPack(x[:, ::2]))
    np.testing.assert_array_equal(out, x[:, ::2])
    torch = pytest.importorskip("torch")
    y = torch.full((4,), 2.0, dtype=torch.bfloat16)
    comm.all_reduce(OnlyDLPack(y))
    assert (y == 2).all()
    frozen = np.ones(3)
    frozen.flags.writeable = False
    comm.all_gather(out := np.zeros(3), OnlyDLPack(frozen))
    np.testing.assert_array_equal(out, frozen)
    with raises(hk.InvalidType, names=("x", "read-only")):
        comm.all_reduce(OnlyDLPack(frozen))

    class Broken:
        def __dlpack__(self, **how: Any) -> Any:
            raise RuntimeError("not now")

        def __dlpack_device__(self) -> Any:
            return 1, 0

    with raises(hk.InvalidType, names=("x", "Broken", "DLPack")):
        comm.all_reduce(Broken())  # type: ignore[arg-type]
    with raises(hk.InvalidType, names=("x", "DLPack", "CUDA", "list")):
        comm.all_reduce([1.0])  # type: ignore[arg-type]


def test_a_buffer_that_is_refused(comm: hk.Communicator, driver: FakeDriver) -> None:
    """CuPy's arrays have the buffer protocol, and report through it that they are not in host memory."""
    released = memoryview(bytearray(8))
    released.release()
    with pytest.raises(ValueError, match="released"):
        comm.all_reduce(released)
    array = DeviceArray(driver, np.arange(4.0))

    class OnDevice(mmap.mmap):
        __cuda_array_interface__ = array.__cuda_array_interface__

    refusing = OnDevice(-1, mmap.PAGESIZE)
    refusing.close()
    comm.all_reduce(refusing)
    np.testing.assert_array_equal(array.read(), np.arange(4.0))
