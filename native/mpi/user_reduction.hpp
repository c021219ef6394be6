// Reductions that MPI lacks or defines differently: 16-bit floats, and min and max that propagate NaN.
#pragma once

#include <array>

#include "reduce/reduce.hpp"

namespace hocket {

constexpr bool needs_user_reduction(DType dtype, ReduceOp op) {
  if (is_half(dtype)) return true;
  return is_float(dtype) && (op == ReduceOp::min || op == ReduceOp::max);
}

// MPI calls it with its own arrays: inout[i] = in[i] (op) inout[i]. Only this function knows the type; for MPI, the
// elements are integers of the same width.
template <DType dtype, ReduceOp op, typename Handle>
void user_reduction(void* in, void* inout, int* count, Handle*) {
  const std::array<const std::byte*, 2> sources = {static_cast<const std::byte*>(in),
                                                   static_cast<const std::byte*>(inout)};
  reduce_kernel(dtype, op)(static_cast<std::byte*>(inout), nullptr, sources.data(), 2, static_cast<size_t>(*count));
}

template <typename Handle>
using UserReduction = void (*)(void*, void*, int*, Handle*);

// Null if MPI's own reduction is correct.
template <typename Handle>
UserReduction<Handle> find_user_reduction(DType dtype, ReduceOp op) {
  if (!needs_user_reduction(dtype, op)) return nullptr;
  const auto of = [&]<DType type>() -> UserReduction<Handle> {
    switch (op) {
      case ReduceOp::sum:
        return user_reduction<type, ReduceOp::sum, Handle>;
      case ReduceOp::prod:
        return user_reduction<type, ReduceOp::prod, Handle>;
      case ReduceOp::min:
        return user_reduction<type, ReduceOp::min, Handle>;
      case ReduceOp::max:
        return user_reduction<type, ReduceOp::max, Handle>;
      default:
        break;
    }
    return nullptr;
  };
  switch (dtype) {
    case DType::float16:
      return of.template operator()<DType::float16>();
    case DType::bfloat16:
      return of.template operator()<DType::bfloat16>();
    case DType::float32:
      return of.template operator()<DType::float32>();
    case DType::float64:
      return of.template operator()<DType::float64>();
    default:
      return nullptr;
  }
}

}  // namespace hocket
