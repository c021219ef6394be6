#include "bind/frame_loans.hpp"

#include <nanobind/stl/unique_ptr.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "bind/arrays.hpp"
#include "bind/errors.hpp"
#include "bind/pointer_cache.hpp"
#include "core/error.hpp"
#include "frames/device_loan.hpp"

namespace hocket {

namespace {

constexpr uint64_t kMostRead = 64;

// Python's hold on a frame in device memory that can be sent; it keeps the array. Used with Python's lock.
struct FrameLoan {
  FrameLoan(DeviceLoan given, int on, nb::object owner) : loan(given), device(on), array(std::move(owner)) {
    if (!loan.for_own_process) return;
    static uint64_t next = 0;
    loan.allocation.id = ++next;
    own()[next] = this;
  }
  ~FrameLoan() {
    if (loan.for_own_process) own().erase(loan.allocation.id);
  }
  FrameLoan(const FrameLoan&) = delete;
  FrameLoan& operator=(const FrameLoan&) = delete;

  // Those for this process, by their numbers.
  static std::map<uint64_t, FrameLoan*>& own() {
    static auto* loans = new std::map<uint64_t, FrameLoan*>;  // NOLINT: never destroyed
    return *loans;
  }

  DeviceLoan loan;
  int device;
  nb::object array;
};

// The array of a loan of this process: it is kept while it is copied, though the sender may have ended meanwhile.
nb::object array_of_own(const DeviceLoan& loan) {
  const auto found = FrameLoan::own().find(loan.allocation.id);
  if (found == FrameLoan::own().end() || std::memcmp(&found->second->loan, &loan, sizeof loan) != 0)
    throw Failure(ErrorCode::peer_failure, "the frame in device memory is gone");
  return found->second->array;
}

// Waits for what a device still does to an array, without Python's lock, with which it is acquired afterwards.
void wait_for_device(nb::handle array) {
  if (!nb::hasattr(array, "__cuda_array_interface__")) return;
  const nb::dict interface = nb::cast<nb::dict>(array.attr("__cuda_array_interface__"));
  const auto address = nb::cast<uintptr_t>(nb::cast<nb::tuple>(interface["data"])[0]);
  if (!address) return;
  const std::shared_ptr<MemoryDriver> driver = memory_driver();
  const Buffer buffer = pointer_cache().find(*driver, address, array.ptr());
  if (buffer.kind == MemoryKind::host) return;
  std::optional<uintptr_t> stream;
  if (interface.contains("stream") && !interface["stream"].is_none()) stream = nb::cast<uintptr_t>(interface["stream"]);
  const nb::gil_scoped_release released;
  driver->synchronize(buffer.device, stream ? &*stream : nullptr);
}

DeviceLoan loan_of(const nb::bytes& bytes) {
  if (bytes.size() != sizeof(DeviceLoan))
    throw Failure(ErrorCode::invalid_argument,
                  "a loan has " + std::to_string(sizeof(DeviceLoan)) + " bytes, not " + std::to_string(bytes.size()));
  return loan_from(reinterpret_cast<const std::byte*>(bytes.c_str()));
}

// The loan of an array that another process of this host, or this one, can copy; None: none can.
nb::object lend_frame(nb::handle object, bool is_for_others) {
  wait_for_device(object);
  Array array;
  array.acquire(object.ptr(), {"frame", Access::read});
  DeviceLoan loan{};
  const auto lent = [&](int device) { return nb::cast(std::make_unique<FrameLoan>(loan, device, nb::borrow(object))); };
  if (array.nbytes() == 0) return lent(DeviceArrays::kAny);
  const DeviceMemory* memory = array.device();
  if (!memory) return nb::none();  // the host can access it
  const Buffer& buffer = memory->buffer;
  loan.allocation = {buffer.begin, buffer.end, buffer.id, {}};
  loan.offset = memory->address - buffer.begin;
  loan.nbytes = array.nbytes();
  if (is_for_others && (!memory->driver->shares_memory() || !memory->driver->share(buffer, &loan.allocation.handle)))
    return nb::none();
  loan.for_own_process = !is_for_others;
  return lent(buffer.device);
}

// Allocations of peers that are open in this process. Used without Python's lock, which drivers may need.
class OpenedLoans {
 public:
  static OpenedLoans& mine() {
    static auto* loans = new OpenedLoans;  // NOLINT: never destroyed, as drivers may need Python
    return *loans;
  }

  // Calls copy(address), with the address of a loan's bytes for a device of this process.
  template <typename Copy>
  void use(const std::shared_ptr<MemoryDriver>& driver, int device, int owner, const DeviceLoan& loan, Copy copy) {
    if (owner == getpid()) {
      copy(static_cast<uintptr_t>(loan.allocation.begin + loan.offset));
      return;
    }
    auto opened = open(driver, device, owner, loan.allocation);
    copy(reinterpret_cast<uintptr_t>(opened->data()) + loan.offset);
    opened = nullptr;
    // An allocation that is open cannot be used again by its owner once that frees it. Those of a pool are kept open:
    // they stay, and opening takes longer than many copies.
    const uint64_t size = loan.allocation.end - loan.allocation.begin;
    if (loan.nbytes > size / 2)
      close_if([&](const OpenedAllocation& each) { return each.is(*driver, device, owner, loan.allocation); });
  }

