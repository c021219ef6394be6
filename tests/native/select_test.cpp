// The selection of the largest elements by every instruction set, against a stable sort.
#include "sparse/select.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "tier.hpp"

namespace {

using namespace hocket;

constexpr Isa kIsas[] = {Isa::scalar, Isa::avx2, Isa::avx512};

struct Kind {
  const char* name;
  float (*at)(uint64_t place, uint64_t n, std::mt19937& random);
};

float normal(std::mt19937& random) { return std::normal_distribution<float>()(random); }

// What gradients are: spread, with heavy tails, clustered, tied, and what breaks a guess from a sample.
constexpr Kind kKinds[] = {
    {"normal", [](uint64_t, uint64_t, std::mt19937& random) { return normal(random); }},
    {"heavy tails", [](uint64_t, uint64_t,
                       std::mt19937& random) { return std::pow(normal(random), 3.0F) * std::exp(normal(random)); }},
    {"equal", [](uint64_t place, uint64_t, std::mt19937&) { return place % 2 == 0 ? 0.5F : -0.5F; }},
    {"zero", [](uint64_t place, uint64_t, std::mt19937&) { return place % 2 == 0 ? 0.0F : -0.0F; }},
    {"three values", [](uint64_t, uint64_t, std::mt19937& random) { return static_cast<float>(random() % 3) - 1.0F; }},
    {"narrow", [](uint64_t, uint64_t, std::mt19937& random) { return 1.0F + 1e-5F * normal(random); }},
    {"few nonzero",
     [](uint64_t, uint64_t, std::mt19937& random) { return random() % 1000 == 0 ? normal(random) : 0.0F; }},
    {"cluster",
     [](uint64_t place, uint64_t n, std::mt19937& random) { return normal(random) * (place < n / 50 ? 1.0F : 1e-4F); }},
    {"ascending", [](uint64_t place, uint64_t, std::mt19937&) { return static_cast<float>(place); }},
    {"subnormal",
     [](uint64_t place, uint64_t, std::mt19937&) {
       return std::numeric_limits<float>::denorm_min() * static_cast<float>(place % 777);
     }},
    {"one spike in each 64",
     [](uint64_t place, uint64_t, std::mt19937& random) { return place % 64 == 63 ? 100.0F + normal(random) : 0.0F; }},
};

std::vector<uint32_t> expected(const std::vector<float>& x, uint64_t k) {
  std::vector<uint32_t> places(x.size());
  std::iota(places.begin(), places.end(), 0);
  std::stable_sort(places.begin(), places.end(),
                   [&](uint32_t a, uint32_t b) { return std::fabs(x[a]) > std::fabs(x[b]); });
  places.resize(k);
  std::erase_if(places, [&](uint32_t place) { return x[place] == 0.0F; });
  std::sort(places.begin(), places.end());
  return places;
}

void check_selection(const Kind& kind, uint64_t n, uint64_t k) {
  std::mt19937 random(static_cast<uint32_t>(n + k));
  std::vector<float> x(n);
  for (uint64_t i = 0; i < n; ++i) x[i] = kind.at(i, n, random);
  const std::vector<uint32_t> want = expected(x, k);
  float threshold = 0.0F;
  if (!want.empty() && want.size() == k) {
    threshold = std::numeric_limits<float>::infinity();
    for (const uint32_t place : want) threshold = std::min(threshold, std::fabs(x[place]));
  }
  for (const Isa isa : kIsas) {
    if (!isa_available(isa)) continue;
    Buffer<uint32_t> places;
    Buffer<float> values;
    const Selected found = select_largest({x.data(), nullptr, nullptr, n}, k, places, values, isa);
    bool is_right = found.is_finite && std::equal(places.begin(), places.end(), want.begin(), want.end()) &&
                    values.size() == want.size() && found.threshold == threshold;
    for (size_t i = 0; is_right && i < want.size(); ++i) is_right = values[i] == x[want[i]];
    uint64_t num_above = 0;
    for (const float each : x) num_above += std::fabs(each) > threshold;
    is_right = is_right && found.num_above == num_above && found.num_above + found.num_equal == want.size();
    if (!is_right)
      std::fprintf(stderr, "%s, %d, n = %llu, k = %llu\n", kind.name, static_cast<int>(isa),
                   static_cast<unsigned long long>(n), static_cast<unsigned long long>(k));
    CHECK(is_right);
  }
}

// The sums of two arrays, which are written in the same pass.
void check_sums(const Kind& kind, uint64_t n, uint64_t k) {
  std::mt19937 random(static_cast<uint32_t>(n + k));
  std::vector<float> x(n), twice(n);
  for (uint64_t i = 0; i < n; ++i) {
    x[i] = kind.at(i, n, random);
    twice[i] = x[i] + x[i];
  }
  const std::vector<uint32_t> want = expected(twice, k);
  for (const Isa isa : kIsas) {
    if (!isa_available(isa)) continue;
    Buffer<uint32_t> places;
    Buffer<float> values;
    std::vector<float> total(n, -1.0F);
    CHECK(select_largest({x.data(), x.data(), total.data(), n}, k, places, values, isa).is_finite);
    CHECK(std::equal(places.begin(), places.end(), want.begin(), want.end()) && total == twice);
    for (size_t i = 0; i < want.size(); ++i) CHECK(values[i] == twice[want[i]]);
  }
}

void check_not_finite() {
  for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    for (const uint64_t place : {uint64_t{0}, uint64_t{17}, uint64_t{99'999}}) {
      std::vector<float> x(100'000, 1.0F);
      x[place] = wrong;
      for (const Isa isa : kIsas) {
        if (!isa_available(isa)) continue;
        Buffer<uint32_t> places;
        Buffer<float> values;
        CHECK(!select_largest({x.data(), nullptr, nullptr, x.size()}, 10, places, values, isa).is_finite &&
              places.empty());
      }
    }
  }
}

}  // namespace

int main() {
  std::vector<uint64_t> sizes = {1, 2, 15, 16, 17, 1000, 70'001};
  if (is_full_tier()) sizes.push_back(3'000'000);
  for (const Kind& kind : kKinds) {
    for (const uint64_t n : sizes) {
      for (const uint64_t k : {uint64_t{1}, n / 1000, n / 100, n / 64, n / 10, n / 2, n - 1, n}) {
        if (k < 1 || k > n) continue;
        check_selection(kind, n, k);
        if (n < 100'000) check_sums(kind, n, k);
      }
    }
  }
  check_not_finite();
}
