// The reduction kernels, written once over the compilers' vector extension and compiled once per instruction set.
//
// The including file defines HOCKET_ISA, the namespace of this copy, and HOCKET_VECTOR_BYTES, its register width.
//
// Everything but the lookup at the end is in an anonymous namespace and calls no inline function of a shared header,
// not even of the standard library: the linker keeps only one of several equal inline functions, and if that were the
// AVX-512 copy, the rest of the program would run it on every CPU.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "reduce/reduce.hpp"

#if defined(__F16C__)
#include <immintrin.h>
#endif

#define INLINE [[gnu::always_inline]] inline

namespace hocket::HOCKET_ISA {
namespace {

template <class T, int kLanes>
struct VecOf {
  typedef T type __attribute__((vector_size(sizeof(T) * kLanes)));
  typedef T in_memory __attribute__((vector_size(sizeof(T) * kLanes), aligned(1), may_alias));
};
template <class T, int kLanes>
using Vec = typename VecOf<T, kLanes>::type;

// Not memcpy: g++ treats a memcpy of 16 bytes as an integer and moves it through two general registers.
template <class T, int kLanes>
INLINE Vec<T, kLanes> load(const std::byte* from) {
  return *reinterpret_cast<const typename VecOf<T, kLanes>::in_memory*>(from);
}
template <class T, int kLanes>
INLINE void store(std::byte* to, Vec<T, kLanes> x) {
  *reinterpret_cast<typename VecOf<T, kLanes>::in_memory*>(to) = x;
}

// The first kTo lanes of x; missing lanes are zero.
template <class T, int kTo, int kFrom>
INLINE Vec<T, kTo> resize(Vec<T, kFrom> x) {
  Vec<T, kTo> result{};
  __builtin_memcpy(&result, &x, sizeof(T) * (kTo < kFrom ? kTo : kFrom));
  return result;
}

template <class T>
constexpr bool kIsFloat = false;
template <>
constexpr bool kIsFloat<float> = true;
template <>
constexpr bool kIsFloat<double> = true;

// ---- Formats: the type of elements in memory (Storage) and the type in which they are reduced (Accumulator).

template <class T>
struct Plain {
  using Storage = T;
  using Accumulator = T;

