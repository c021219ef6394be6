// How a thread waits for what another rank is about to do.
#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>

#include "core/clock.hpp"
#include "core/keep_apart.hpp"
#include "core/lane.hpp"
#include "core/proc_file.hpp"
#include "core/run_delay.hpp"
#include "core/ticker.hpp"

namespace hocket {

// Spin, then yield, then sleep; the clock is read only every so many spins. Yielding is the fastest way to wait for a
// rank that shares our processor, and the worst one next to a foreign program that computes: it gets a whole time
// slice, and ranks that wait for each other hardly ever run at the same time. A delay of this thread or a long yield
// shows that such programs run; then waits sleep almost at once, for a while.
class Backoff {
 public:
  // Where nobody rings: yield for that long, then look again after a pause that is a small part of the time waited. A
  // library that moves data only while it is asked (MPI) must not be left alone as long as it may be moving some: a
  // link of 1 Gbit/s empties the buffer of a socket in less than a millisecond.
  static constexpr int64_t kYieldPollingNs = 50'000'000;
  static constexpr int64_t kPausePart = 64;
  static constexpr int64_t kShortestPauseNs = 50'000;
  static constexpr int64_t kLongestEagerPauseNs = 100'000;
  static constexpr int64_t kLongestPatientPauseNs = 1'000'000;

  static void pause_after(int64_t idle_ns, Polling polling) {
    const int64_t longest = polling == Polling::eager ? kLongestEagerPauseNs : kLongestPatientPauseNs;
    const timespec time{0, std::clamp(idle_ns / kPausePart, kShortestPauseNs, longest)};
    nanosleep(&time, nullptr);
  }

  // num_sharing: ranks of this host, where they are more than its processors; else 0.
  Backoff(int num_sharing, std::atomic<int64_t>& sleep_until_ns)
      : num_sharing_(num_sharing), sleep_until_ns_(sleep_until_ns) {
    reset();
  }
  void reset() {
    idle_since_ns_ = 0;
    spins_ = 0;
    rests_ = false;
    has_looked_ = false;
  }
  // Sleep at once until the next reset: who ends the wait is a thread that needs the processor.
  void rest() {
    rests_ = true;
    if (idle_since_ns_ == 0) idle_since_ns_ = now_ns();
  }
  int64_t idle_ns() const { return now_ns() - idle_since_ns_; }
  // Instead of a sleep, where the end of what is waited for has to be looked for.
  void pause(Polling polling) const {
    const int64_t now = now_ns();
    const int64_t idle = now - idle_since_ns_;
    if (polling == Polling::eager && idle < kYieldPollingNs && now >= sleep_until_ns_.load(std::memory_order_relaxed))
      sched_yield();
    else
      pause_after(idle, polling);
  }
  // After a sleep.
  void note_ring(int ringer_processor) const {
    const int64_t now = now_ns();
    if (!is_oversubscribed() && now < sleep_until_ns_.load(std::memory_order_relaxed))
      KeepApart::mine().note_ring(ringer_processor, now);
  }
  // look: once after each reset; the caller then checks who can end the wait.
  enum class Next { again, look, sleep };
  Next step() {
    if (rests_) return Next::sleep;
    if (!is_oversubscribed() && ++spins_ % 32 != 0) {
      cpu_pause();
      return Next::again;
    }
    const int64_t now = now_ns();
    if (idle_since_ns_ == 0) {
      idle_since_ns_ = now;
      return Next::look;
    }
    const int64_t idle = now - idle_since_ns_;
    const bool is_beside_others = now < sleep_until_ns_.load(std::memory_order_relaxed);
    if (!is_oversubscribed() && idle < (is_beside_others ? kSpinBesideOthersNs : kSpinNs)) return Next::again;
    if (!is_oversubscribed() && !has_looked_) {
      has_looked_ = true;
      if (RunDelay::mine().was_delayed(now)) {
        note_others(now);
        return Next::sleep;
      }
    }
    if (is_beside_others) return Next::sleep;
    if (idle < (is_oversubscribed() ? kYieldOversubscribedNs : kYieldNs)) {
      sched_yield();
      const int64_t back = now_ns();
      // Ranks that share processors make each other wait.
      if (back - now > kLongYieldNs && (!is_oversubscribed() || num_runnable() > num_sharing_)) note_others(back);
      return Next::again;
    }
    return Next::sleep;
  }

 private:
  static constexpr int64_t kSpinNs = 20'000;
  static constexpr int64_t kSpinBesideOthersNs = 5'000;
  static constexpr int64_t kYieldNs = 100'000;
  static constexpr int64_t kYieldOversubscribedNs = 2'000'000;
  static constexpr int64_t kLongYieldNs = 500'000;  // nobody who only waits keeps a processor for that long
  static constexpr int64_t kSleepPeriodNs = 100'000'000;
  bool is_oversubscribed() const { return num_sharing_ > 0; }
  // Other programs compete for the processors.
  void note_others(int64_t now) {
    sleep_until_ns_.store(now + kSleepPeriodNs, std::memory_order_relaxed);
    Ticker::instance().note_delay(now, num_sharing_);
  }

  int num_sharing_;
  std::atomic<int64_t>& sleep_until_ns_;
  int64_t idle_since_ns_ = 0;
  uint32_t spins_ = 0;
  bool rests_ = false;
  bool has_looked_ = false;  // at the run delay, in this wait
};

}  // namespace hocket
