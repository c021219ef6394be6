// To which allocation an address belongs, without asking the driver each time.
//
// The driver's answer takes a microsecond and more, and several threads contend for it; MPI libraries ask for every
// argument (Awan et al., arXiv 1810.11112). The cache is an interval map from addresses to allocations. What it must
// not do is answer for an allocation that was freed and whose address was given out again. An answer is therefore used
// only while something vouches for it:
// - the driver tells of every allocation that is given back (`forget`), or
// - an array that lies in it, and whose owner keeps the memory, is still there; else the driver is asked for the id of
//   the allocation, which is never used twice.
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
  // holder: the object that keeps the memory; null: nothing is known to.
  const Buffer& find(MemoryDriver& driver, uintptr_t address, PyObject* holder);
  // The allocation that has this address was given back.
  void forget(uintptr_t address);
  void clear() { entries_.clear(); }

  struct Counters {
    uint64_t hits = 0;           // answered without the driver
    uint64_t queries = 0;        // the driver was asked for an allocation
    uint64_t confirmations = 0;  // the driver was asked whether an allocation is still the same
    uint64_t forgotten = 0;      // allocations that were given back
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
// The driver in use, or null and why there is none.
std::shared_ptr<MemoryDriver> find_memory_driver(std::string* reason);
// Throws Failure (BackendUnavailable) where there is none.
std::shared_ptr<MemoryDriver> memory_driver();

}  // namespace hocket