  template <int kLanes>
  INLINE static Vec<T, kLanes> widen(Vec<T, kLanes> x) {
    return x;
  }
  template <int kLanes>
  INLINE static Vec<T, kLanes> narrow(Vec<T, kLanes> x) {
    return x;
  }
};

// Complex numbers as vectors of their parts. Every operation except the product works part by part.
template <class T>
struct Complex : Plain<T> {};

template <class Format>
constexpr bool kIsComplex = false;
template <class T>
constexpr bool kIsComplex<Complex<T>> = true;

#include "reduce/half.inl"  // Float16, BFloat16

// ---- Arithmetic

template <ReduceOp op, class T, int kLanes>
INLINE Vec<T, kLanes> combine(Vec<T, kLanes> a, Vec<T, kLanes> b) {
  if constexpr (op == ReduceOp::prod) {
    return a * b;
  } else if constexpr (op == ReduceOp::min || op == ReduceOp::max) {
    // Unordered comparisons are false, so a NaN in a stays; a NaN in b must be selected explicitly.
    const auto better = op == ReduceOp::min ? b < a : b > a;
    const Vec<T, kLanes> best = better ? b : a;
    if constexpr (kIsFloat<T>) return b == b ? best : b;
    return best;
  } else if constexpr (op == ReduceOp::band) {
    return a & b;
  } else if constexpr (op == ReduceOp::bor) {
    return a | b;
  } else if constexpr (op == ReduceOp::bxor) {
    return a ^ b;
  } else if constexpr (op == ReduceOp::land) {
    return (Vec<T, kLanes>)((a != 0) & (b != 0)) & static_cast<T>(1);
  } else if constexpr (op == ReduceOp::lor) {
    return (Vec<T, kLanes>)((a | b) != 0) & static_cast<T>(1);
  } else if constexpr (op == ReduceOp::lxor) {
    return (Vec<T, kLanes>)((a != 0) ^ (b != 0)) & static_cast<T>(1);
  } else {
    return a + b;
  }
}

// The plain formula, without the corrections for infinite parts that C makes and NumPy does not make. The subtraction
// is written as the addition of a negative: g++ 12 fuses a subtraction beside an addition into one operation, which
// rounds differently, even with -ffp-contract=off.
template <class T, int kLanes>
INLINE Vec<T, kLanes> multiply_complex(Vec<T, kLanes> a, Vec<T, kLanes> b) {
  if constexpr (kLanes == 1) {
    return a;  // never called: parts come in pairs
  } else {
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    Vec<Bits, kLanes> real, imaginary, swapped, minus;
    for (int i = 0; i < kLanes; ++i) {
      real[i] = static_cast<Bits>(i & ~1);
      imaginary[i] = static_cast<Bits>(i | 1);
      swapped[i] = static_cast<Bits>(i ^ 1);
      minus[i] = i % 2 == 0 ? Bits{1} << (8 * sizeof(T) - 1) : 0;
    }
    const Vec<T, kLanes> crossed = __builtin_shuffle(a, imaginary) * __builtin_shuffle(b, swapped);
    return __builtin_shuffle(a, real) * b + (Vec<T, kLanes>)((Vec<Bits, kLanes>)crossed ^ minus);
  }
}

template <class T, int kLanes>
INLINE Vec<T, kLanes> canonical(Vec<T, kLanes> x) {
  constexpr T nan = __builtin_nan("");
  return x == x ? x : Vec<T, kLanes>{} + nan;
}

template <ReduceOp op, class T, int kLanes>
INLINE Vec<T, kLanes> finish(Vec<T, kLanes> x, int num_srcs) {
  if constexpr (op == ReduceOp::avg) x /= static_cast<T>(num_srcs);
  if constexpr (kIsFloat<T>) x = canonical<T, kLanes>(x);
  return x;
}

// ---- Loops

// Reduces kVectors vectors of kLanes elements at a byte offset. All loads come before all stores, so dst and dst2 may
// each be one of the sources; the accumulators stay in registers, so each source is read once.
template <class Format, ReduceOp op, int kLanes, int kVectors>
INLINE void reduce_tile(std::byte* dst, std::byte* dst2, const std::byte* const* srcs, int num_srcs, size_t offset) {
  using Storage = typename Format::Storage;
  using Accumulator = typename Format::Accumulator;
  constexpr size_t kStride = sizeof(Storage) * kLanes;
  const auto read = [&](int k, int v) __attribute__((always_inline)) {
    return Format::template widen<kLanes>(load<Storage, kLanes>(srcs[k] + offset + v * kStride));
  };

  Vec<Accumulator, kLanes> sums[kVectors];
  for (int v = 0; v < kVectors; ++v) sums[v] = read(0, v);
  for (int k = 1; k < num_srcs; ++k) {
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (kIsComplex<Format> && op == ReduceOp::prod)
        sums[v] = multiply_complex<Accumulator, kLanes>(sums[v], read(k, v));
      else
        sums[v] = combine<op, Accumulator, kLanes>(sums[v], read(k, v));
    }
  }

  // Unrolled explicitly: g++ 12 unrolls too late to keep the array in registers.
  Vec<Storage, kLanes> results[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    results[v] = Format::template narrow<kLanes>(finish<op, Accumulator, kLanes>(sums[v], num_srcs));
    store<Storage, kLanes>(dst + offset + v * kStride, results[v]);
  }
  if (dst2 == nullptr) return;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) store<Storage, kLanes>(dst2 + offset + v * kStride, results[v]);
}

// Reduces the count < 2 * kLanes elements behind the last full vector, halving the vector width each time: a
// logarithmic number of steps, without masked accesses (slow on some CPUs) and without reads past the end.
template <class Format, ReduceOp op, int kLanes>
INLINE void reduce_tail(std::byte* dst, std::byte* dst2, const std::byte* const* srcs, int num_srcs, size_t offset,
                        size_t count) {
  if (count & kLanes) {
    reduce_tile<Format, op, kLanes, 1>(dst, dst2, srcs, num_srcs, offset);
    offset += kLanes * sizeof(typename Format::Storage);
  }
  if constexpr (kLanes > 1) reduce_tail<Format, op, kLanes / 2>(dst, dst2, srcs, num_srcs, offset, count);
}

template <class Format, ReduceOp op>
INLINE void reduce_all(std::byte* dst, std::byte* dst2, const std::byte* const* srcs, int num_srcs, size_t count) {
  constexpr int kLanes = HOCKET_VECTOR_BYTES / sizeof(typename Format::Accumulator);
  constexpr int kVectors = 4;
  constexpr size_t kVectorBytes = kLanes * sizeof(typename Format::Storage);
  size_t offset = 0;
  size_t left = count;
  for (; left >= kVectors * kLanes; left -= kVectors * kLanes, offset += kVectors * kVectorBytes) {
    reduce_tile<Format, op, kLanes, kVectors>(dst, dst2, srcs, num_srcs, offset);
  }
  for (; left >= kLanes; left -= kLanes, offset += kVectorBytes) {
    reduce_tile<Format, op, kLanes, 1>(dst, dst2, srcs, num_srcs, offset);
  }
  if (left != 0) reduce_tail<Format, op, kLanes / 2>(dst, dst2, srcs, num_srcs, offset, left);
}

