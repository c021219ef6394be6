// Memory of the devices of other ranks of the host, as this process has opened it (CUDA IPC and its like).
//
// To open an allocation takes a tenth of a millisecond and more, so it stays open, for all communicators: CUDA may
// refuse to open one twice. What must not be used is an allocation that its owner has given back meanwhile: the owner
// says with every operation which one it means, by an id that is never used twice, and what lies at the place of
// another one is closed first. Memory that its owner has given back is free for others only when it is closed here, so
// not many stay open; and where one cannot be opened, all that are not in use are closed, and it is tried once more.
#pragma once

#include <cstdint>
#include <list>
#include <memory>

#include "memory/driver.hpp"

namespace hocket {

// An allocation as its owner names it to the others.
struct SharedAllocation {
  uint64_t begin;  // in the owner's address space
  uint64_t end;
  uint64_t id;
  MemoryHandle handle;
};

// Keeps what was opened open.
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

  // Where a device of this process sees its first byte.
  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }  // NOLINT
  bool is(const MemoryDriver& driver, int device, int owner, const SharedAllocation& allocation) const {
    return driver_.get() == &driver && device_ == device && owner_ == owner && allocation_.id == allocation.id &&
           allocation_.begin == allocation.begin;
  }
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

// Under the progress lock.
class OpenedMemory {
 public:
  // owner: its rank of the host. Throws Failure.
  std::shared_ptr<const OpenedAllocation> open(const std::shared_ptr<MemoryDriver>& driver, int device, int owner,
                                               const SharedAllocation& allocation);

 private:
  static constexpr size_t kMostUnused = 64;
  void close_unused(size_t most);

  std::list<std::shared_ptr<const OpenedAllocation>> opened_;  // the latest used first
};

}  // namespace hocket
