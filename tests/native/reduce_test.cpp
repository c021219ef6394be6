// The reduction kernels of every instruction set against an oracle that works element by element: bitwise equal.
#include "reduce/reduce.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <vector>

#include "check.hpp"
#include "tier.hpp"

namespace {

using namespace hocket;

constexpr Isa kIsas[] = {Isa::scalar, Isa::avx2, Isa::avx512};
constexpr DType kDTypes[] = {DType::float16, DType::bfloat16, DType::float32, DType::float64,   DType::int8,
                             DType::int16,   DType::int32,    DType::int64,   DType::uint8,     DType::boolean,
                             DType::uint16,  DType::uint32,   DType::uint64,  DType::complex64, DType::complex128};
constexpr ReduceOp kOps[] = {ReduceOp::sum,  ReduceOp::prod, ReduceOp::min, ReduceOp::max,
                             ReduceOp::avg,  ReduceOp::band, ReduceOp::bor, ReduceOp::bxor,
                             ReduceOp::land, ReduceOp::lor,  ReduceOp::lxor};

// ---- Oracle

struct Half {
  using Accumulator = float;
  _Float16 bits;
  explicit operator float() const { return static_cast<float>(bits); }
  static Half from(float x) { return {static_cast<_Float16>(x)}; }
};

struct Bfloat {
  using Accumulator = float;
  uint16_t bits;
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
  // Compares the discarded half with the midpoint: on purpose another method than that of the kernels.
  static Bfloat from(float x) {
    const auto wide = std::bit_cast<uint32_t>(x);
    const auto kept = static_cast<uint16_t>(wide >> 16);
    const uint32_t discarded = wide & 0xffff;
    const bool up = discarded > 0x8000 || (discarded == 0x8000 && (kept & 1) != 0);
    return {static_cast<uint16_t>(std::isnan(x) ? 0x7fc0 : kept + up)};
  }
};

template <class T>
struct Native {
  using Accumulator = T;
  T value;
  explicit operator T() const { return value; }
  static Native from(T x) { return {x}; }
};

template <class T>
T combine(ReduceOp op, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
  }
  using Wide = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;  // unsigned: no undefined overflow
  const auto wide_a = static_cast<Wide>(a), wide_b = static_cast<Wide>(b);
  if (op == ReduceOp::min) return std::min(a, b);
  if (op == ReduceOp::max) return std::max(a, b);
  if constexpr (std::is_integral_v<T>) {
    if (op == ReduceOp::band) return static_cast<T>(wide_a & wide_b);
    if (op == ReduceOp::bor) return static_cast<T>(wide_a | wide_b);
    if (op == ReduceOp::bxor) return static_cast<T>(wide_a ^ wide_b);
    if (op == ReduceOp::land) return a && b;
    if (op == ReduceOp::lor) return a || b;
    if (op == ReduceOp::lxor) return !a != !b;
  }
  return static_cast<T>(op == ReduceOp::prod ? wide_a * wide_b : wide_a + wide_b);
}

template <class Element>
std::vector<std::byte> expected(ReduceOp op, std::span<const std::byte* const> srcs, size_t count) {
  using T = typename Element::Accumulator;
  std::vector<std::byte> result(count * sizeof(Element));
  for (size_t i = 0; i < result.size(); i += sizeof(Element)) {
    const auto at = [&](size_t k) {
      Element element;
      std::memcpy(&element, srcs[k] + i, sizeof(element));
      return element;
    };
    Element element = at(0);
    if (srcs.size() > 1) {
      T sum = static_cast<T>(element);
      for (size_t k = 1; k < srcs.size(); ++k) sum = combine<T>(op, sum, static_cast<T>(at(k)));
      if (op == ReduceOp::avg) sum = static_cast<T>(sum / static_cast<T>(srcs.size()));
      // The kernels return only one NaN. (inf - inf gives another NaN on x86.)
      if constexpr (std::is_floating_point_v<T>) {
        if (std::isnan(sum)) sum = std::numeric_limits<T>::quiet_NaN();
      }
      element = Element::from(sum);
    }
    std::memcpy(&result[i], &element, sizeof(element));
  }
  return result;
}