template <class Format, ReduceOp op>
void reduce(std::byte* dst, std::byte* dst2, const std::byte* const* srcs, int num_srcs, size_t count) {
  if (num_srcs == 2) {
    // The common case: two pointers and no inner loop, all in registers.
    const std::byte* const pair[2] = {srcs[0], srcs[1]};
    reduce_all<Format, op>(dst, dst2, pair, 2, count);
  } else if (num_srcs > 2) {
    reduce_all<Format, op>(dst, dst2, srcs, num_srcs, count);
  } else {
    const size_t nbytes = count * sizeof(typename Format::Storage);
    if (dst != srcs[0]) __builtin_memcpy(dst, srcs[0], nbytes);
    if (dst2 != nullptr && dst2 != srcs[0]) __builtin_memcpy(dst2, srcs[0], nbytes);
  }
}

// ---- Lookup

template <class T, ReduceOp op>
void reduce_complex(std::byte* dst, std::byte* dst2, const std::byte* const* srcs, int num_srcs, size_t count) {
  reduce<Complex<T>, op>(dst, dst2, srcs, num_srcs, 2 * count);
}

template <ReduceOp op, class T>
ReduceKernel complex_kernel() {
  if constexpr (op == ReduceOp::sum || op == ReduceOp::prod || op == ReduceOp::avg) {
    return reduce_complex<T, op>;
  } else {
    return nullptr;
  }
}

template <ReduceOp op, class Format>
ReduceKernel float_kernel() {
  if constexpr (is_of_bits(op)) {
    return nullptr;
  } else {
    return reduce<Format, op>;
  }
}

template <ReduceOp op, class Signed, class Unsigned>
ReduceKernel integer_kernel() {
  if constexpr (op == ReduceOp::min || op == ReduceOp::max) {
    return reduce<Plain<Signed>, op>;
  } else if constexpr (op == ReduceOp::avg) {
    return nullptr;
  } else {
    return reduce<Plain<Unsigned>, op>;  // wraps around, with the same bits as two's complement
  }
}

template <ReduceOp op>
ReduceKernel kernel(DType dtype) {
  constexpr bool is_for_bool = reducible(DType::boolean, op);
  switch (dtype) {
    case DType::float16:
      return float_kernel<op, Float16>();
    case DType::bfloat16:
      return float_kernel<op, BFloat16>();
    case DType::float32:
      return float_kernel<op, Plain<float>>();
    case DType::float64:
      return float_kernel<op, Plain<double>>();
    case DType::int8:
      return integer_kernel<op, int8_t, uint8_t>();
    case DType::int16:
      return integer_kernel<op, int16_t, uint16_t>();
    case DType::int32:
      return integer_kernel<op, int32_t, uint32_t>();
    case DType::int64:
      return integer_kernel<op, int64_t, uint64_t>();
    case DType::uint8:
      return integer_kernel<op, uint8_t, uint8_t>();
    case DType::boolean:
      return is_for_bool ? integer_kernel<op, uint8_t, uint8_t>() : nullptr;
    case DType::uint16:
      return integer_kernel<op, uint16_t, uint16_t>();
    case DType::uint32:
      return integer_kernel<op, uint32_t, uint32_t>();
    case DType::uint64:
      return integer_kernel<op, uint64_t, uint64_t>();
    case DType::complex64:
      return complex_kernel<op, float>();
    case DType::complex128:
      return complex_kernel<op, double>();
  }
  return nullptr;
}

}  // namespace

ReduceKernel lookup(DType dtype, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return kernel<ReduceOp::sum>(dtype);
    case ReduceOp::prod:
      return kernel<ReduceOp::prod>(dtype);
    case ReduceOp::min:
      return kernel<ReduceOp::min>(dtype);
    case ReduceOp::max:
      return kernel<ReduceOp::max>(dtype);
    case ReduceOp::avg:
      return kernel<ReduceOp::avg>(dtype);
    case ReduceOp::band:
      return kernel<ReduceOp::band>(dtype);
    case ReduceOp::bor:
      return kernel<ReduceOp::bor>(dtype);
    case ReduceOp::bxor:
      return kernel<ReduceOp::bxor>(dtype);
    case ReduceOp::land:
      return kernel<ReduceOp::land>(dtype);
    case ReduceOp::lor:
      return kernel<ReduceOp::lor>(dtype);
    case ReduceOp::lxor:
      return kernel<ReduceOp::lxor>(dtype);
  }
  return nullptr;
}

}  // namespace hocket::HOCKET_ISA
