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

// What a call asks for: one backend, and to be executed by the operation's own program, or none where it has none.
struct Wish {
  std::optional<uint8_t> backend = std::nullopt;
  bool keeps_program = false;
};

// Every method is called under the engine's progress lock unless it says otherwise.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(int rank, int size, uint32_t id, std::string label);

  const int rank;
  const int size;
  const uint32_t id;
  const std::string label;  // for messages: "world", "split 2 of world"

  // The lanes of one library: collectives and point-to-point operations never share one (rule R7). Before the first
  // operation, and on all members in the same order.
  void add_backend(std::unique_ptr<Lane> collective, std::unique_ptr<Lane> point_to_point);
  size_t num_backends() const { return queues_.size() / 2; }
  const char* backend_name(size_t backend) const { return queues_[2 * backend].lane->backend(); }
  Lane& lane(const Operation& op) { return *queue_of(op).lane; }
  ChoiceTable& choices() { return choices_; }
  // Which backends choose() considers; all, unless set.
  void set_allowed(uint32_t mask) { allowed_ = mask; }
  bool allows(size_t backend) const { return allowed_ >> backend & 1; }
  std::optional<std::string> refuses(size_t backend, const Operation& op) const {
    if (op.program)
      if (std::optional<std::string> reason = op.program->refuses(op)) return reason;
    const Lane& lane = lane_of(backend, op);
    if (std::optional<std::string> reason = lane.refuses(op)) return reason;
    if (is_for_devices(backend, op) && !lane.takes_memory(op)) return "it takes arrays in memory of its device alone";
    return std::nullopt;
  }
  bool takes_memory(const Operation& op) const { return lane_of(op.backend, op).takes_memory(op); }
  // Called with every collective that is issued.
  void set_issue_log(std::function<void(const Operation&)> log) { issue_log_ = std::move(log); }
  // The best way to carry the operation; nothing if there is none.
  std::optional<Carrier> find_carrier(const Operation& op, const Wish& wish = {}) const;
  // The same; throws UnsupportedDtype if there is none.
  Carrier choose(const Operation& op, const Wish& wish = {}) const;

  // Schedules that operations may be executed by; they stay as long as the communicator. Numbers count from 1.
  uint16_t add_program(OpKind kind, std::string name, int num_blocks, int num_slots, int ports, int group_size,
                       std::vector<Program::Row> rows);
  const Program* program(uint16_t number) const { return number ? programs_.at(number - 1u).get() : nullptr; }
  std::vector<std::string> program_names() const;

  // After the last operation: gives back what the lanes hold. What another thread is about to issue fails.
  void close();
  Error closed_error() const;

  // Gives the operation its place in the issue order and queues it; posts it at once where the lane has room.
  void issue(const WorkPtr& work, uint8_t event_flags);

  // What an attempt to do an operation on the spot has left behind.
  struct FastPathResult {
    bool posted = false;  // it is in flight, or has failed, and adopt() must follow; if not, nothing was issued
    uint64_t event = 0;
    std::optional<Error> error;
  };
  // The shortcut of a blocking operation: no Work is made if it completes within a microsecond. True when done.
  bool try_short(Operation& op, FastPathResult& fast);
  void adopt(const WorkPtr& work, const FastPathResult& fast);

  bool progress();
  bool idle() const;
  // Nothing is in flight but what the program knows nothing of.
  bool idle_but_background() const;
  // Gives up what is in flight here, and tells nobody.
  void drop();
  // Of the operations in flight, the most eager.
  void add_in_flight(InFlight& all) const;
  // Looks at the lanes' health; breaks the communicator if one is ill.
  void check_health();
  // A wait for `work` ran out of time.
  void give_up(Work& work, double timeout_s);
  // Gives up operations that nobody waits for and whose time since issue is over; for the progress thread.
  void expire(int64_t now_ns);
  // Nothing more can be done with this communicator: pending operations fail, later ones raise.
  void fail(const Error& error);
  const std::optional<Error>& failure() const { return failure_; }
  // Of those that went through a queue, whose results are where they belong by then. Read without the lock, too.
  uint64_t num_finished() const { return num_finished_.load(std::memory_order_acquire); }
  // The first failure of an asynchronous operation, as long as the program was told of no failure of this communicator.
  std::optional<Error> unseen_failure() const { return is_failure_seen.load() ? std::nullopt : unseen_failure_; }
  // Whether a receive of a message of this rank to itself waits for one more.
  bool expects_from_self(int tag) const;
  // Over the first backend; see Lane.
  std::optional<int> find_sender(int tag) { return queues_[1].lane->find_sender(tag); }
  std::string unreceived() { return queues_[1].lane->unreceived(); }
  // Who is waited for, as text; for stall reports.
  std::string waiting_text(const Work& work);
  std::vector<int> missing(const Work& work);

  EventRing& events() { return events_; }
  const EventRing& events() const { return events_; }
  uint64_t collectives_issued() const { return collective_seq_; }

  // Set while a call is inside this communicator; tested without the progress lock
  // (docs/decisions/one-thread-at-a-time-in-a-communicator.md).
  std::atomic<bool> entered{false};
  std::atomic<bool> closed{false};
  // Set where the program is told of a failure; not under the progress lock.
  std::atomic<bool> is_failure_seen{false};

 private:
  struct LaneQueue {
    std::unique_ptr<Lane> lane;
    std::deque<WorkPtr> works;
    size_t num_posted = 0;  // the first so many works are posted
  };

  LaneQueue& queue_of(const Operation& op) { return queues_[2u * op.backend + (is_point_to_point(op.kind) ? 1 : 0)]; }
  // Whether it takes such operations on arrays of devices alone.
  bool is_for_devices(size_t backend, Operation op) const {
    op.device = nullptr;
    return !lane_of(backend, op).takes_memory(op);
  }
  const Lane& lane_of(size_t backend, const Operation& op) const {
    return *queues_[2 * backend + (is_point_to_point(op.kind) ? 1 : 0)].lane;
  }
  bool progress(LaneQueue& queue);
  void give_up_all(LaneQueue& queue, const Error& error);
  void find_dependencies(Work& work) const;
  void finish(Work& work);
  void finish(Work& work, Error error);
  Error fault_of(const Operation& op, const std::exception& exception) const;
  uint64_t next_seq(const Operation& op);
  LaneQueue* queue_of(const Work& work, size_t* position);

  std::vector<LaneQueue> queues_;  // of backend b: 2 b carries collectives, 2 b + 1 messages
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
