// One communicator's issue order and its lanes' queues.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/choice.hpp"
#include "core/event.hpp"
#include "core/lane.hpp"
#include "core/work.hpp"

namespace hocket {

// What a call requests: a certain backend, and whether the operation keeps its own program (or keeps having none).
struct CarrierRequest {
  std::optional<uint8_t> backend = std::nullopt;
  bool keeps_program = false;
};

// Call every method under the engine's progress lock unless its comment says otherwise.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(int rank, int size, uint32_t id, std::string label);

  const int rank;
  const int size;
  const uint32_t id;
  const std::string label;  // for messages: "world", "split 2 of world"

  // Adds the lanes of one library: collectives and point-to-point operations never share a lane (rule R7). Call before
  // the first operation, in the same order on all members.
  void add_backend(std::unique_ptr<Lane> collective, std::unique_ptr<Lane> point_to_point);
  size_t num_backends() const { return queues_.size() / 2; }
  const char* backend_name(size_t backend) const { return queues_[2 * backend].lane->backend(); }
  Lane& lane(const Operation& op) { return *queue_of(op).lane; }
  ChoiceTable& choices() { return choices_; }
  // Bit mask of the backends that choose() considers; all by default.
  void set_allowed(uint32_t mask) { allowed_ = mask; }
  bool allows(size_t backend) const { return allowed_ >> backend & 1; }
  std::optional<std::string> refuses(size_t backend, const Operation& op) const {
    if (op.program)
      if (std::optional<std::string> reason = op.program->refuses(op)) return reason;
    const Lane& lane = lane_of(backend, op);
    if (std::optional<std::string> reason = lane.refuses(op)) return reason;
    if (is_for_devices(backend, op) && !lane.takes_memory(op)) return "it takes only arrays in memory of its device";
    return std::nullopt;
  }
  bool takes_memory(const Operation& op) const { return lane_of(op.backend, op).takes_memory(op); }
  // `log` is called with every collective that is issued.
  void set_issue_log(std::function<void(const Operation&)> log) { issue_log_ = std::move(log); }
  // The best carrier of the operation; nothing if no backend can carry it.
  std::optional<Carrier> find_carrier(const Operation& op, const CarrierRequest& request = {}) const;
  // The same; throws UnsupportedDtype if no backend can carry it.
  Carrier choose(const Operation& op, const CarrierRequest& request = {}) const;

  // Adds a schedule that can execute operations; it lives as long as the communicator. Numbers start at 1.
  uint16_t add_program(OpKind kind, std::string name, int num_blocks, int num_slots, int ports, int group_size,
                       std::vector<Program::Row> rows);
  const Program* program(uint16_t number) const { return number ? programs_.at(number - 1u).get() : nullptr; }
  std::vector<std::string> program_names() const;

  // Call after the last operation: releases the lanes' resources. An operation that another thread issues later fails.
  void close();
  Error closed_error() const;

  // Gives the operation its place in the issue order and queues it; posts it at once if the lane has room.
  void issue(const WorkPtr& work, uint8_t event_flags);

  // State of an operation after try_short().
  struct FastPathResult {
    bool posted = false;  // true: in flight or failed, and adopt() must follow; false: nothing was issued
    uint64_t event = 0;
    std::optional<Error> error;
  };
  // Fast path of a blocking operation: makes no Work if the operation completes within a microsecond. True when done.
  bool try_short(Operation& op, FastPathResult& fast);
  void adopt(const WorkPtr& work, const FastPathResult& fast);

  bool progress();
  bool idle() const;
  // True if nothing is in flight but background operations (Work::is_background).
  bool idle_but_background() const;
  // Cancels the operations in flight on this rank, without notice to the other members.
  void drop();
  // Adds the posted operations' kinds of polling to `all`.
  void add_in_flight(InFlight& all) const;
  // Checks the lanes' health; breaks the communicator if a lane reports an error.
  void check_health();
  // The wait for `work` timed out: fails the operation and, unless it is independent and unnoticed, the communicator.
  void time_out(Work& work, double timeout_s);
  // Times out operations that no thread waits for; for the progress thread.
  void expire(int64_t now_ns);
  // Breaks this communicator for good: pending operations fail, later ones raise.
  void fail(const Error& error);
  const std::optional<Error>& failure() const { return failure_; }
  // Operations that went through a queue and completed; their results are in place. May be read without the lock.
  uint64_t num_finished() const { return num_finished_.load(std::memory_order_acquire); }
  // The first failure of an asynchronous operation, until the program has seen a failure of this communicator.
  std::optional<Error> unseen_failure() const { return is_failure_seen.load() ? std::nullopt : unseen_failure_; }
  // Whether this rank has more pending receives than sends to itself with this tag.
  bool expects_from_self(int tag) const;
  // These two use the first backend; see Lane.
  std::optional<int> find_sender(int tag) { return queues_[1].lane->find_sender(tag); }
  std::string unreceived() { return queues_[1].lane->unreceived(); }
  // Text of a stall report: the operation, and the ranks that it waits for.
  std::string waiting_text(const Work& work);
  std::vector<int> missing(const Work& work);

  EventRing& events() { return events_; }
  const EventRing& events() const { return events_; }
  uint64_t collectives_issued() const { return collective_seq_; }

  // True while a call is inside this communicator; tested without the progress lock
  // (docs/decisions/one-thread-at-a-time-in-a-communicator.md).
  std::atomic<bool> entered{false};
  std::atomic<bool> closed{false};
  // Set when the program gets a failure as an exception; not under the progress lock.
  std::atomic<bool> is_failure_seen{false};

 private:
  struct LaneQueue {
    std::unique_ptr<Lane> lane;
    std::deque<WorkPtr> works;
    size_t num_posted = 0;  // works[0, num_posted) are posted
  };

  LaneQueue& queue_of(const Operation& op) { return queues_[2u * op.backend + (is_point_to_point(op.kind) ? 1 : 0)]; }
  // Whether the backend takes such operations only on arrays of devices.
  bool is_for_devices(size_t backend, Operation op) const {
    op.device = nullptr;
    return !lane_of(backend, op).takes_memory(op);
  }
  const Lane& lane_of(size_t backend, const Operation& op) const {
    return *queues_[2 * backend + (is_point_to_point(op.kind) ? 1 : 0)].lane;
  }
  bool progress(LaneQueue& queue);
  void cancel_all(LaneQueue& queue, const Error& error);
  void find_dependencies(Work& work) const;
  void finish(Work& work);
  void finish(Work& work, Error error);
  Error fault_of(const Operation& op, const std::exception& exception) const;
  uint64_t next_seq(const Operation& op);
  LaneQueue* queue_of(const Work& work, size_t* position);

  std::vector<LaneQueue> queues_;  // backend b: queue 2 b carries collectives, queue 2 b + 1 messages
  ChoiceTable choices_;
  std::vector<std::unique_ptr<const Program>> programs_;
  uint32_t allowed_ = ~0u;
  std::function<void(const Operation&)> issue_log_;
  EventRing events_;
  uint64_t collective_seq_ = 0;
  // Messages are numbered per peer and direction (docs/decisions/messages-do-not-advance-the-collective-sequence.md).
  std::vector<uint64_t> send_seq_;
  std::vector<uint64_t> recv_seq_;
  std::optional<Error> unseen_failure_;
  std::optional<Error> failure_;
  std::atomic<uint64_t> num_finished_{0};
};

}  // namespace hocket
