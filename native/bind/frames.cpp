#include "bind/frames.hpp"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/random.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/errors.hpp"
#include "bind/frame_loans.hpp"
#include "bind/lanes.hpp"
#include "core/clock.hpp"
#include "frames/carrier.hpp"
#include "frames/device_loan.hpp"
#include "frames/stream.hpp"
#include "shm/peer_memory.hpp"

namespace hocket {

namespace {

// Received frames that are smaller are copied.
constexpr uint64_t kCopiedBytes = 64 << 10;

// Python's hold on a waker. Background threads have the waker itself: they must never need Python's lock.
struct WakerHandle {
  std::shared_ptr<LoopWaker> waker = std::make_shared<LoopWaker>();
};

// Python's hold on a carrier.
struct CarrierHandle {
  std::shared_ptr<FrameCarrier> carrier;
};

// The memory of received frames, as a writable buffer.
struct FrameMemory {
  std::shared_ptr<FrameBlock> block;
};

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const auto* memory = nb::inst_ptr<FrameMemory>(self);
  return PyBuffer_FillInfo(view, self, memory->block->data(), static_cast<Py_ssize_t>(memory->block->nbytes()), 0,
                           flags);
}

PyType_Slot memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

nb::object new_reference(PyObject* object) {
  if (!object) throw nb::python_error();
  return nb::steal(object);
}

nb::object view_of(const std::shared_ptr<FrameBlock>& block) {
  const nb::object memory = nb::cast(FrameMemory{block});
  return new_reference(PyMemoryView_FromObject(memory.ptr()));
}

// Views of the frames of a message, each of memory of its own: who keeps one does not keep the others. Loans are bytes.
nb::list views_of(const std::vector<ReceivedFrame>& frames) {
  nb::list views;
  for (const ReceivedFrame& each : frames) {
    if (each.is_loan) {
      views.append(nb::bytes(reinterpret_cast<const char*>(each.block->data() + each.offset), each.nbytes));
      continue;
    }
    if (each.nbytes >= kCopiedBytes) {
      views.append(view_of(each.block));
      continue;
    }
    // Small ones came together in one block. A copy takes less time than an object of our own would.
    const char* data = each.nbytes ? reinterpret_cast<const char*>(each.block->data() + each.offset) : nullptr;
    const nb::object copy = new_reference(PyByteArray_FromStringAndSize(data, static_cast<Py_ssize_t>(each.nbytes)));
    views.append(new_reference(PyMemoryView_FromObject(copy.ptr())));
  }
  return views;
}

SentBytes bytes_of(nb::handle frame) {
  auto view = std::make_unique<Py_buffer>();
  if (!PyObject_CheckBuffer(frame.ptr()))
    if (auto loan = loan_bytes_of(frame)) return std::move(*loan);
  if (PyObject_GetBuffer(frame.ptr(), view.get(), PyBUF_SIMPLE) != 0) throw nb::python_error();
  const auto* data = static_cast<const std::byte*>(view->buf);
  const auto nbytes = static_cast<uint64_t>(view->len);
  return {data, nbytes, std::shared_ptr<void>(view.release(), [](void* held) {
            auto* buffer = static_cast<Py_buffer*>(held);
            PyBuffer_Release(buffer);
            delete buffer;
          })};
}

// Returns the number of bytes of the message.
uint64_t send(FrameStream& stream, const nb::list& frames) {
  std::vector<SentBytes> bytes;
  bytes.reserve(frames.size());
  uint64_t nbytes = 0;
  for (const nb::handle each : frames) {
    bytes.push_back(bytes_of(each));
    nbytes += bytes.back().is_loan ? loan_from(bytes.back().data).nbytes : bytes.back().nbytes;
  }
  stream.send(std::move(bytes));
  return nbytes;
}

void end(FrameStream& stream) {
  {
    const nb::gil_scoped_release released;
    stream.wait_for_copies();
  }
  stream.end();
}

bool spin(const FrameStream& stream, int64_t spin_ns) {
  const nb::gil_scoped_release released;
  return stream.spin(spin_ns);
}

// Bytes by which others make sure that they read the memory of this process.
const std::array<std::byte, 16>& cookie() {
  static const auto bytes = [] {
    std::array<std::byte, 16> random;
    if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
      throw Failure(ErrorCode::resource_exhausted, "the system has no random bytes");
    return random;
  }();
  return bytes;
}

template <size_t kSize>
std::array<std::byte, kSize> array_of(const nb::bytes& bytes) {
  std::array<std::byte, kSize> array;
  if (bytes.size() != kSize) throw Failure(ErrorCode::invalid_argument, "expected " + std::to_string(kSize) + " bytes");
  std::memcpy(array.data(), bytes.c_str(), kSize);
  return array;
}

nb::object probe_found(const CarrierHandle& self) {
  const auto found = self.carrier->probe_found();
  return found ? nb::object(nb::bytes(reinterpret_cast<const char*>(found->data()), found->size())) : nb::none();
}

bool reads_cookie(int pid, uint64_t address, const nb::bytes& expected) {
  std::array<std::byte, 16> found;
  if (expected.size() != found.size() || !may_read_memory(pid)) return false;
  try {
    return read_memory(pid, address, found.data(), found.size()) &&
           std::memcmp(found.data(), expected.c_str(), found.size()) == 0;
  } catch (const Failure&) {
    return false;
  }
}

}  // namespace

