// Operations, types and tensors of torch.
#pragma once

#include <cstdint>
#include <vector>

#include "recorder/layout.hpp"

namespace hocket::hooks {

struct TorchTensor {  // at::Tensor: one counted pointer
  void* pointer;
};
using TorchTensors = std::vector<TorchTensor>;

// Functions of the torch that calls a hook.
struct Torch {
  void* library = nullptr;
  int32_t (*numel)(void* tensor, int64_t* count) = nullptr;
  int32_t (*dtype)(void* tensor, int32_t* type) = nullptr;
  const std::vector<uint64_t>& (*group_ranks)(const void* group) = nullptr;
  int (*source_rank)(const void* work) = nullptr;

  explicit Torch(const void* caller);
};

// Of the first call; a process has one torch.
const Torch& torch_of(const void* caller);

// The kind of event for a number of c10d::OpType.
uint8_t kind_of_op_type(uint8_t type);

// Sets the type and the bytes of an event; null: of no tensors.
void set_tensors(Event& event, const TorchTensors* tensors, const Torch& torch);

}  // namespace hocket::hooks