template <class T>
std::vector<std::byte> expected_of_complex(ReduceOp op, std::span<const std::byte* const> srcs, size_t count) {
  if (op != ReduceOp::prod) return expected<Native<T>>(op, srcs, 2 * count);
  std::vector<std::byte> result(count * 2 * sizeof(T));
  for (size_t i = 0; i < result.size(); i += 2 * sizeof(T)) {
    T product[2];
    std::memcpy(product, srcs[0] + i, sizeof product);
    for (size_t k = 1; k < srcs.size(); ++k) {
      T x[2];
      std::memcpy(x, srcs[k] + i, sizeof x);
      const T re = product[0] * x[0] - product[1] * x[1];
      product[1] = product[0] * x[1] + product[1] * x[0];
      product[0] = re;
    }
    for (T& part : product)
      if (srcs.size() > 1 && std::isnan(part)) part = std::numeric_limits<T>::quiet_NaN();
    std::memcpy(&result[i], product, sizeof product);
  }
  return result;
}

std::vector<std::byte> expected(DType dtype, ReduceOp op, std::span<const std::byte* const> srcs, size_t count) {
  switch (dtype) {
    case DType::float16:
      return expected<Half>(op, srcs, count);
    case DType::bfloat16:
      return expected<Bfloat>(op, srcs, count);
    case DType::float32:
      return expected<Native<float>>(op, srcs, count);
    case DType::float64:
      return expected<Native<double>>(op, srcs, count);
    case DType::int8:
      return expected<Native<int8_t>>(op, srcs, count);
    case DType::int16:
      return expected<Native<int16_t>>(op, srcs, count);
    case DType::int32:
      return expected<Native<int32_t>>(op, srcs, count);
    case DType::int64:
      return expected<Native<int64_t>>(op, srcs, count);
    case DType::uint8:
    case DType::boolean:
      return expected<Native<uint8_t>>(op, srcs, count);
    case DType::uint16:
      return expected<Native<uint16_t>>(op, srcs, count);
    case DType::uint32:
      return expected<Native<uint32_t>>(op, srcs, count);
    case DType::uint64:
      return expected<Native<uint64_t>>(op, srcs, count);
    case DType::complex64:
      return expected_of_complex<float>(op, srcs, count);
    case DType::complex128:
      return expected_of_complex<double>(op, srcs, count);
  }
  std::abort();
}

// ---- Inputs

std::mt19937_64 generator(20240917);

// Half of the floats are random bit patterns (every kind of NaN, infinity, subnormal); half are of moderate size, where
// sums and products round, or special values at the limits of the format.
uint64_t random_element(DType dtype) {
  const uint64_t any = generator();
  const auto moderate = static_cast<float>(static_cast<int64_t>(any)) * 0x1p-62f;
  const uint64_t index = (any >> 8) % 8;
  const bool special = (any & 7) == 4;
  if (dtype == DType::boolean) return any & 1;
  if (!is_float(dtype) || (any & 7) < 4) return any;
  constexpr uint16_t half[] = {0x0000, 0x8000, 0x0001, 0x03ff, 0x7bff, 0x7c00, 0xfc00, 0x7c01};
  constexpr uint16_t bfloat[] = {0x0000, 0x8000, 0x0001, 0x007f, 0x7f7f, 0x7f80, 0xff80, 0x7f81};
  constexpr uint32_t single[] = {0, 1u << 31, 1, 0x007fffff, 0x7f7fffff, 0x7f800000, 0xff800000, 0xffc00000};
  constexpr double wide[] = {0.0, -0.0, 5e-324, 2e-308, 1.7e308, HUGE_VAL, -HUGE_VAL, __builtin_nan("1")};
  if (dtype == DType::float16) return special ? half[index] : std::bit_cast<uint16_t>(Half::from(moderate));
  if (dtype == DType::bfloat16) return special ? bfloat[index] : Bfloat::from(moderate).bits;
  if (dtype == DType::float32) return special ? single[index] : std::bit_cast<uint32_t>(moderate);
  return std::bit_cast<uint64_t>(special ? wide[index] : static_cast<double>(moderate) / 3);
}

