// One communicator's issue order and its lanes' queues.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/event.hpp"
#include "core/lane.hpp"
#include "core/work.hpp"

namespace hocket {

enum class LaneIndex : uint8_t { collective, point_to_point };

// Every method is called under the engine's progress lock unless it says otherwise.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(int rank, int size, uint32_t id, std::string label);

  const int rank;
  const int size;
  const uint32_t id;
  const std::string label;  // for messages: "world", "split 2 of world"

  // The first lane carries collectives, the second point-to-point operations.
  void add_lane(std::unique_ptr<Lane> lane);
  // After the last operation: gives back what the lanes hold. What another thread is about to issue fails.
  void close();
  Error closed_error() const;
  Lane& lane(LaneIndex index) { return *queues_[static_cast<size_t>(index)].lane; }

  // Gives the operation its place in the issue order and queues it; posts it at once where the lane has room.
  void issue(const WorkPtr& work, LaneIndex index, uint8_t event_flags);

  // The shortcut of a blocking operation: no Work is made if it completes within a microsecond. Returns true when done;
  // otherwise, if `posted` is set, it is in flight and adopt() must follow; if not, nothing was issued yet.
  bool try_short(Operation& op, LaneIndex index, bool& posted, uint64_t& event);
  void adopt(const WorkPtr& work, LaneIndex index, uint64_t event);

  bool progress();
  bool idle() const;
  // Looks at the lanes' health; breaks the communicator if one is ill.
  void check_health();
  // A wait for `work` ran out of time.
  void give_up(Work& work, double waited_s);
  // Gives up operations that nobody waits for and whose time since issue is over; for the progress thread.
  void expire(int64_t now_ns);
  // Nothing more can be done with this communicator: pending operations fail, later ones raise.
  void fail(const Error& error);
  const std::optional<Error>& failure() const { return failure_; }
  // Who is waited for, as text; for stall reports.
  std::string waiting_text(const Work& work);
  std::vector<int> missing(const Work& work);

  EventRing& events() { return events_; }
  uint64_t collectives_issued() const { return collective_seq_; }

  // Set while a call is inside this communicator (decision 7); tested without the progress lock.
  std::atomic<bool> entered{false};
  std::atomic<bool> closed{false};

 private:
  struct LaneQueue {
    std::unique_ptr<Lane> lane;
    std::deque<WorkPtr> works;
    size_t num_posted = 0;  // the first so many works are posted
  };

  bool progress(LaneQueue& queue);
  void finish(Work& work);
  void finish(Work& work, Error error);
  uint64_t next_seq(const Operation& op);
  LaneQueue* queue_of(const Work& work, size_t* position);

  std::vector<LaneQueue> queues_;
  EventRing events_;
  uint64_t collective_seq_ = 0;
  std::vector<uint64_t> send_seq_;  // point-to-point is numbered per peer and direction (decision 3)
  std::vector<uint64_t> recv_seq_;
  std::optional<Error> failure_;
};

}  // namespace hocket
