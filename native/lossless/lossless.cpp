#include "lossless/lossless.hpp"

#include "lossless/blocks.hpp"

namespace hocket {
namespace {

struct Parts {
  DType dtype;
  uint64_t n;
};

// Complex numbers as floats.
Parts parts_of(DType dtype, uint64_t n) {
  if (dtype == DType::complex64) return {DType::float32, 2 * n};
  if (dtype == DType::complex128) return {DType::float64, 2 * n};
  return {dtype, n};
}

Blocks blocks_of([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return avx512::blocks();
  if (isa == Isa::avx2) return avx2::blocks();
#endif
  return scalar::blocks();
}

}  // namespace

uint64_t most_packed_nbytes(DType dtype, uint64_t n) {
  const Parts parts = parts_of(dtype, n);
  return parts.n * itemsize(parts.dtype) + (parts.n + kBlock - 1) / kBlock + (parts.n + kChunk - 1) / kChunk;
}

uint64_t pack_lossless(Isa isa, DType dtype, const uint8_t* elements, uint64_t n, uint8_t* out) {
  const Parts parts = parts_of(dtype, n);
  return blocks_of(isa).pack(parts.dtype, elements, parts.n, out);
}

bool unpack_lossless(Isa isa, DType dtype, const uint8_t* in, uint64_t nbytes, uint8_t* elements, uint64_t n) {
  const Parts parts = parts_of(dtype, n);
  return blocks_of(isa).unpack(parts.dtype, in, nbytes, elements, parts.n);
}

}  // namespace hocket
