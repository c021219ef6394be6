// The order of stores that other processes read without a lock.
#pragma once

#include <atomic>

namespace hocket {

// Stores after this are seen only by readers that also see the stores before it. ThreadSanitizer does not support
// fences; it sees only the writers, which need none.
inline void keep_store_order() {
#if !defined(__SANITIZE_THREAD__)
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

}  // namespace hocket
