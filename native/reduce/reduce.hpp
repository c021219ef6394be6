// Elementwise reduction of the arrays of several ranks: the arithmetic of all_reduce, reduce and reduce_scatter.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/types.hpp"

namespace hocket {

// dst[i] = srcs[0][i] (op) srcs[1][i] (op) ... in this order, for i < count elements.
//
// - dst2, unless null, gets the same values: a second copy, written while the first is still in registers.
// - dst and dst2 may each be equal to one of the srcs; otherwise nothing overlaps. No alignment is needed.
// - The bits depend on the values and their order alone: not on the instruction set, nor on how an array is cut into
//   calls. To this end a NaN result is always the positive quiet NaN without payload: which payload survives an
//   addition of two NaNs depends on the operand order a compiler happens to choose.
//   (Presupposed: round to nearest and no flushing of subnormals, as every thread starts.)
// - float16 and bfloat16 accumulate in float32 and round once, to nearest even. avg divides once, in the accumulator.
//   min and max propagate NaN and keep the earlier of two equal values (-0.0 and 0.0). Integers wrap around. Logical
//   reductions give 0 or 1. Of complex numbers, NaN is canonical in each part.
// - A single source is copied bit by bit. num_srcs >= 1.
using ReduceKernel = void (*)(std::byte* dst, std::byte* dst2, const std::byte* const* srcs, int num_srcs,
                              size_t count);

// What the kernels are compiled for. `scalar` is the portable build: it uses what every CPU of the platform has.
enum class Isa : uint8_t { scalar, avx2, avx512 };

// Whether this build has the instruction set, and CPU and operating system support it.
bool isa_available(Isa isa);

// The kernel for the best available instruction set, or for the one that HOCKET_ISA=scalar|avx2|avx512 names.
// Null where the operation is not reducible(); throws std::invalid_argument if HOCKET_ISA cannot be followed.
ReduceKernel reduce_kernel(DType dtype, ReduceOp op);

// The kernel of one instruction set, which has to be available.
ReduceKernel reduce_kernel(Isa isa, DType dtype, ReduceOp op);

// Divides floating point and complex numbers of 32 bits and more: what is left of an average whose sum was made in
// parts.
void divide(DType dtype, std::byte* values, uint64_t nbytes, int by);

// The name of the instruction set that reduce_kernel(dtype, op) uses.
const char* active_isa();

}  // namespace hocket
