// The vocabulary of an operation: its kind, the type of its elements, its reduction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace hocket {

enum class OpKind : uint8_t {
  barrier,
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  all_to_all,
  send,
  recv,
  gather,
  scatter,
  split,
  dup,
  group,
};
inline constexpr std::array kOpNames = {
    "barrier", "all_reduce", "reduce",  "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send",
    "recv",    "gather",     "scatter", "split",     "dup",        "group",
};
constexpr const char* name(OpKind kind) { return kOpNames[static_cast<size_t>(kind)]; }

enum class DType : uint8_t { float16, bfloat16, float32, float64, int8, int16, int32, int64, uint8, boolean };
inline constexpr std::array kDTypeNames = {
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool",
};
inline constexpr size_t kNumDTypes = kDTypeNames.size();
constexpr const char* name(DType dtype) { return kDTypeNames[static_cast<size_t>(dtype)]; }
constexpr size_t itemsize(DType dtype) {
  constexpr std::array<size_t, kNumDTypes> sizes = {2, 2, 4, 8, 1, 2, 4, 8, 1, 1};
  return sizes[static_cast<size_t>(dtype)];
}
constexpr bool is_float(DType dtype) { return dtype <= DType::float64; }

enum class ReduceOp : uint8_t { sum, prod, min, max, avg };
inline constexpr std::array kReduceNames = {"sum", "prod", "min", "max", "avg"};
inline constexpr size_t kNumReduceOps = kReduceNames.size();
constexpr const char* name(ReduceOp op) { return kReduceNames[static_cast<size_t>(op)]; }

constexpr bool reduces(OpKind kind) {
  return kind == OpKind::all_reduce || kind == OpKind::reduce || kind == OpKind::reduce_scatter;
}
constexpr bool is_point_to_point(OpKind kind) { return kind == OpKind::send || kind == OpKind::recv; }
constexpr bool has_root(OpKind kind) {
  return kind == OpKind::reduce || kind == OpKind::broadcast || kind == OpKind::gather || kind == OpKind::scatter;
}

// bool has min and max only; avg exists for floats only.
constexpr bool reducible(DType dtype, ReduceOp op) {
  if (dtype == DType::boolean) return op == ReduceOp::min || op == ReduceOp::max;
  return op != ReduceOp::avg || is_float(dtype);
}

}  // namespace hocket
