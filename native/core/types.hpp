// The enumerations of an operation: its kind, the type of its elements, its reduction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

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
  gatherv,
  scatterv,
  all_gatherv,
  reduce_scatterv,
  all_to_allv,
  scan,
  split,
  dup,
  group,
};
inline constexpr std::array kOpNames = {
    "barrier", "all_reduce", "reduce",  "broadcast", "all_gather", "reduce_scatter", "all_to_all",      "send",
    "recv",    "gather",     "scatter", "gatherv",   "scatterv",   "all_gatherv",    "reduce_scatterv", "all_to_allv",
    "scan",    "split",      "dup",     "group",
};
constexpr const char* name(OpKind kind) { return kOpNames[static_cast<size_t>(kind)]; }

// The peer of messages that do nothing, for example beyond the edge of a grid. Its value is not -1, because a program
// that forgets a modulo computes -1.
inline constexpr int32_t kProcNull = std::numeric_limits<int32_t>::min();

enum class DType : uint8_t {
  float16,
  bfloat16,
  float32,
  float64,
  int8,
  int16,
  int32,
  int64,
  uint8,
  boolean,
  uint16,
  uint32,
  uint64,
  complex64,
  complex128,
};
inline constexpr std::array kDTypeNames = {
    "float16", "bfloat16", "float32", "float64", "int8",   "int16",     "int32",      "int64",
    "uint8",   "bool",     "uint16",  "uint32",  "uint64", "complex64", "complex128",
};
inline constexpr size_t kNumDTypes = kDTypeNames.size();
constexpr const char* name(DType dtype) { return kDTypeNames[static_cast<size_t>(dtype)]; }
constexpr size_t itemsize(DType dtype) {
  constexpr std::array<size_t, kNumDTypes> sizes = {2, 2, 4, 8, 1, 2, 4, 8, 1, 1, 2, 4, 8, 8, 16};
  return sizes[static_cast<size_t>(dtype)];
}
constexpr bool is_half(DType dtype) { return dtype == DType::float16 || dtype == DType::bfloat16; }
constexpr bool is_float(DType dtype) { return dtype <= DType::float64; }
constexpr bool is_complex(DType dtype) { return dtype == DType::complex64 || dtype == DType::complex128; }

// b...: bitwise; l...: logical (zero or not), with results 0 and 1.
enum class ReduceOp : uint8_t { sum, prod, min, max, avg, band, bor, bxor, land, lor, lxor };
inline constexpr std::array kReduceNames = {"sum", "prod", "min",  "max", "avg", "band",
                                            "bor", "bxor", "land", "lor", "lxor"};
inline constexpr size_t kNumReduceOps = kReduceNames.size();
constexpr const char* name(ReduceOp op) { return kReduceNames[static_cast<size_t>(op)]; }
constexpr bool is_of_bits(ReduceOp op) { return op >= ReduceOp::band; }  // bitwise or logical

// Whether the blocks of a kind have different sizes; and the same kind with equal sizes.
constexpr bool has_counts(OpKind kind) { return kind >= OpKind::gatherv && kind <= OpKind::all_to_allv; }
constexpr OpKind without_counts(OpKind kind) {
  constexpr std::array plain = {OpKind::gather, OpKind::scatter, OpKind::all_gather, OpKind::reduce_scatter,
                                OpKind::all_to_all};
  return has_counts(kind) ? plain[static_cast<size_t>(kind) - static_cast<size_t>(OpKind::gatherv)] : kind;
}

// Sets of kinds as bit masks, because every operation tests them.
template <typename... Kinds>
constexpr uint32_t kinds(Kinds... each) {
  return ((1u << static_cast<uint32_t>(each)) | ...);
}
static_assert(kOpNames.size() <= 32);
constexpr bool is_in(OpKind kind, uint32_t set) { return (set >> static_cast<uint32_t>(kind) & 1) != 0; }

constexpr bool reduces(OpKind kind) {
  return is_in(
      kind, kinds(OpKind::all_reduce, OpKind::reduce, OpKind::scan, OpKind::reduce_scatter, OpKind::reduce_scatterv));
}
// Whether the input, or the output, has one block per rank; for gather and scatter only on the root.
constexpr bool has_input_blocks(OpKind kind) {
  return is_in(kind, kinds(OpKind::reduce_scatter, OpKind::reduce_scatterv, OpKind::all_to_all, OpKind::all_to_allv,
                           OpKind::scatter, OpKind::scatterv));
}
constexpr bool has_output_blocks(OpKind kind) {
  return is_in(kind, kinds(OpKind::all_gather, OpKind::all_gatherv, OpKind::all_to_all, OpKind::all_to_allv,
                           OpKind::gather, OpKind::gatherv, OpKind::split, OpKind::dup));
}
constexpr bool is_point_to_point(OpKind kind) { return kind == OpKind::send || kind == OpKind::recv; }
constexpr bool has_root(OpKind kind) {
  return is_in(kind, kinds(OpKind::reduce, OpKind::broadcast, OpKind::gather, OpKind::gatherv, OpKind::scatter,
                           OpKind::scatterv));
}

// bool has no arithmetic, complex numbers have no order, floats have no bitwise operations, integers have no average.
constexpr bool reducible(DType dtype, ReduceOp op) {
  const bool is_ordering = op == ReduceOp::min || op == ReduceOp::max;
  if (dtype == DType::boolean) return is_ordering || is_of_bits(op);
  if (is_complex(dtype)) return !is_ordering && !is_of_bits(op);
  if (is_float(dtype)) return !is_of_bits(op);
  return op != ReduceOp::avg;
}

}  // namespace hocket
