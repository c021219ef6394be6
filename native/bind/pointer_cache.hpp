// The allocation that an address belongs to, without a driver call each time.
//
// A driver call takes a microsecond or more, and threads contend for it; MPI libraries make one for every argument
// (Awan et al., arXiv 1810.11112). The cache is an interval map from addresses to allocations. It must not answer for
// an allocation that was freed and whose address was allocated again. So an entry is used only if it is known to be
// valid:
// - the driver reports every allocation that is freed (`forget`), or
// - an array in it, whose owner keeps the memory, still exists; otherwise the driver is asked for the allocation's id,
//   which is never reused.
#pragma once

#include <nanobind/nanobind.h>

#include <map>
#include <memory>
#include <vector>

#include "memory/driver.hpp"

namespace nb = nanobind;

namespace hocket {

// Used with the GIL only.
class PointerCache {
 public:
  // holder: the object that keeps the memory; null: not known.
  const Buffer& find(MemoryDriver& driver, uintptr_t address, PyObject* holder);
  // Removes the allocation with this address, which was freed.
  void forget(uintptr_t address);
  void clear() { entries_.clear(); }

  struct Counters {
    uint64_t hits = 0;           // answers without a driver call
    uint64_t queries = 0;        // driver calls for an allocation
    uint64_t confirmations = 0;  // driver calls that check whether an allocation is still the same
    uint64_t forgotten = 0;      // allocations that were freed
  };
  Counters counters;
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Buffer buffer;
    std::vector<nb::object> holders;  // weak references
  };
  using Entries = std::map<uintptr_t, Entry>;  // by the first address
  Entries::iterator around(uintptr_t address);
  static bool is_held(Entry& entry);
  static void add_holder(Entry& entry, PyObject* holder);

  Entries entries_;
};

PointerCache& pointer_cache();
// The driver in use, or null and the reason.
std::shared_ptr<MemoryDriver> find_memory_driver(std::string* reason);
// Throws Failure (BackendUnavailable) if no driver is available.
std::shared_ptr<MemoryDriver> memory_driver();

}  // namespace hocket
