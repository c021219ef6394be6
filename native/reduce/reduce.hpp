// Elementwise reduction of the arrays of several ranks: the arithmetic of all_reduce, reduce and reduce_scatter.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/types.hpp"

namespace hocket {

// dst[i] = srcs[0][i] (op) srcs[1][i] (op) ... in this order, for i < count elements.
//
// - dst2, unless null, gets the same values: a second copy, written while the first is still in registers.
// - dst and dst2 may each be equal to one of the srcs; otherwise arrays must not overlap. No alignment is needed.
// - The bits of the result depend only on the values and their order, not on the instruction set or on the division of
//   an array into calls. For this, a NaN result is always the positive quiet NaN without payload: the payload of a sum
//   of two NaNs depends on the operand order that the compiler chooses.
//   (Assumes rounding to nearest and no flushing of subnormals, the default of every thread.)
// - float16 and bfloat16 accumulate in float32 and round once, to nearest even. avg divides once, in the accumulator.
//   min and max propagate NaN and keep the earlier of two equal values (-0.0 and 0.0). Integers wrap around. Logical
//   reductions give 0 or 1. In complex numbers, NaN is canonical in each part.
// - A single source is copied bit by bit. num_srcs >= 1.
using ReduceKernel = void (*)(std::byte* dst, std::byte* dst2, const std::byte* const* srcs, int num_srcs,
                              size_t count);

// The instruction sets of the compiled kernels. `scalar` is portable: it uses only what every CPU of the platform has.
enum class Isa : uint8_t { scalar, avx2, avx512 };

// Whether this build has the instruction set, and CPU and operating system support it.
bool isa_available(Isa isa);

// The kernel for the best available instruction set, or for the one that HOCKET_ISA=scalar|avx2|avx512 names.
// Null if the operation is not reducible(); throws std::invalid_argument if that instruction set is not available.
ReduceKernel reduce_kernel(DType dtype, ReduceOp op);

// The kernel of one instruction set, which must be available.
ReduceKernel reduce_kernel(Isa isa, DType dtype, ReduceOp op);

// Divides floating point and complex numbers of 32 bits and more: the last step of an average whose sum was computed in
// parts.
void divide(DType dtype, std::byte* values, uint64_t nbytes, int by);

// The instruction set that reduce_kernel(dtype, op) uses, and its name. Throws as that does.
Isa active_isa_kind();
const char* active_isa();

}  // namespace hocket
