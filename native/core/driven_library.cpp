#include "core/driven_library.hpp"

#include "core/clock.hpp"
#include "core/engine.hpp"

namespace hocket {

void DrivenLibrary::note_use() {
  const int64_t now = now_ns();
  // Store before note_library_due(): the engine reads it after that.
  used_ns_.store(now, std::memory_order_release);
  Engine::instance().note_library_due(now + kShortestPauseNs);
}

}  // namespace hocket