// A block of exactly the requested size, so that the address sanitizer detects every access beyond its end.
struct Block {
  std::unique_ptr<std::byte[]> memory;
  std::byte* data;
  size_t nbytes;

  Block(size_t nbytes, size_t misalignment)
      : memory(std::make_unique<std::byte[]>(nbytes + misalignment)),
        data(memory.get() + misalignment),
        nbytes(nbytes) {}

  bool equals(const std::vector<std::byte>& other) const {
    return nbytes == other.size() && (nbytes == 0 || std::memcmp(data, other.data(), nbytes) == 0);
  }
};

Block random_block(DType dtype, size_t count, size_t misalignment) {
  if (is_complex(dtype))
    return random_block(dtype == DType::complex64 ? DType::float32 : DType::float64, 2 * count, misalignment);
  Block block(count * itemsize(dtype), misalignment);
  for (size_t i = 0; i < block.nbytes; i += itemsize(dtype)) {
    const uint64_t element = random_element(dtype);
    std::memcpy(block.data + i, &element, itemsize(dtype));
  }
  return block;
}

// ---- Checks

struct Case {
  DType dtype;
  ReduceOp op;
  int num_srcs;
  size_t count;
};

void check_case(bool holds, Isa isa, const Case& c) {
  if (holds) return;
  std::fprintf(stderr, "isa %d, %s %s, %d sources, count %zu:\n", static_cast<int>(isa), name(c.dtype), name(c.op),
               c.num_srcs, c.count);
  CHECK(holds);
}

void check(const Case& c) {
  const size_t nbytes = c.count * itemsize(c.dtype);
  const size_t misalignment = generator() % 4 == 0 ? 0 : generator() % 64;
  std::vector<Block> blocks;
  std::vector<const std::byte*> srcs;
  for (int k = 0; k < c.num_srcs; ++k) {
    blocks.push_back(random_block(c.dtype, c.count, k % 2 == 0 ? misalignment : generator() % 64));
    srcs.push_back(blocks.back().data);
  }
  const std::vector<std::byte> want = expected(c.dtype, c.op, srcs, c.count);

  for (const Isa isa : kIsas) {
    if (!isa_available(isa)) continue;
    const ReduceKernel kernel = reduce_kernel(isa, c.dtype, c.op);

    Block dst(nbytes, misalignment), dst2(nbytes, generator() % 64);
    kernel(dst.data, nullptr, srcs.data(), c.num_srcs, c.count);
    check_case(dst.equals(want), isa, c);
    std::fill_n(dst.data, nbytes, std::byte{0x5a});
    kernel(dst.data, dst2.data, srcs.data(), c.num_srcs, c.count);
    check_case(dst.equals(want) && dst2.equals(want), isa, c);

    // In two calls, divided at a random element.
    const size_t cut = c.count == 0 ? 0 : generator() % (c.count + 1);
    std::vector<const std::byte*> rest;
    for (const std::byte* src : srcs) rest.push_back(src + cut * itemsize(c.dtype));
    std::fill_n(dst.data, nbytes, std::byte{0x5a});
    kernel(dst.data + cut * itemsize(c.dtype), nullptr, rest.data(), c.num_srcs, c.count - cut);
    kernel(dst.data, nullptr, srcs.data(), c.num_srcs, cut);
    check_case(dst.equals(want), isa, c);

    // In place: over source k, and both destinations over two sources.
    for (int k = 0; k < c.num_srcs; ++k) {
      Block copy(nbytes, misalignment), copy2(nbytes, 1);
      std::copy_n(srcs[k], nbytes, copy.data);
      std::vector<const std::byte*> aliased = srcs;
      aliased[k] = copy.data;
      kernel(copy.data, k % 2 == 0 ? dst2.data : nullptr, aliased.data(), c.num_srcs, c.count);
      check_case(copy.equals(want) && dst2.equals(want), isa, c);

      const int next = (k + 1) % c.num_srcs;
      std::copy_n(srcs[k], nbytes, copy.data);
      std::copy_n(srcs[next], nbytes, copy2.data);
      aliased[next] = copy2.data;
      kernel(next == k ? dst.data : copy.data, copy2.data, aliased.data(), c.num_srcs, c.count);
      check_case(copy2.equals(want) && (next == k || copy.equals(want)), isa, c);
    }
  }
}

