#include "bind/pointer_cache.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>

#include "bind/errors.hpp"
#include "bind/memory.hpp"

namespace hocket {

namespace {

constexpr size_t kMostHolders = 4;

nb::object referent(const nb::object& weak) { return weak(); }  // None if it is gone

}  // namespace

PointerCache::Entries::iterator PointerCache::around(uintptr_t address) {
  auto entry = entries_.upper_bound(address);
  if (entry == entries_.begin()) return entries_.end();
  --entry;
  return address < entry->second.buffer.end ? entry : entries_.end();
}

bool PointerCache::is_held(Entry& entry) {
  std::erase_if(entry.holders, [](const nb::object& weak) { return referent(weak).is_none(); });
  return !entry.holders.empty();
}

void PointerCache::add_holder(Entry& entry, PyObject* holder) {
  if (!holder || entry.holders.size() == kMostHolders) return;
  for (const nb::object& weak : entry.holders)
    if (referent(weak).is(nb::handle(holder))) return;
  PyObject* weak = PyWeakref_NewRef(holder, nullptr);
  if (weak)
    entry.holders.push_back(nb::steal(weak));
  else
    PyErr_Clear();  // its type has no weak references, so it cannot confirm an answer
}

const Buffer& PointerCache::find(MemoryDriver& driver, uintptr_t address, PyObject* holder) {
  auto found = around(address);
  if (found != entries_.end()) {
    Entry& entry = found->second;
    if (driver.tells_frees() || is_held(entry)) {
      ++counters.hits;
    } else {
      ++counters.confirmations;
      if (driver.buffer_id(address) != entry.buffer.id) {
        ++counters.forgotten;
        entries_.erase(found);
        found = entries_.end();
      }
    }
  }
  if (found == entries_.end()) {
    ++counters.queries;
    const Buffer buffer = driver.query(address);
    if (buffer.begin >= buffer.end || address < buffer.begin || address >= buffer.end)
      throw Failure(ErrorCode::invalid_argument, "the memory driver '" + driver.name() +
                                                     "' returned an allocation that " + "does not contain address " +
                                                     std::to_string(address));
    // Allocations that overlap the new one were freed without a call of forget().
    auto old = entries_.lower_bound(buffer.begin);
    if (old != entries_.begin() && std::prev(old)->second.buffer.end > buffer.begin) --old;
    while (old != entries_.end() && old->first < buffer.end) {
      ++counters.forgotten;
      old = entries_.erase(old);
    }
    found = entries_.emplace(buffer.begin, Entry{buffer, {}}).first;
  }
  if (!driver.tells_frees()) add_holder(found->second, holder);
  return found->second.buffer;
}

void PointerCache::forget(uintptr_t address) {
  const auto entry = around(address);
  if (entry == entries_.end()) return;
  ++counters.forgotten;
  entries_.erase(entry);
}

// Never destroyed: at exit the interpreter is gone, so references cannot be released.
PointerCache& pointer_cache() {
  static auto* cache = new PointerCache;  // NOLINT
  return *cache;
}

namespace {

using Copy = int (*)(void* to, const void* from, size_t nbytes);
// The driver's functions for sharing; `handle` has 64 bytes. Share returns 0 if the allocation cannot be shared, Open
// the address or 0, and Close 0 or an error.
using Share = int (*)(uintptr_t begin, void* handle);
using Open = uintptr_t (*)(const void* handle);
using Close = int (*)(uintptr_t address);

// A driver written in Python; its copies are C functions, because they run without the GIL.
class PythonDriver : public MemoryDriver {
 public:
  explicit PythonDriver(nb::object driver) : driver_(std::move(driver)) {
    tells_frees_ = nb::cast<bool>(driver_.attr("tells_frees"));
    name_ = nb::cast<std::string>(driver_.attr("name"));
    to_host_ = address_of<Copy>("copy_to_host");
    to_device_ = address_of<Copy>("copy_to_device");
    if (!nb::hasattr(driver_, "share")) return;
    within_ = address_of<Copy>("copy_within");
    share_ = address_of<Share>("share");
    open_ = address_of<Open>("open");
    close_ = address_of<Close>("close");
  }
  ~PythonDriver() override {
    const nb::gil_scoped_acquire gil;
    driver_.reset();
  }
  std::string name() const override { return name_; }
  Buffer query(uintptr_t address) override {
    using Answer = std::tuple<uintptr_t, uintptr_t, std::string, int, uint64_t>;
    const auto [begin, end, kind, device, id] = nb::cast<Answer>(driver_.attr("query")(address));
    const std::optional<MemoryKind> known = kind == "host"      ? std::optional(MemoryKind::host)
                                            : kind == "device"  ? std::optional(MemoryKind::device)
                                            : kind == "managed" ? std::optional(MemoryKind::managed)
                                                                : std::nullopt;
    if (!known)
      throw Failure(ErrorCode::invalid_argument,
                    "the kind of memory must be 'host', 'device' or 'managed', not '" + kind + "'");
    return {begin, end, *known, device, id};
  }
  uint64_t buffer_id(uintptr_t address) override { return nb::cast<uint64_t>(driver_.attr("buffer_id")(address)); }
  bool tells_frees() const override { return tells_frees_; }
  void copy_to_host(void* to, uintptr_t from, size_t nbytes, int) override {
    check(to_host_(to, reinterpret_cast<const void*>(from), nbytes), "copy_to_host");
  }
  void copy_to_device(uintptr_t to, const void* from, size_t nbytes, int) override {
    check(to_device_(reinterpret_cast<void*>(to), from, nbytes), "copy_to_device");
  }
  void copy_within(uintptr_t to, uintptr_t from, size_t nbytes, int) override {
    check(within_(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), nbytes), "copy_within");
  }
  bool shares_memory() const override { return share_ != nullptr; }
  bool share(const Buffer& buffer, MemoryHandle* handle) override { return share_(buffer.begin, handle->data()) != 0; }
  uintptr_t open(const MemoryHandle& handle, int) override {
    const uintptr_t address = open_(handle.data());
    check(address == 0, "open");
    return address;
  }
  void close(uintptr_t address, int) noexcept override { close_(address); }
  void synchronize(int device, const uintptr_t* stream) override {
    const nb::gil_scoped_acquire gil;
    driver_.attr("synchronize")(device, stream ? nb::object(nb::int_(*stream)) : nb::object(nb::none()));
  }

