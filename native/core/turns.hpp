// Where the ranks of a job are threads of one process that take turns (native/sim): a thread that waits hands its turn
// on, and time is what a clock of its own says.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/clock.hpp"
#include "core/error.hpp"

namespace hocket {

class Communicator;

class Turns {
 public:
  virtual ~Turns() = default;
  // Seconds since the begin.
  virtual double now_s() const = 0;
  // Back at `until_s`, or earlier if something of this rank is over. Without locks and without the GIL.
  virtual void hand_on(double until_s) = 0;
  // Why nobody goes on any more.
  virtual std::optional<Error> stopped() const = 0;

  // Of this rank: nobody else drives them.
  std::vector<std::shared_ptr<Communicator>> communicators;

  // Of this thread; null: it waits as threads do.
  static Turns*& mine() {
    thread_local Turns* turns = nullptr;
    return turns;
  }
};

// What a caller would take the time from.
inline int64_t caller_ns() {
  const Turns* turns = Turns::mine();
  return turns ? static_cast<int64_t>(turns->now_s() * 1e9) : now_ns();
}

}  // namespace hocket
