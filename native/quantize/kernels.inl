// The quantizers, in loops that compilers turn into vector instructions, compiled once per instruction set.
//
// The including file defines HOCKET_ISA, the namespace of this copy. As in native/reduce/kernels.inl, everything is in
// an anonymous namespace and calls no inline function of a shared header.
#include <cstdint>

#include "quantize/quantize.hpp"

#define INLINE [[gnu::always_inline]] inline

namespace hocket::HOCKET_ISA {
namespace {

constexpr uint64_t kLanes = 16;
constexpr uint32_t kSign = 0x80000000, kInfinite = 0x7F800000;
constexpr float kLargest = 0x1.fffffep127F;

INLINE uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
INLINE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

template <Applied kHow>
INLINE void apply(float& element, float value) {
  if constexpr (kHow == Applied::set)
    element = value;
  else if constexpr (kHow == Applied::add)
    element += value;
  else
    element -= value;
}

template <Applied kOne>
struct Way {
  static constexpr Applied kHow = kOne;
};

template <class Call>
INLINE void with_how(Applied how, Call call) {
  if (how == Applied::set)
    call(Way<Applied::set>{});
  else if (how == Applied::add)
    call(Way<Applied::add>{});
  else
    call(Way<Applied::subtract>{});
}

// Calls call(number, begin, size) for each group.
template <class Call>
INLINE void for_groups(uint64_t n, uint64_t group, Call call) {
  uint64_t number = 0;
  for (uint64_t begin = 0; begin < n; begin += group) call(number++, begin, n - begin < group ? n - begin : group);
}

// The sum of term(i), in lanes, so that its order is the same for every instruction set.
template <class Term>
INLINE double sum_of(uint64_t n, Term term) {
  double lanes[kLanes] = {};
  uint64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (uint64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  for (uint64_t lane = 0; i + lane < n; ++lane) lanes[lane] += term(i + lane);
  double sum = 0.0;
  for (const double each : lanes) sum += each;
  return sum;
}

// Random numbers from 0 to below 1, a generator in each lane: xoshiro128+ (Blackman and Vigna 2021,
// doi:10.1145/3460772), begun by SplitMix64.
struct Random {
  uint32_t state[4][kLanes];

  INLINE explicit Random(uint64_t seed) {
    for (auto& word : state)
      for (uint32_t& lane : word) {
        uint64_t z = (seed += 0x9E3779B97F4A7C15);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
        lane = static_cast<uint32_t>((z ^ (z >> 31)) >> 32);
      }
    for (uint32_t& lane : state[0]) lane |= 1;  // a state of zeros would stay
  }

  INLINE void draw(float* out) {
    for (uint64_t lane = 0; lane < kLanes; ++lane) {
      uint32_t &a = state[0][lane], &b = state[1][lane], &c = state[2][lane], &d = state[3][lane];
      out[lane] = static_cast<float>(static_cast<int32_t>((a + d) >> 8)) * 0x1p-24F;
      const uint32_t shifted = b << 9;
      c ^= a;
      d ^= b;
      b ^= c;
      a ^= d;
      c ^= shifted;
      d = d << 11 | d >> 21;
    }
  }
};

// The level of a scaled magnitude, which is from 0 to about `levels`, with the sign of x.
INLINE int8_t level_of(float x, float scaled, float chance, int levels) {
  const auto lower = static_cast<int32_t>(scaled);
  int32_t level = lower + (chance < scaled - static_cast<float>(lower));
  level = level < levels ? level : levels;
  return static_cast<int8_t>((bits_of(x) & kSign) != 0 ? -level : level);
}

void qsgd(const float* x, uint64_t n, uint64_t group, int levels, uint64_t seed, float* norms, int8_t* out) {
  Random random(seed);
  const auto most = static_cast<float>(levels);
  for_groups(n, group, [&](uint64_t number, uint64_t begin, uint64_t size) {
    const float* from = x + begin;
    int8_t* to = out + begin;
    const double squares = sum_of(size, [&](uint64_t i) __attribute__((always_inline)) {
      return static_cast<double>(from[i]) * static_cast<double>(from[i]);
    });
    const double exact = __builtin_sqrt(squares);
    float norm = exact < static_cast<double>(kLargest) ? static_cast<float>(exact) : kLargest;
    // A norm that is rounded down could need a level more than there is.
    if (norm < kLargest && static_cast<double>(norm) * static_cast<double>(norm) < squares)
      norm = float_of(bits_of(norm) + 1);
    while (norm / most * most > kLargest) norm = float_of(bits_of(norm) - 1);  // the highest level is not infinite
    norms[number] = norm;
    if (norm == 0.0F) {
      for (uint64_t i = 0; i < size; ++i) to[i] = 0;
      return;
    }
    float chances[kLanes];
    const auto scaled = [&](uint64_t i) __attribute__((always_inline)) {
      const float part = float_of(bits_of(from[i]) & ~kSign) / norm;
      return (part < 1.0F ? part : 1.0F) * most;  // of groups whose norm was cut, elements are
    };
    uint64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      random.draw(chances);
      for (uint64_t lane = 0; lane < kLanes; ++lane)
        to[i + lane] = level_of(from[i + lane], scaled(i + lane), chances[lane], levels);
    }
    if (i < size) random.draw(chances);
    for (uint64_t lane = 0; i + lane < size; ++lane)
      to[i + lane] = level_of(from[i + lane], scaled(i + lane), chances[lane], levels);
  });
}

void apply_qsgd(const float* norms, const int8_t* in, uint64_t n, uint64_t group, int levels, Applied how, float* x) {
  with_how(how, [&](auto type) {
    for_groups(n, group, [&](uint64_t number, uint64_t begin, uint64_t size) {
      const float factor = norms[number] / static_cast<float>(levels);
      for (uint64_t i = begin; i < begin + size; ++i)
        apply<decltype(type)::kHow>(x[i], static_cast<float>(in[i]) * factor);
    });
  });
}

void one_bit(const float* x, uint64_t n, uint64_t group, float* means, uint8_t* signs) {
  for_groups(n, group, [&](uint64_t number, uint64_t begin, uint64_t size) {
    const float* from = x + begin;
    const double sum = sum_of(size, [&](uint64_t i) __attribute__((always_inline)) {
      return static_cast<double>(float_of(bits_of(from[i]) & ~kSign));
    });
    means[number] = static_cast<float>(sum / static_cast<double>(size));
    uint64_t i = 0;
    for (; i + 8 <= size; i += 8) {
      uint32_t byte = 0;
      for (uint64_t bit = 0; bit < 8; ++bit) byte |= (from[i + bit] < 0.0F ? 1U : 0U) << bit;
      signs[(begin + i) / 8] = static_cast<uint8_t>(byte);
    }
    if (i == size) return;
    uint32_t byte = 0;
    for (uint64_t bit = 0; i + bit < size; ++bit) byte |= (from[i + bit] < 0.0F ? 1U : 0U) << bit;
    signs[(begin + i) / 8] = static_cast<uint8_t>(byte);
  });
}

void apply_one_bit(const float* means, const uint8_t* signs, uint64_t n, uint64_t group, Applied how, float* x) {
  with_how(how, [&](auto type) {
    for_groups(n, group, [&](uint64_t number, uint64_t begin, uint64_t size) {
      const uint32_t mean = bits_of(means[number]);
      const auto value = [&](uint32_t byte, uint64_t bit)
                             __attribute__((always_inline)) { return float_of(mean ^ (byte >> bit << 31)); };
      uint64_t i = begin;
      for (; i + 8 <= begin + size; i += 8)
        for (uint64_t bit = 0; bit < 8; ++bit) apply<decltype(type)::kHow>(x[i + bit], value(signs[i / 8], bit));
      for (uint64_t bit = 0; i + bit < begin + size; ++bit)
        apply<decltype(type)::kHow>(x[i + bit], value(signs[i / 8], bit));
    });
  });
}

void bfloat16(const float* x, uint64_t n, uint16_t* out) {
  for (uint64_t i = 0; i < n; ++i) {
    const uint32_t bits = bits_of(x[i]), rounded = bits + 0x7FFF + ((bits >> 16) & 1);
    out[i] = static_cast<uint16_t>(((rounded & kInfinite) == kInfinite ? bits : rounded) >> 16);
  }
}

void apply_bfloat16(const uint16_t* in, uint64_t n, Applied how, float* x) {
  with_how(how, [&](auto type) {
    for (uint64_t i = 0; i < n; ++i) apply<decltype(type)::kHow>(x[i], float_of(uint32_t{in[i]} << 16));
  });
}

}  // namespace

Quantizers quantizers() { return {qsgd, apply_qsgd, one_bit, apply_one_bit, bfloat16, apply_bfloat16}; }

}  // namespace hocket::HOCKET_ISA
