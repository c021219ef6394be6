// A thread detects that others take its processor: threads that never wait run on the same processor.
#include "core/run_delay.hpp"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "core/clock.hpp"

using hocket::now_ns;
using hocket::RunDelay;

static void stay_here(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

int main() {
  const int cpu = sched_getcpu();
  stay_here(cpu);
  RunDelay& delay = RunDelay::mine();
  const int64_t begin = now_ns();
  if (delay.was_delayed(begin)) return std::puts("the first read must return false"), 1;
  std::atomic<bool> over{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i)
    others.emplace_back([&] {
      stay_here(cpu);
      while (!over.load(std::memory_order_relaxed)) {
      }
    });
  while (now_ns() - begin < 300'000'000) {
  }
  const int64_t read = now_ns();
  const bool was_delayed = delay.was_delayed(read);
  const bool was_delayed_again = delay.was_delayed(read + 1'000'000);  // not the clock: the others take this processor
  over.store(true);
  for (std::thread& other : others) other.join();
  if (!was_delayed) return std::puts("three threads that never wait were not detected"), 1;
  if (was_delayed_again) return std::puts("a second read came too early"), 1;
  std::puts("ok");
  return 0;
}
