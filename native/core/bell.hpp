// How a thread that ran out of things to do sleeps until another process publishes something for it.
//
// Every process has one bell: a 32-bit futex word in a page of its own that all peers map, odd while somebody sleeps or
// is about to. A ringer stores its data, then reads the word, and if it is odd makes it even by adding one; a sleeper
// makes it odd, reads the data once more, then sleeps if the word is still what it made it. The word only grows: a ring
// between a thread's second look and its sleep counts even if another thread has made the word odd again meanwhile.
//
// Each side stores one place and loads the other, so one full barrier is needed on both sides or the ring can be
// missed. The sleeper alone pays for it: membarrier(GLOBAL_EXPEDITED) makes every running thread of every registered
// process pass a full barrier, so either the ringer's data is visible to the sleeper's second look, or the ringer's
// load comes later and sees the odd word. Ringing costs one load of a line that hardly ever changes. Where the system
// call is missing both sides use a locked instruction: on x86 any one is a full barrier, elsewhere the ringer's goes to
// the word itself, so that one of the two comes first.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/units.hpp"

namespace hocket {

// The content of a bell's page.
struct BellPage {
  std::atomic<uint32_t> word;
  alignas(kLineBytes) std::atomic<int32_t> ringer_processor;  // of the last ring from another process
};

class Bell {
 public:
  static Bell& mine();  // never destroyed: threads may ring and sleep until the process is gone
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  int fd() const { return fd_; }
  BellPage& page() { return *page_; }
  // Whether it was rung since prepare_sleep() returned `word`.
  bool is_rung(uint32_t word) const { return page_->word.load(std::memory_order_relaxed) != word; }
  int ringer_processor() const { return page_->ringer_processor.load(std::memory_order_relaxed); }
  bool has_membarrier() const { return has_membarrier_; }

  // The word is odd from now on, and is returned; look at everything once more before sleep().
  uint32_t prepare_sleep();
  // Until rung since prepare_sleep() returned `word`, a signal, or the timeout. The caller looks again in any case.
  // False if it was a signal.
  bool sleep(uint32_t word, int64_t timeout_ns);

 private:
  Bell();
  int fd_ = -1;
  BellPage* page_ = nullptr;
  bool has_membarrier_ = false;
};

namespace detail {
// Set once a peer without membarrier was met (and then for good): ringers must then order store and load themselves.
inline std::atomic<bool> ringers_fence{false};
void ring_slow(BellPage& page);
void ring_peer(BellPage& page);
void fence_by_locked_instruction(BellPage& page);
}  // namespace detail

// Call after the release store of what was published.
inline void ring(BellPage& page) {
  if (detail::ringers_fence.load(std::memory_order_relaxed)) [[unlikely]]
    detail::fence_by_locked_instruction(page);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler must not move the load above the store
  if (page.word.load(std::memory_order_relaxed) & 1) [[unlikely]]
    detail::ring_peer(page);
}

}  // namespace hocket