// Every 16-bit pattern: x + -0.0 is x, so the sum must return each pattern, and the canonical NaN for every NaN.
// Products with some other values test the rounding of all patterns.
void check_all_16_bit_patterns(DType dtype) {
  constexpr size_t kCount = 65536;
  Block all(2 * kCount, 0), others(2 * kCount, 0), dst(2 * kCount, 0);
  for (size_t i = 0; i < kCount; ++i) std::memcpy(all.data + 2 * i, &i, 2);
  const std::byte* srcs[] = {all.data, others.data};
  for (int round = 0; round < (is_full_tier() ? 64 : 8); ++round) {
    const uint64_t other = round == 0 ? 0x8000 : random_element(dtype);
    for (size_t i = 0; i < kCount; ++i) std::memcpy(others.data + 2 * i, &other, 2);
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::avg}) {
      const std::vector<std::byte> want = expected(dtype, op, srcs, kCount);
      for (const Isa isa : kIsas) {
        if (!isa_available(isa)) continue;
        reduce_kernel(isa, dtype, op)(dst.data, nullptr, srcs, 2, kCount);
        check_case(dst.equals(want), isa, {dtype, op, 2, kCount});
      }
    }
  }
}

// HOCKET_ISA is read at the first use, so this comes first.
void check_dispatch() {
  setenv("HOCKET_ISA", "sse9", 1);
  bool refused = false;
  try {
    active_isa();
  } catch (const std::invalid_argument& error) {
    refused = std::string_view(error.what()).find("sse9") != std::string_view::npos;
  }
  CHECK(refused);

  setenv("HOCKET_ISA", "scalar", 1);
  CHECK(std::string_view(active_isa()) == "scalar");
  CHECK(isa_available(Isa::scalar));
  for (const DType dtype : kDTypes) {
    for (const ReduceOp op : kOps) {
      CHECK(reduce_kernel(dtype, op) == reduce_kernel(Isa::scalar, dtype, op));
      for (const Isa isa : kIsas) {
        if (isa_available(isa)) CHECK((reduce_kernel(isa, dtype, op) != nullptr) == reducible(dtype, op));
      }
    }
  }
}

}  // namespace

int main() {
  check_dispatch();
  for (const DType dtype : kDTypes) {
    for (const ReduceOp op : kOps) {
      if (!reducible(dtype, op)) continue;
      for (const int num_srcs : {1, 2, 3, 4, 8}) {
        // Every tail of a vector with two sources; of other numbers of sources a third is enough for every change.
        const size_t step = num_srcs == 2 || is_full_tier() ? 1 : 3;
        for (size_t count = static_cast<size_t>(num_srcs) % step; count <= 130; count += step)
          check({dtype, op, num_srcs, count});
        for (const size_t count : {255, 256, 511, 1023, 4097, 10007}) check({dtype, op, num_srcs, count});
      }
    }
  }
  check_all_16_bit_patterns(DType::float16);
  check_all_16_bit_patterns(DType::bfloat16);
  std::puts("reduce_test: ok");
}
