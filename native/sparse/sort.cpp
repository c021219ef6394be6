#include "sparse/sort.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "sparse/pass.hpp"

namespace hocket {
namespace {

constexpr uint64_t kFew = 2048;  // below this many, comparisons are faster than the passes
constexpr int kBits = 11, kPasses = 3;

}  // namespace

std::vector<uint32_t> sorted_magnitudes(const float* values, uint64_t n) {
  std::vector<uint32_t> bits(n);
  if (n > 0) std::memcpy(bits.data(), values, n * sizeof(float));
  for (uint32_t& each : bits) each &= kMagnitude;
  if (n < kFew) {
    std::sort(bits.begin(), bits.end());
    return bits;
  }
  // By their digits, from the lowest; all digits are counted in one pass.
  std::array<std::array<uint64_t, size_t{1} << kBits>, kPasses> begins = {};
  const auto digit = [](uint32_t value, int pass) { return (value >> (kBits * pass)) & ((1U << kBits) - 1); };
  for (const uint32_t each : bits)
    for (int pass = 0; pass < kPasses; ++pass) ++begins[static_cast<size_t>(pass)][digit(each, pass)];
  std::vector<uint32_t> other(n);
  for (int pass = 0; pass < kPasses; ++pass) {
    auto& begin = begins[static_cast<size_t>(pass)];
    uint64_t next = 0;
    for (uint64_t& each : begin) next += std::exchange(each, next);
    for (const uint32_t each : bits) other[begin[digit(each, pass)]++] = each;
    bits.swap(other);
  }
  return bits;
}

}  // namespace hocket
