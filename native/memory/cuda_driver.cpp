// CUDA's driver API, loaded at run time. Functions and constants are from the CUDA Driver API reference: Unified
// Addressing (cuPointerGetAttributes), Memory Management (cuMemcpy*, cuIpc*), Context and Stream Management.
#include <dlfcn.h>

#include <array>
#include <cstring>
#include <map>
#include <mutex>

#include "core/error.hpp"
#include "memory/driver.hpp"

namespace hocket {

namespace {

using Result = int;
using Context = void*;
using DevicePointer = unsigned long long;

enum Attribute : int {
  kContext = 1,
  kMemoryType = 2,
  kBufferId = 7,
  kIsManaged = 8,
  kDeviceOrdinal = 9,
  kRangeStart = 11,
  kRangeSize = 12,
};
constexpr int kMemoryTypeDevice = 2;
constexpr Result kInvalidValue = 1;  // returned for an address that CUDA does not know
constexpr unsigned kEnablePeerAccess = 1;

struct IpcHandle {  // CUipcMemHandle, which is passed by value
  char reserved[64];
};
static_assert(sizeof(IpcHandle) == sizeof(MemoryHandle));

struct Functions {
  Result (*init)(unsigned) = nullptr;
  Result (*device_count)(int*) = nullptr;
  Result (*error_name)(Result, const char**) = nullptr;
  Result (*attributes)(unsigned, int*, void**, DevicePointer) = nullptr;
  Result (*attribute)(void*, int, DevicePointer) = nullptr;
  Result (*retain)(Context*, int) = nullptr;
  Result (*push)(Context) = nullptr;
  Result (*pop)(Context*) = nullptr;
  Result (*to_host)(void*, DevicePointer, size_t) = nullptr;
  Result (*to_device)(DevicePointer, const void*, size_t) = nullptr;
  Result (*copy)(DevicePointer, DevicePointer, size_t) = nullptr;
  Result (*share)(IpcHandle*, DevicePointer) = nullptr;
  Result (*open)(DevicePointer*, IpcHandle, unsigned) = nullptr;
  Result (*close)(DevicePointer) = nullptr;
  Result (*synchronize_stream)(void*) = nullptr;
  Result (*synchronize_context)() = nullptr;
};

class CudaDriver : public MemoryDriver {
 public:
  explicit CudaDriver(const Functions& functions) : cuda_(functions) {}

  std::string name() const override { return "cuda"; }

  Buffer query(uintptr_t address) override {
    int type = 0;
    int device = 0;
    unsigned managed = 0;
    uint64_t id = 0;
    DevicePointer start = 0;
    size_t size = 0;
    std::array<int, 6> names = {kMemoryType, kDeviceOrdinal, kIsManaged, kBufferId, kRangeStart, kRangeSize};
    std::array<void*, 6> values = {&type, &device, &managed, &id, &start, &size};
    check(cuda_.attributes(names.size(), names.data(), values.data(), address), "cuPointerGetAttributes");
    if (size == 0) return {address, address + 1, MemoryKind::host, 0, 0};  // an address that CUDA does not know
    const MemoryKind kind = managed                     ? MemoryKind::managed
                            : type == kMemoryTypeDevice ? MemoryKind::device
                                                        : MemoryKind::host;
    return {static_cast<uintptr_t>(start), static_cast<uintptr_t>(start + size), kind, device, id};
  }

  uint64_t buffer_id(uintptr_t address) override {
    uint64_t id = 0;
    const Result result = cuda_.attribute(&id, kBufferId, address);
    if (result == kInvalidValue) return 0;
    check(result, "cuPointerGetAttribute");
    return id;
  }

  // Any library of the process may free an allocation, and none notifies us.
  bool tells_frees() const override { return false; }

  void copy_to_host(void* to, uintptr_t from, size_t nbytes, int device) override {
    const Current current(*this, device);
    check(cuda_.to_host(to, from, nbytes), "cuMemcpyDtoH");
  }

  void copy_to_device(uintptr_t to, const void* from, size_t nbytes, int device) override {
    const Current current(*this, device);
    check(cuda_.to_device(to, from, nbytes), "cuMemcpyHtoD");
    // A copy from pageable memory may return before it is complete, and other streams do not wait for it.
    check(cuda_.synchronize_stream(nullptr), "cuStreamSynchronize");
  }

