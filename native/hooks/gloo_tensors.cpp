#include "hooks/gloo_tensors.hpp"

#include <dlfcn.h>

#include <optional>

#include "core/types.hpp"
#include "hooks/gloo_interface.hpp"
#include "hooks/hooks.hpp"

namespace hocket::hooks {

namespace {

std::optional<DType> dtype_of(int32_t type) {
  switch (type) {
#define HOCKET_CASE(name, number, dtype) \
  case number:                           \
    return DType::dtype;
    HOCKET_TORCH_SCALAR_TYPES(HOCKET_CASE)
#undef HOCKET_CASE
    default:
      return std::nullopt;
  }
}

template <typename Function>
void look_up(void* library, const char* name, Function*& place) {
  place = reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

Torch::Torch(const void* caller) {
  library = library_of_caller(caller);
  if (!library) return;
  look_up(library, HOCKET_TORCH_NUMEL, numel);
  look_up(library, HOCKET_TORCH_DTYPE, dtype);
  group_ranks =
      reinterpret_cast<const std::vector<uint64_t>& (*)(const void*)>(dlsym(library, HOCKET_GLOO_GROUP_RANKS));
  look_up(library, HOCKET_GLOO_SOURCE_RANK, source_rank);
}

const Torch& torch_of(const void* caller) {
  static const Torch torch(caller);
  return torch;
}

uint8_t kind_of_op_type(uint8_t type) {
  using enum OpKind;
  using enum ForeignKind;
  switch (type) {
#define HOCKET_CASE(name, number, kind) \
  case number:                          \
    return static_cast<uint8_t>(kind);
    HOCKET_GLOO_OP_TYPES(HOCKET_CASE)
#undef HOCKET_CASE
    default:
      return static_cast<uint8_t>(other);
  }
}

void set_tensors(Event& event, const TorchTensors* tensors, const Torch& torch) {
  event.dtype = static_cast<uint8_t>(DType::uint8);
  if (!tensors || !torch.numel || !torch.dtype) return;
  for (const TorchTensor& each : *tensors) {
    int64_t count = 0;
    int32_t type = -1;
    void* handle = const_cast<TorchTensor*>(&each);
    if (torch.numel(handle, &count) != 0 || torch.dtype(handle, &type) != 0) continue;
    const std::optional<DType> dtype = dtype_of(type);
    if (!dtype) continue;
    event.dtype = static_cast<uint8_t>(*dtype);
    event.nbytes += static_cast<uint64_t>(count) * itemsize(*dtype);
  }
}

}  // namespace hocket::hooks
