// Facts about this process that any part may ask for.
#pragma once

#include <atomic>

namespace hocket {

// True in a child that was forked after hocket was loaded: its mappings and threads are the parent's. A flag set by
// pthread_atfork, because getpid() costs a system call (decision 22).
inline std::atomic<bool> g_forked_child{false};
void watch_forks();

}  // namespace hocket
