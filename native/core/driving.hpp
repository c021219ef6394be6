// Threads that drive all lanes because they wait.
#pragma once

#include <mutex>

#include "core/engine.hpp"

namespace hocket {

// Marks a thread that drives all lanes because it waits; the progress thread naps meanwhile. When the last such thread
// ends, operations still in flight and libraries that must be driven are handed back to the progress thread.
struct Engine::Driving {
  explicit Driving(Engine& engine) : engine(engine) { begin(); }
  ~Driving() { end(); }
  void begin() { engine.num_driving_.fetch_add(1, std::memory_order_seq_cst); }
  void end() {
    if (engine.num_driving_.fetch_sub(1, std::memory_order_seq_cst) > 1 || !engine.has_thread()) return;
    engine.lock_.lock();
    const bool is_idle = engine.is_idle();
    engine.lock_.unlock();
    if (!is_idle)
      engine.wake_own_process();
    else if (engine.attention_.load(std::memory_order_relaxed) > 0 ||
             engine.next_look_ns_.load(std::memory_order_relaxed) != DrivenLibrary::kNever)
      engine.end_nap();
  }
  Engine& engine;
};

}  // namespace hocket
