// The part of a device's memory that an array occupies.
#pragma once

#include <cstddef>
#include <memory>

#include "memory/driver.hpp"

namespace hocket {

struct DeviceMemory {
  std::shared_ptr<MemoryDriver> driver;
  uintptr_t address;
  Buffer buffer;  // the allocation that contains it

  void read_into(void* to, size_t nbytes) const { driver->copy_to_host(to, address, nbytes, buffer.device); }
  void write(const void* from, size_t nbytes) const { driver->copy_to_device(address, from, nbytes, buffer.device); }
};

}  // namespace hocket
