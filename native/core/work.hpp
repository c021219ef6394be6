// The handle of an operation in flight.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "core/error.hpp"
#include "core/event.hpp"

namespace hocket {

class Communicator;

// States: queued -> posted -> done | failed. Everything but `state` belongs to the progress lock until state is done or
// failed (stored with release, read with acquire), and is constant from then on.
struct Work {
  enum class State : uint8_t { queued, posted, done, failed };

  Operation op;
  std::shared_ptr<Communicator> communicator;  // keeps the lane alive as long as the handle
  std::atomic<State> state{State::queued};
  std::optional<Error> error;
  uint64_t event = 0;
  int64_t issued_ns = 0;
  double timeout_s = 0;
  std::atomic<int> waiters{0};  // threads in Engine::wait; while there are any, they watch the deadline
  bool stall_reported = false;
  std::function<void()> write_back;  // copies the result into a strided array; needs no Python
  std::shared_ptr<void> pins;        // the Python objects whose memory the operation uses

  bool finished() const { return state.load(std::memory_order_acquire) >= State::done; }
};

using WorkPtr = std::shared_ptr<Work>;

}  // namespace hocket
