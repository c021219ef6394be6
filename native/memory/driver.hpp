// Device memory: the interface of its drivers. Needs no Python.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace hocket {

enum class MemoryKind : uint8_t {
  host,     // ordinary memory, or host memory registered with a device
  device,   // not accessible to the host
  managed,  // migrates automatically between host and device
};

// One allocation. Its id is never reused, unlike its address.
struct Buffer {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  MemoryKind kind = MemoryKind::host;
  int device = 0;
  uint64_t id = 0;
};

// The handle with which another process of this host opens an allocation.
using MemoryHandle = std::array<std::byte, 64>;

// All methods except close() may throw Failure.
class MemoryDriver {
 public:
  virtual ~MemoryDriver() = default;
  virtual std::string name() const = 0;
  // The allocation that contains an address.
  virtual Buffer query(uintptr_t address) = 0;
  // The id of query(address), at lower cost.
  virtual uint64_t buffer_id(uintptr_t address) = 0;
  // Whether PointerCache::forget is called for every allocation that is freed.
  virtual bool tells_frees() const = 0;
  // The copies block. They are called from any thread, with or without the GIL.
  virtual void copy_to_host(void* to, uintptr_t from, size_t nbytes, int device) = 0;
  virtual void copy_to_device(uintptr_t to, const void* from, size_t nbytes, int device) = 0;
  // Both addresses may be in allocations that were opened.
  virtual void copy_within(uintptr_t to, uintptr_t from, size_t nbytes, int device) = 0;
  // Whether other processes can open memory of this one; if not, the next three are never called. They are called from
  // any thread, with or without the GIL.
  virtual bool shares_memory() const = 0;
  // Sets the handle of an allocation; false if it cannot be shared (CUDA: only allocations of cuMemAlloc can).
  virtual bool share(const Buffer& buffer, MemoryHandle* handle) = 0;
  // Opens another process's allocation; returns the address of its first byte in this process, in a device's context.
  virtual uintptr_t open(const MemoryHandle& handle, int device) = 0;
  virtual void close(uintptr_t address, int device) noexcept = 0;
  // Waits until the work on a stream of the device is done; on all its streams if `stream` is null.
  virtual void synchronize(int device, const uintptr_t* stream) = 0;
};

// The device memory of an operation's arrays. An empty array has no allocation.
struct DeviceArrays {
  static constexpr int kAny = -1;
  std::shared_ptr<MemoryDriver> driver;
  int device = kAny;  // kAny if the arrays are empty
  Buffer in;
  Buffer out;
  bool is_written = false;  // whether the operation writes the array at Operation::out
};

// CUDA's driver (libcuda.so.1); null and the reason if it cannot be used.
std::shared_ptr<MemoryDriver> find_cuda_driver(std::string* reason);

}  // namespace hocket
