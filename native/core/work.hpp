// The handle of an operation in flight.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/error.hpp"
#include "core/event.hpp"

namespace hocket {

class Communicator;

// Bytes from begin up to end; of a strided array, from its first to its last.
struct ByteRange {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  bool overlaps(const ByteRange& other) const { return begin < other.end && other.begin < end; }
};

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
  bool is_async = false;
  bool is_background = false;   // of the library itself: the program neither waits for it nor fails with it
  std::atomic<int> waiters{0};  // threads in Engine::wait; while there are any, they watch the deadline
  bool stall_reported = false;
  ByteRange reads;
  ByteRange writes;
  // Operations of the same communicator, issued earlier (rule R5), that have to be over before this one is posted.
  std::vector<std::shared_ptr<Work>> deps;
  std::function<void()> read_in;         // copies a strided array once more, after the dependencies
  std::function<void()> write_back;      // copies the result into a strided array; needs no Python
  std::shared_ptr<const Blocks> blocks;  // of op
  std::shared_ptr<void> pins;            // the Python objects whose memory the operation uses

  bool finished() const { return state.load(std::memory_order_acquire) >= State::done; }
  // Whether this operation and the later one touch the same bytes in a way whose order matters.
  bool conflicts_with(const Work& later) const {
    return writes.overlaps(later.reads) || writes.overlaps(later.writes) || reads.overlaps(later.writes);
  }
};

using WorkPtr = std::shared_ptr<Work>;

}  // namespace hocket
