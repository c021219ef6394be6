// Facts about this process for all parts of the core.
#pragma once

#include <atomic>

#include "core/error.hpp"

namespace hocket {

// True in a child that was forked after hocket was loaded: its mappings and threads are the parent's. A flag set by
// pthread_atfork, because getpid() costs a system call (docs/decisions/forked-children-are-marked.md).
inline std::atomic<bool> g_forked_child{false};
void watch_forks();

inline void check_not_forked() {
  if (g_forked_child.load(std::memory_order_relaxed)) [[unlikely]]
    throw Failure(ErrorCode::invalid_state,
                  "hocket cannot be used in a child that was forked after hocket.init(); start processes with the "
                  "spawn method");
}

// Whether Ticker and KeepApart may run; false if HOCKET_COMPETE is "0".
bool may_compete();

}  // namespace hocket