 private:
  template <typename Function>
  Function address_of(const char* name) const {
    return reinterpret_cast<Function>(nb::cast<uintptr_t>(driver_.attr(name)));  // NOLINT
  }
  void check(int result, const char* what) const {
    if (result != 0)
      throw Failure(ErrorCode::aborted,
                    what + std::string(" of the memory driver '") + name_ + "' failed with " + std::to_string(result));
  }
  nb::object driver_;
  bool tells_frees_;
  std::string name_;
  Copy to_host_;
  Copy to_device_;
  Copy within_ = nullptr;
  Share share_ = nullptr;  // null: it shares no memory
  Open open_ = nullptr;
  Close close_ = nullptr;
};

std::shared_ptr<MemoryDriver>& chosen_driver() {
  static auto* driver = new std::shared_ptr<MemoryDriver>;  // NOLINT: as above
  return *driver;
}

}  // namespace

std::shared_ptr<MemoryDriver> find_memory_driver(std::string* reason) {
  std::shared_ptr<MemoryDriver>& driver = chosen_driver();
  if (!driver) driver = find_cuda_driver(reason);
  return driver;
}

std::shared_ptr<MemoryDriver> memory_driver() {
  std::string reason;
  std::shared_ptr<MemoryDriver> driver = find_memory_driver(&reason);
  if (!driver)
    throw Failure(ErrorCode::backend_unavailable, "the array lies in device memory, and there is no driver for it: " +
                                                      reason + "; hocket.memory.use_driver() takes another one");
  return driver;
}

void bind_memory(nb::module_& module) {
  module.def(
      "use_memory_driver",
      [](const nb::object& driver) {
        chosen_driver() = driver.is_none() ? nullptr : std::make_shared<PythonDriver>(driver);
        pointer_cache().clear();
        pointer_cache().counters = {};
      },
      nb::arg("driver").none());
  module.def("has_memory_driver", [] {
    std::string reason;
    return find_memory_driver(&reason) != nullptr;
  });
  module.def("forget_buffer", [](uintptr_t address) { pointer_cache().forget(address); }, nb::arg("address"));
  module.def("pointer_cache_counters", [] {
    const PointerCache::Counters& counters = pointer_cache().counters;
    nb::dict all;
    all["hits"] = counters.hits;
    all["queries"] = counters.queries;
    all["confirmations"] = counters.confirmations;
    all["forgotten"] = counters.forgotten;
    all["buffers"] = pointer_cache().size();
    return all;
  });
}

}  // namespace hocket
