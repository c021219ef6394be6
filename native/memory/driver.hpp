// Memory that is not the host's: what a driver of it has to know and do. Needs no Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace hocket {

enum class MemoryKind : uint8_t {
  host,     // ordinary memory, or memory of the host that a device knows
  device,   // the host cannot touch it
  managed,  // moves by itself between both
};

// One allocation. Its id is never used again, unlike its address.
struct Buffer {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  MemoryKind kind = MemoryKind::host;
  int device = 0;
  uint64_t id = 0;
};

// Every one of these may throw Failure.
class MemoryDriver {
 public:
  virtual ~MemoryDriver() = default;
  virtual std::string name() const = 0;
  // The allocation around an address.
  virtual Buffer query(uintptr_t address) = 0;
  // That of query(address), cheaper.
  virtual uint64_t buffer_id(uintptr_t address) = 0;
  // Whether PointerCache::forget is called for every allocation that is given back.
  virtual bool tells_frees() const = 0;
  // Blocking; called from any thread, without the GIL or with it.
  virtual void copy_to_host(void* to, uintptr_t from, size_t nbytes, int device) = 0;
  virtual void copy_to_device(uintptr_t to, const void* from, size_t nbytes, int device) = 0;
  // Until what was put on a stream of the device is done; on all of them where none is named.
  virtual void synchronize(int device, const uintptr_t* stream) = 0;
};

// CUDA's, through libcuda.so.1; null with the reason where there is none.
std::shared_ptr<MemoryDriver> find_cuda_driver(std::string* reason);

}  // namespace hocket
