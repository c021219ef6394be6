// How a thread waits for an event that another rank is about to cause.
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

// Spins, then yields, then sleeps; reads the clock only once in 32 spins. Yielding is the fastest way to wait for a
// rank on the same processor, and the slowest way beside a foreign program that computes: the program gets a whole time
// slice, and ranks that wait for each other hardly ever run at the same time. If this thread was delayed, or a yield
// took long, such programs are running; then waits sleep almost at once for the next kSleepPeriodNs.
class Backoff {
 public:
  // For waits that no doorbell ends: yield for kYieldPollingNs, then poll with pauses that are a small part of the time
  // waited. A library that moves data only while it is called (MPI) needs frequent calls as long as it may be moving
  // data: a link of 1 Gbit/s empties the buffer of a socket in less than a millisecond.
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

  // num_sharing: number of ranks on this host if it exceeds the number of processors, else 0.
  Backoff(int num_sharing, std::atomic<int64_t>& sleep_until_ns)
      : num_sharing_(num_sharing), sleep_until_ns_(sleep_until_ns) {
    reset();
  }
  void reset() {
    idle_since_ns_ = 0;
    spins_ = 0;
    sleeps_at_once_ = false;
    has_read_delay_ = false;
  }
  // Sleep at once until the next reset: the thread that ends the wait needs the processor.
  void sleep_at_once() {
    sleeps_at_once_ = true;
    if (idle_since_ns_ == 0) idle_since_ns_ = now_ns();
  }
  int64_t idle_ns() const { return now_ns() - idle_since_ns_; }
  // Replaces a sleep if the end of the wait has to be polled for.
  void pause(Polling polling) const {
    const int64_t now = now_ns();
    const int64_t idle = now - idle_since_ns_;
    if (polling == Polling::eager && idle < kYieldPollingNs && now >= sleep_until_ns_.load(std::memory_order_relaxed))
      sched_yield();
    else
      pause_after(idle, polling);
  }
  // Call after a sleep that a ring ended.
  void note_ring(int ringer_processor) const {
    const int64_t now = now_ns();
    if (!is_oversubscribed() && now < sleep_until_ns_.load(std::memory_order_relaxed))
      KeepApart::mine().note_ring(ringer_processor, now);
  }
  // check: returned once after each reset; the caller then checks which threads can end the wait.
  enum class Next { again, check, sleep };
  Next step() {
    if (sleeps_at_once_) return Next::sleep;
    if (!is_oversubscribed() && ++spins_ % 32 != 0) {
      cpu_pause();
      return Next::again;
    }
    const int64_t now = now_ns();
    if (idle_since_ns_ == 0) {
      idle_since_ns_ = now;
      return Next::check;
    }
    const int64_t idle = now - idle_since_ns_;
    const bool is_beside_others = now < sleep_until_ns_.load(std::memory_order_relaxed);
    if (!is_oversubscribed() && idle < (is_beside_others ? kSpinBesideOthersNs : kSpinNs)) return Next::again;
    if (!is_oversubscribed() && !has_read_delay_) {
      has_read_delay_ = true;
      if (RunDelay::mine().was_delayed(now)) {
        note_others(now);
        return Next::sleep;
      }
    }
    if (is_beside_others) return Next::sleep;
    if (idle < (is_oversubscribed() ? kYieldOversubscribedNs : kYieldNs)) {
      sched_yield();
      const int64_t back = now_ns();
      // Ranks that share processors delay each other, so here a long yield alone proves nothing.
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
  static constexpr int64_t kLongYieldNs = 500'000;  // a thread that only waits never keeps a processor for that long
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
  bool sleeps_at_once_ = false;
  bool has_read_delay_ = false;  // whether the run delay was read in this wait
};

}  // namespace hocket