void bind_frames(nb::module_& module) {
  nb::class_<FrameMemory>(module, "FrameMemory", nb::type_slots(memory_slots));
  nb::class_<WakerHandle>(module, "LoopWaker")
      .def(nb::init<>())
      .def("fileno", [](const WakerHandle& self) { return self.waker->fd(); })
      .def("ended", [](const WakerHandle& self) { return self.waker->ended(); });
  nb::class_<CarrierHandle>(module, "FrameCarrier")
      .def(
          "__init__",
          [](CarrierHandle* self, PyLane& lane, int peer, int tag_out, int tag_in) {
            if (!lane.lane) throw Failure(ErrorCode::invalid_argument, "the lane has an owner already");
            new (self) CarrierHandle{std::make_shared<FrameCarrier>(std::move(lane.lane), peer, tag_out, tag_in)};
          },
          nb::arg("lane"), nb::arg("peer"), nb::arg("tag_out"), nb::arg("tag_in"))
      .def(
          "begin_probe",
          [](CarrierHandle& self, const nb::bytes& sent) {
            self.carrier->begin_probe(array_of<FrameCarrier::kProbeBytes>(sent));
          },
          nb::arg("sent"))
      .def("probe_found", &probe_found)
      .def("abandon_probe", [](CarrierHandle& self) { self.carrier->abandon_probe(); });
  module.def(
      "stop_carriers",
      [](double timeout_s) {
        const nb::gil_scoped_release released;  // lanes in Python need it to end
        FrameCarrier::stop_all(static_cast<int64_t>(timeout_s * 1e9));
      },
      nb::arg("timeout_s"));
  nb::class_<FrameStream>(module, "FrameStream")
      .def(
          "__init__",
          [](FrameStream* self, int fd, bool is_local, int lender, bool lends, const CarrierHandle* carrier,
             bool takes_loans, std::tuple<uint64_t, uint64_t, uint64_t> limits, const WakerHandle& waker,
             uint64_t number) {
            const auto [large_nbytes, most_nbytes, high_water] = limits;
            new (self) FrameStream({fd, is_local, lender, lends, carrier ? carrier->carrier : nullptr, takes_loans,
                                    large_nbytes, most_nbytes, high_water, waker.waker, number});
          },
          nb::arg("fd"), nb::arg("is_local"), nb::arg("lender"), nb::arg("lends"), nb::arg("carrier").none(),
          nb::arg("takes_loans"), nb::arg("limits"), nb::arg("waker"), nb::arg("number"))
      .def("send", &send, nb::arg("frames"))
      .def("flush", &FrameStream::flush)
      .def("receive", &FrameStream::receive)
      .def("spin", &spin, nb::arg("spin_ns"))
      .def("collect", &FrameStream::collect)
      .def("take",
           [](FrameStream& self) -> nb::object {
             const auto frames = self.take();
             return frames ? nb::object(views_of(*frames)) : nb::none();
           })
      .def(
          "trim", [](FrameStream& self, int64_t unused_ns) { self.trim(now_ns() - unused_ns); }, nb::arg("unused_ns"))
      .def("has_segments", &FrameStream::has_segments)
      .def("pull_all", &FrameStream::pull_all)
      .def("has_loans", &FrameStream::has_loans)
      .def("end_loans", &FrameStream::end_loans)
      .def("owes_receipt", &FrameStream::owes_receipt)
      .def("is_full", &FrameStream::is_full)
      .def("has_message", &FrameStream::has_message)
      .def("has_unsent", &FrameStream::has_unsent)
      .def("waiting_nbytes", &FrameStream::waiting_nbytes)
      .def("end", &end)
      .def("counts", [](const FrameStream& self) {
        const FrameStreamCounts& counts = self.counts();
        return std::make_tuple(counts.num_sent, counts.nbytes_sent, counts.nbytes_lent, counts.nbytes_shared,
                               counts.nbytes_carried_out, counts.nbytes_device_out, counts.num_received,
                               counts.nbytes_received, counts.nbytes_borrowed, counts.nbytes_mapped,
                               counts.nbytes_carried_in, counts.nbytes_device_in);
      });
  bind_frame_loans(module);
  module.def("memory_cookie", [] {
    return nb::make_tuple(reinterpret_cast<uintptr_t>(cookie().data()),
                          nb::bytes(reinterpret_cast<const char*>(cookie().data()), cookie().size()));
  });
  module.def("reads_cookie", &reads_cookie, nb::arg("pid"), nb::arg("address"), nb::arg("expected"));
}

}  // namespace hocket