  void close_of(int owner) {
    close_if([owner](const OpenedAllocation& each) { return each.owner() == owner; });
  }

 private:
  std::shared_ptr<const OpenedAllocation> open(const std::shared_ptr<MemoryDriver>& driver, int device, int owner,
                                               const SharedAllocation& allocation) {
    const std::lock_guard guard(mutex_);
    return opened_.open(driver, device, owner, allocation);
  }
  void close_if(const std::function<bool(const OpenedAllocation&)>& is_such) {
    const std::lock_guard guard(mutex_);
    opened_.close_if(is_such);
  }

  std::mutex mutex_;
  OpenedMemory opened_;
};

// Copies what was lent by a process of this host, or this one, into an array of as many bytes.
void copy_loan(const nb::bytes& bytes, int owner, nb::handle into) {
  const DeviceLoan loan = loan_of(bytes);
  wait_for_device(into);
  Array target;
  target.acquire(into.ptr(), {"into", Access::write});
  if (target.nbytes() != loan.nbytes)
    throw Failure(ErrorCode::invalid_argument, "the array has " + std::to_string(target.nbytes()) +
                                                   " bytes, but the loan " + std::to_string(loan.nbytes));
  if (loan.nbytes == 0) return;
  if (!target.device()) throw Failure(ErrorCode::invalid_argument, "the array is not in device memory");
  const DeviceMemory& memory = *target.device();
  const nb::object kept = owner == getpid() ? array_of_own(loan) : nb::none();
  const nb::gil_scoped_release released;
  OpenedLoans::mine().use(memory.driver, memory.buffer.device, owner, loan, [&](uintptr_t from) {
    memory.driver->copy_within(memory.address, from, loan.nbytes, memory.buffer.device);
  });
}

// The bytes of a small loan.
nb::bytes read_loan(const nb::bytes& bytes, int owner, const FrameLoan& own) {
  const DeviceLoan loan = loan_of(bytes);
  if (loan.nbytes == 0 || loan.nbytes > kMostRead)
    throw Failure(ErrorCode::invalid_argument, "the loan has " + std::to_string(loan.nbytes) + " bytes");
  Array array;
  array.acquire(own.array.ptr(), {"own", Access::read});
  if (!array.device()) throw Failure(ErrorCode::invalid_argument, "the array is not in device memory");
  const std::shared_ptr<MemoryDriver> driver = array.device()->driver;
  const nb::object kept = owner == getpid() ? array_of_own(loan) : nb::none();
  std::byte found[kMostRead];
  {
    const nb::gil_scoped_release released;
    OpenedLoans::mine().use(driver, own.device, owner, loan,
                            [&](uintptr_t from) { driver->copy_to_host(found, from, loan.nbytes, own.device); });
  }
  return nb::bytes(reinterpret_cast<const char*>(found), loan.nbytes);
}

// Copies bytes of the host to an array in device memory.
void write_device(nb::handle into, const nb::bytes& content) {
  Array array;
  array.acquire(into.ptr(), {"into", Access::write});
  if (!array.device() || array.nbytes() != content.size())
    throw Failure(ErrorCode::invalid_argument,
                  "the array is not one of " + std::to_string(content.size()) + " bytes in device memory");
  array.device()->write(content.c_str(), content.size());
}

}  // namespace

std::optional<SentBytes> loan_bytes_of(nb::handle frame) {
  if (!nb::isinstance<FrameLoan>(frame)) return std::nullopt;
  const auto* data = reinterpret_cast<const std::byte*>(&nb::inst_ptr<FrameLoan>(frame)->loan);
  SentBytes bytes{data, sizeof(DeviceLoan), std::shared_ptr<void>(Py_NewRef(frame.ptr()), [](void* held) {
                    Py_DECREF(static_cast<PyObject*>(held));
                  })};
  bytes.is_loan = true;
  return bytes;
}

void bind_frame_loans(nb::module_& module) {
  nb::class_<FrameLoan>(module, "FrameLoan")
      .def_prop_ro("nbytes", [](const FrameLoan& self) { return self.loan.nbytes; })
      .def_prop_ro("told", [](const FrameLoan& self) {
        return nb::bytes(reinterpret_cast<const char*>(&self.loan), sizeof self.loan);
      });
  module.def("lend_frame", &lend_frame, nb::arg("array"), nb::arg("is_for_others"));
  module.def("copy_loan", &copy_loan, nb::arg("told"), nb::arg("owner"), nb::arg("into"));
  module.def("read_loan", &read_loan, nb::arg("told"), nb::arg("owner"), nb::arg("own"));
  module.def("write_device", &write_device, nb::arg("into"), nb::arg("content"));
  module.def(
      "close_loans",
      [](int owner) {
        const nb::gil_scoped_release released;
        OpenedLoans::mine().close_of(owner);
      },
      nb::arg("owner"));
}

}  // namespace hocket
