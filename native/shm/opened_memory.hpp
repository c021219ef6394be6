// Memory of the other members' devices, as this process has opened it (CUDA IPC and its like).
//
// To open an allocation takes a tenth of a millisecond and more, so it stays open. What must not be used is an
// allocation that its owner has given back meanwhile: the owner says with every operation which allocation it means,
// by an id that is never used twice, and what lies at the place of another one is closed first (as UCX does it).
// Memory that its owner has given back is free for others only when it is closed here, so not many stay open.
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

class OpenedMemory {
 public:
  OpenedMemory() = default;
  ~OpenedMemory();
  OpenedMemory(const OpenedMemory&) = delete;
  OpenedMemory& operator=(const OpenedMemory&) = delete;

  // The address at which a device of this process sees the allocation's first byte. Throws Failure.
  std::byte* open(const std::shared_ptr<MemoryDriver>& driver, int device, int owner,
                  const SharedAllocation& allocation);

 private:
  static constexpr size_t kMostOpen = 64;
  struct Entry {
    std::shared_ptr<MemoryDriver> driver;
    int device;
    int owner;
    SharedAllocation allocation;
    uintptr_t address;
    void close() const { driver->close(address, device); }
  };
  std::list<Entry> entries_;  // the latest used first
};

}  // namespace hocket
