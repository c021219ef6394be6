// Quantizers: every instruction set writes the same bytes and the same floats, which are those of the definitions; and
// nothing outside of the arrays is touched.
#include "quantize/quantize.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.hpp"

namespace {

using namespace hocket;

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kLargest = std::numeric_limits<float>::max();

std::vector<Isa> available() {
  std::vector<Isa> found;
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512})
    if (isa_available(isa)) found.push_back(isa);
  return found;
}

std::vector<float> values(uint64_t n, std::mt19937& random) {
  std::normal_distribution<float> draw;
  std::vector<float> found(n);
  for (float& each : found) each = std::pow(draw(random), 3.0F);
  if (n > 40) {
    found[3] = -0.0F;
    found[4] = std::numeric_limits<float>::denorm_min();
    std::fill(found.begin() + 16, found.begin() + 40, 0.0F);
  }
  return found;
}

// What an array of ones becomes.
template <typename Call>
std::vector<float> applied(uint64_t n, const Call& call) {
  std::vector<float> x(n, 1.0F);
  call(x.data());
  return x;
}

void check_applied(uint64_t n, const auto& apply) {
  const auto set = applied(n, [&](float* x) { apply(Applied::set, x); });
  const auto add = applied(n, [&](float* x) { apply(Applied::add, x); });
  const auto subtract = applied(n, [&](float* x) { apply(Applied::subtract, x); });
  for (uint64_t i = 0; i < n; ++i) {
    CHECK(add[i] == 1.0F + set[i]);
    CHECK(subtract[i] == 1.0F - set[i]);
  }
}

void test_qsgd(uint64_t n, uint64_t group, int levels, std::mt19937& random) {
  const auto x = values(n, random);
  std::vector<float> first_norms, first_decoded;
  std::vector<int8_t> first;
  for (const Isa isa : available()) {
    const Quantizers kernels = quantizers(isa);
    std::vector<float> norms(num_groups(n, group)), decoded(n);
    std::vector<int8_t> out(n);
    kernels.qsgd(x.data(), n, group, levels, 99, norms.data(), out.data());
    const auto apply = [&](Applied how, float* to) {
      kernels.apply_qsgd(norms.data(), out.data(), n, group, levels, how, to);
    };
    apply(Applied::set, decoded.data());
    check_applied(n, apply);
    if (first.empty()) {
      first = out;
      first_norms = norms;
      first_decoded = decoded;
    }
    CHECK(out == first && norms == first_norms && decoded == first_decoded);
    for (uint64_t i = 0; i < n; ++i) {
      double squares = 0.0;
      const uint64_t begin = i / group * group, end = std::min(n, begin + group);
      for (uint64_t each = begin; each < end; ++each) squares += std::pow(static_cast<double>(x[each]), 2);
      const double norm = std::sqrt(squares);
      CHECK(std::fabs(norms[i / group] - norm) <= 1e-6 * norm);
      CHECK(std::abs(out[i]) <= levels);
      CHECK(std::fabs(static_cast<double>(decoded[i]) - static_cast<double>(x[i])) <=
            norm / levels * 1.00001 + 1e-43);  // subnormal factors are coarse
    }
  }
}

void test_one_bit(uint64_t n, uint64_t group, std::mt19937& random) {
  const auto x = values(n, random);
  std::vector<float> first_means, first_decoded;
  std::vector<uint8_t> first;
  for (const Isa isa : available()) {
    const Quantizers kernels = quantizers(isa);
    std::vector<float> means(num_groups(n, group)), decoded(n);
    std::vector<uint8_t> signs((n + 7) / 8);
    kernels.one_bit(x.data(), n, group, means.data(), signs.data());
    const auto apply = [&](Applied how, float* to) {
      kernels.apply_one_bit(means.data(), signs.data(), n, group, how, to);
    };
    apply(Applied::set, decoded.data());
    check_applied(n, apply);
    if (first_decoded.empty()) {
      first = signs;
      first_means = means;
      first_decoded = decoded;
    }
    CHECK(signs == first && means == first_means && decoded == first_decoded);
    for (uint64_t i = 0; i < n; ++i) {
      double sum = 0.0;
      const uint64_t begin = i / group * group, end = std::min(n, begin + group);
      for (uint64_t each = begin; each < end; ++each) sum += std::fabs(static_cast<double>(x[each]));
      const double mean = sum / static_cast<double>(end - begin);
      CHECK(std::fabs(std::fabs(static_cast<double>(decoded[i])) - mean) <= 1e-6 * mean);
      CHECK(std::signbit(decoded[i]) == (x[i] < 0.0F));
    }
  }
}

void test_bfloat16() {
  std::vector<float> x{0.0F, -0.0F, 1.0F, 1.00390625F, 1.01171875F, -3.14159F, kLargest, -kLargest, 1e-42F};
  std::mt19937 random(3);
  for (const float each : values(1001, random)) x.push_back(each);
  for (const Isa isa : available()) {
    const Quantizers kernels = quantizers(isa);
    std::vector<uint16_t> out(x.size());
    std::vector<float> decoded(x.size());
    kernels.bfloat16(x.data(), x.size(), out.data());
    const auto apply = [&](Applied how, float* to) { kernels.apply_bfloat16(out.data(), x.size(), how, to); };
    apply(Applied::set, decoded.data());
    check_applied(x.size(), apply);
    CHECK(decoded[3] == 1.0F && decoded[4] == 1.015625F);  // ties to even
    for (size_t i = 0; i < x.size(); ++i) {
      CHECK(std::fabs(decoded[i]) < kInfinity);
      const float part = std::fabs(x[i]) > 3.38e38F ? 128.0F : 256.0F;
      CHECK(std::fabs(decoded[i] - x[i]) <= std::fabs(x[i]) / part + 1e-40F);
      CHECK(std::signbit(decoded[i]) == std::signbit(x[i]));
    }
  }
}

// Groups whose norm is no float are cut, and nothing becomes infinite or NaN.
void test_extreme_norms() {
  const std::vector<float> x(64, kLargest), tiny(64, std::numeric_limits<float>::denorm_min());
  for (const Isa isa : available()) {
    for (const auto& given : {x, tiny}) {
      std::vector<float> norms(1), decoded(64);
      std::vector<int8_t> out(64);
      quantizers(isa).qsgd(given.data(), 64, 64, 127, 1, norms.data(), out.data());
      quantizers(isa).apply_qsgd(norms.data(), out.data(), 64, 64, 127, Applied::set, decoded.data());
      for (const float each : decoded) CHECK(each >= 0.0F && each < kInfinity);
    }
  }
}

}  // namespace

int main() {
  std::mt19937 random(1);
  for (const uint64_t n : {0, 1, 7, 8, 15, 16, 17, 100, 511, 512, 513, 1025, 3000}) {
    for (const uint64_t group : {1, 3, 16, 100, 512})
      for (const int levels : {1, 7, 127}) test_qsgd(n, group, levels, random);
    for (const uint64_t group : {8, 24, 1024}) test_one_bit(n, group, random);
  }
  test_bfloat16();
  test_extreme_norms();
}
