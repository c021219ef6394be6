// Device memory of other ranks of the host that this process has opened (CUDA IPC and similar).
//
// Opening an allocation takes 0.1 ms or more, so it stays open and serves all communicators; CUDA may refuse to open an
// allocation twice. An allocation that its owner has freed meanwhile must not be used: with every operation the owner
// sends the allocation's id, which is never reused, and an open allocation with another id at the same addresses is
// closed first. Freed memory becomes available to its owner only after it is closed here, so only a few unused
// allocations stay open. If opening fails, all unused allocations are closed and it is tried once more.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>

#include "memory/driver.hpp"

namespace hocket {

// The description of an allocation that its owner sends to the others.
struct SharedAllocation {
  uint64_t begin;  // in the owner's address space
  uint64_t end;
  uint64_t id;
  MemoryHandle handle;
};

// An opened allocation; the destructor closes it.
class OpenedAllocation {
 public:
  // Throws Failure.
  OpenedAllocation(std::shared_ptr<MemoryDriver> driver, int device, int owner, const SharedAllocation& allocation)
      : driver_(std::move(driver)),
        device_(device),
        owner_(owner),
        allocation_(allocation),
        address_(driver_->open(allocation.handle, device)) {}
  ~OpenedAllocation() { driver_->close(address_, device_); }
  OpenedAllocation(const OpenedAllocation&) = delete;
  OpenedAllocation& operator=(const OpenedAllocation&) = delete;

  // Address of its first byte for a device of this process.
  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }  // NOLINT
  bool is(const MemoryDriver& driver, int device, int owner, const SharedAllocation& allocation) const {
    return driver_.get() == &driver && device_ == device && owner_ == owner && allocation_.id == allocation.id &&
           allocation_.begin == allocation.begin;
  }
  int owner() const { return owner_; }
  bool is_in_the_place_of(int owner, const SharedAllocation& allocation) const {
    return owner_ == owner && allocation_.id != allocation.id && allocation_.begin < allocation.end &&
           allocation.begin < allocation_.end;
  }

 private:
  const std::shared_ptr<MemoryDriver> driver_;
  const int device_;
  const int owner_;
  const SharedAllocation allocation_;
  const uintptr_t address_;
};

// Call all methods under one lock.
class OpenedMemory {
 public:
  // owner: identifies the owner on the host. Throws Failure.
  std::shared_ptr<const OpenedAllocation> open(const std::shared_ptr<MemoryDriver>& driver, int device, int owner,
                                               const SharedAllocation& allocation);
  // Closes those that nothing uses, if they are such.
  void close_if(const std::function<bool(const OpenedAllocation&)>& is_such) {
    opened_.remove_if([&](const auto& each) { return each.use_count() == 1 && is_such(*each); });
  }

 private:
  static constexpr size_t kMostUnused = 64;
  void close_unused(size_t most);

  std::list<std::shared_ptr<const OpenedAllocation>> opened_;  // most recently used first
};

}  // namespace hocket
