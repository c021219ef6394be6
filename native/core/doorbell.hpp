// How a thread without work sleeps until another process publishes something for it.
//
// Every process has one doorbell: a 32-bit futex word in a page of its own that all peers map. The word is odd while a
// thread of the process sleeps or is about to sleep.
//  - The ringer stores its data, then reads the word. If the word is odd, the ringer adds one, which makes it even, and
//    wakes the sleepers.
//  - The sleeper makes the word odd, reads the data once more (the second look), and sleeps if the word is unchanged.
// The word only grows. So a ring between a thread's second look and its sleep counts even if another thread has made
// the word odd again meanwhile.
//
// Memory order: each side stores to one place and then loads from the other, so both sides need a full barrier between
// store and load; otherwise a ring can be missed. The sleeper alone pays for the barriers:
// membarrier(GLOBAL_EXPEDITED) makes every running thread of every registered process execute a full barrier. So either
// the ringer's data is visible to the sleeper's second look, or the ringer's load comes later and sees the odd word. A
// ring costs one load of a cache line that rarely changes. Without this system call, both sides use a locked
// instruction: on x86 any locked instruction is a full barrier; elsewhere the ringer applies it to the word itself, so
// that one of the two operations on the word comes first.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/units.hpp"

namespace hocket {

// The content of a doorbell's page.
struct DoorbellPage {
  std::atomic<uint32_t> word;
  alignas(kLineBytes) std::atomic<int32_t> ringer_processor;  // of the last ring from another process
};

class Doorbell {
 public:
  static Doorbell& mine();  // of this process; never destroyed: threads may ring and sleep until the process ends
  Doorbell(const Doorbell&) = delete;
  Doorbell& operator=(const Doorbell&) = delete;

  int fd() const { return fd_; }
  DoorbellPage& page() { return *page_; }
  // Whether a peer rang since prepare_sleep() returned `word`.
  bool is_rung(uint32_t word) const { return page_->word.load(std::memory_order_relaxed) != word; }
  int ringer_processor() const { return page_->ringer_processor.load(std::memory_order_relaxed); }
  bool has_membarrier() const { return has_membarrier_; }

  // Makes the word odd and returns it. The caller must check all its conditions once more before sleep().
  uint32_t prepare_sleep();
  // Sleeps until a ring since prepare_sleep() returned `word`, a signal, or the timeout. The caller must check its
  // conditions again in all three cases. Returns false after a signal.
  bool sleep(uint32_t word, int64_t timeout_ns);

 private:
  Doorbell();
  int fd_ = -1;
  DoorbellPage* page_ = nullptr;
  bool has_membarrier_ = false;
};

namespace detail {
// Set for good once a process without membarrier was found: ringers must then order store and load themselves.
inline std::atomic<bool> ringers_fence{false};
void ring_slow(DoorbellPage& page);
void ring_peer(DoorbellPage& page);
void fence_by_locked_instruction(DoorbellPage& page);
}  // namespace detail

// Call after the release store that publishes the data.
inline void ring(DoorbellPage& page) {
  if (detail::ringers_fence.load(std::memory_order_relaxed)) [[unlikely]]
    detail::fence_by_locked_instruction(page);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler must not move the load above the store
  if (page.word.load(std::memory_order_relaxed) & 1) [[unlikely]]
    detail::ring_peer(page);
}

}  // namespace hocket
