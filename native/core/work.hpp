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

// Bytes in [begin, end); for a strided array, from its first to its last byte.
struct ByteRange {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  bool overlaps(const ByteRange& other) const { return begin < other.end && other.begin < end; }
};

// States: queued -> posted -> done | failed. The progress lock protects every field except `state` until the state is
// done or failed (stored with release, read with acquire); from then on the fields are constant.
struct Work {
  enum class State : uint8_t { queued, posted, done, failed };

  Operation op;
  std::shared_ptr<Communicator> communicator;  // keeps the lane alive as long as the Work
  std::atomic<State> state{State::queued};
  std::optional<Error> error;
  uint64_t event = 0;
  int64_t issued_ns = 0;
  double timeout_s = 0;
  bool is_async = false;
  bool is_background = false;   // issued by hocket itself: the program neither waits for it nor fails with it
  std::atomic<int> waiters{0};  // threads in Engine::wait; if not zero, they check the deadline
  bool stall_reported = false;
  ByteRange reads;
  ByteRange writes;
  // Operations of the same communicator, issued earlier (rule R5), that must complete before this one is posted.
  std::vector<std::shared_ptr<Work>> deps;
  std::function<void()> read_in;         // copies a strided array once more, after the dependencies
  std::function<void()> write_back;      // copies the result into a strided array; needs no Python
  std::shared_ptr<const Blocks> blocks;  // owns op.blocks
  std::shared_ptr<void> pins;            // the Python objects whose memory the operation uses

  bool finished() const { return state.load(std::memory_order_acquire) >= State::done; }
  // Whether this operation and the later one access the same bytes and at least one of them writes these.
  bool conflicts_with(const Work& later) const {
    return writes.overlaps(later.reads) || writes.overlaps(later.writes) || reads.overlaps(later.writes);
  }
};

using WorkPtr = std::shared_ptr<Work>;

}  // namespace hocket
