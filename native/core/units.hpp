// The units in which processors share memory and processes map it.
#pragma once

#include <cstdint>

namespace hocket {

inline constexpr uint64_t kLineBytes = 64;  // a cache line
inline constexpr uint64_t kHugePageBytes = 2 << 20;
inline constexpr uint64_t kPageBytes = 4096;  // the smallest page size; the kernel rounds up if its pages are larger

constexpr uint64_t div_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }
constexpr uint64_t round_up(uint64_t value, uint64_t unit) { return div_up(value, unit) * unit; }

}  // namespace hocket
