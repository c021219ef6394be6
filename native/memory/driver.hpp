// Memory that is not the host's: what a driver of it has to know and do. Needs no Python.
#pragma once

#include <array>
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

// By which another process of this host opens an allocation.
using MemoryHandle = std::array<std::byte, 64>;

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
  // Likewise; both addresses may be of allocations that were opened.
  virtual void copy_within(uintptr_t to, uintptr_t from, size_t nbytes, int device) = 0;
  // Whether another process can open memory of this one at all; if not, the next three are not called. They are, from
  // any thread, without the GIL or with it.
  virtual bool shares_memory() const = 0;
  // False: this allocation cannot be shared (CUDA has several kinds of which only that of cuMemAlloc can).
  virtual bool share(const Buffer& buffer, MemoryHandle* handle) = 0;
  // The address at which this process sees the first byte of another one's allocation, in the context of a device.
  virtual uintptr_t open(const MemoryHandle& handle, int device) = 0;
  virtual void close(uintptr_t address, int device) noexcept = 0;
  // Until what was put on a stream of the device is done; on all of them where none is named.
  virtual void synchronize(int device, const uintptr_t* stream) = 0;
};

// Where the arrays of an operation lie, if they lie in the memory of a device. One of no bytes has no allocation.
struct DeviceArrays {
  static constexpr int kAny = -1;
  std::shared_ptr<MemoryDriver> driver;
  int device = kAny;  // where there are no bytes
  Buffer in;
  Buffer out;
  bool is_written = false;  // the array at Operation::out
};

// CUDA's, through libcuda.so.1; null with the reason where there is none.
std::shared_ptr<MemoryDriver> find_cuda_driver(std::string* reason);

}  // namespace hocket