  void copy_within(uintptr_t to, uintptr_t from, size_t nbytes, int device) override {
    const Current current(*this, device);
    check(cuda_.copy(to, from, nbytes), "cuMemcpy");
    check(cuda_.synchronize_stream(nullptr), "cuStreamSynchronize");  // a copy between devices returns early
  }

  bool shares_memory() const override { return true; }

  // Returns false for memory of pools and for memory mapped in pieces (torch's expandable segments), whose handles have
  // other types.
  bool share(const Buffer& buffer, MemoryHandle* handle) override {
    const Current current(*this, buffer.device);
    IpcHandle its;
    if (cuda_.share(&its, buffer.begin) != 0) return false;
    std::memcpy(handle->data(), &its, sizeof its);
    return true;
  }

  uintptr_t open(const MemoryHandle& handle, int device) override {
    const Current current(*this, device);
    IpcHandle its;
    std::memcpy(&its, handle.data(), sizeof its);
    DevicePointer address = 0;
    check(cuda_.open(&address, its, kEnablePeerAccess), "cuIpcOpenMemHandle");
    return static_cast<uintptr_t>(address);
  }

  void close(uintptr_t address, int device) noexcept override {
    try {
      const Current current(*this, device);
      cuda_.close(address);
    } catch (const Failure&) {  // the device is lost, and so is the allocation
    }
  }

  void synchronize(int device, const uintptr_t* stream) override {
    const Current current(*this, device);
    if (stream)
      check(cuda_.synchronize_stream(reinterpret_cast<void*>(*stream)), "cuStreamSynchronize");
    else
      check(cuda_.synchronize_context(), "cuCtxSynchronize");
  }

 private:
  void check(Result result, const char* call) const {
    if (result == 0) return;
    const char* error = nullptr;
    if (cuda_.error_name(result, &error) != 0 || !error) error = "an unknown error";
    throw Failure(ErrorCode::aborted, std::string(call) + " failed: " + error);
  }

  Context context(int device) {
    const std::lock_guard guard(mutex_);
    Context& found = contexts_[device];
    if (!found) check(cuda_.retain(&found, device), "cuDevicePrimaryCtxRetain");
    return found;
  }

  // Makes the device's primary context (which the CUDA runtime uses) current on this thread for a scope.
  class Current {
   public:
    Current(CudaDriver& driver, int device) : driver_(driver) {
      driver.check(driver.cuda_.push(driver.context(device)), "cuCtxPushCurrent");
    }
    ~Current() {
      Context popped;
      driver_.cuda_.pop(&popped);
    }

   private:
    CudaDriver& driver_;
  };

  const Functions cuda_;
  std::mutex mutex_;
  std::map<int, Context> contexts_;
};

template <typename Function>
bool look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

std::shared_ptr<MemoryDriver> find_cuda_driver(std::string* reason) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    *reason = "libcuda.so.1 cannot be loaded";
    return nullptr;
  }
  Functions cuda;
  const bool has_all =
      look_up(library, "cuInit", cuda.init) && look_up(library, "cuDeviceGetCount", cuda.device_count) &&
      look_up(library, "cuGetErrorName", cuda.error_name) &&
      look_up(library, "cuPointerGetAttributes", cuda.attributes) &&
      look_up(library, "cuPointerGetAttribute", cuda.attribute) &&
      look_up(library, "cuDevicePrimaryCtxRetain", cuda.retain) && look_up(library, "cuCtxPushCurrent_v2", cuda.push) &&
      look_up(library, "cuCtxPopCurrent_v2", cuda.pop) && look_up(library, "cuMemcpyDtoH_v2", cuda.to_host) &&
      look_up(library, "cuMemcpyHtoD_v2", cuda.to_device) && look_up(library, "cuMemcpy", cuda.copy) &&
      look_up(library, "cuIpcGetMemHandle", cuda.share) && look_up(library, "cuIpcOpenMemHandle_v2", cuda.open) &&
      look_up(library, "cuIpcCloseMemHandle", cuda.close) &&
      look_up(library, "cuStreamSynchronize", cuda.synchronize_stream) &&
      look_up(library, "cuCtxSynchronize", cuda.synchronize_context);
  int count = 0;
  if (!has_all)
    *reason = "libcuda.so.1 lacks functions";
  else if (cuda.init(0) != 0 || cuda.device_count(&count) != 0 || count == 0)
    *reason = "libcuda.so.1 finds no device";
  else
    return std::make_shared<CudaDriver>(cuda);
  return nullptr;
}

}  // namespace hocket
