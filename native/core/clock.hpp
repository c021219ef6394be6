// Two clocks: raw ticks for events (cheap enough to stay on) and monotonic nanoseconds for deadlines.
#pragma once

#include <time.h>

#include <cstdint>
#include <cstdio>
#include <string>
#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace hocket {

inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

// A timeout in nanoseconds; an infinite one becomes 3e9 s, which can still be added to a time.
inline int64_t timeout_ns(double seconds) {
  constexpr double kForeverS = 3e9;  // a hundred years
  return static_cast<int64_t>((seconds < kForeverS ? seconds : kForeverS) * 1e9);
}

// "2.5 s".
inline std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, seconds < 999.5 ? "%.3g s" : "%.0f s", seconds);
  return text;
}

#if defined(__x86_64__)
// The time-stamp counter is a clock only if its rate is the same in all power states (CPUID 0x80000007, EDX bit 8).
inline bool has_invariant_tsc() {
  unsigned a, b, c, d;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & (1u << 8));
}
inline const bool kTscIsClock = has_invariant_tsc();
inline uint64_t ticks() { return kTscIsClock ? __rdtsc() : static_cast<uint64_t>(now_ns()); }
inline void cpu_pause() { _mm_pause(); }
#else
inline uint64_t ticks() { return static_cast<uint64_t>(now_ns()); }
#if defined(__aarch64__)
inline void cpu_pause() { asm volatile("yield"); }
#else
inline void cpu_pause() {}
#endif
#endif

// A pair of readings of both clocks; two anchors give the rate of the ticks.
struct ClockAnchor {
  uint64_t ticks = 0;
  int64_t ns = 0;
  static ClockAnchor take() { return {hocket::ticks(), now_ns()}; }
};

}  // namespace hocket
