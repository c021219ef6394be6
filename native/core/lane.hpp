// The interface between the core and a backend. A lane carries operations of one communicator over one library.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/operation.hpp"

namespace hocket {

enum class Progress : uint8_t { waiting, moved, done };
// How a wait detects that a library has completed an operation:
//  - none: the thread or process that completes it rings the doorbell.
//  - blocking: a call returns when an operation may be complete (Engine::set_pump); the library has threads of its own.
//  - patient: polls now and then; the library has threads of its own, which need the processor.
//  - eager: polls frequently, because only these calls drive the library.
enum class Polling : uint8_t { none, blocking, patient, eager };

// Summary of the lanes with operations in flight.
struct InFlight {
  Polling most = Polling::none;
  bool is_alike = true;
  bool has_in_flight = false;
  bool has_threads = false;  // threads of libraries carry all of these operations, and need the processor

  void add(Polling polling, bool by_threads) {
    has_threads = by_threads && (has_threads || !has_in_flight);
    is_alike = is_alike && (!has_in_flight || polling == most);
    most = has_in_flight ? std::max(most, polling) : polling;
    has_in_flight = true;
  }
  // True if a blocking call may wait: it returns at any completion, and no other lane needs polling or rings.
  bool is_to_block() const { return is_alike && most == Polling::blocking; }
};

// Contract. The core makes every call under the engine's progress lock; no call may block or call back into the engine.
//  - note_issue() is called when an operation gets its place in the issue order, before it is posted.
//  - post() starts an operation. Its arrays stay valid until test() returns done, post() or test() throws, or cancel()
//    is called. The core posts at most depth() operations that are not done yet, in issue order.
//  - test() drives a posted operation. The Operation may move in memory between post() and test(); op.token stays.
//  - Both throw Failure if the operation failed; the lane then forgets it, as after cancel(). PeerFailure, CommTimeout
//    and Aborted break the communicator; any other Failure concerns only the operation. Other exceptions break the
//    communicator too.
//  - missing() returns the ranks that the operation waits for, for stall reports and timeouts.
//  - hint() adds a possible cause to the report, such as messages with other tags.
//  - health() checks for dead peers and reads the abort word; called a few times a second while a thread waits.
//  - cancel() forgets a posted operation; true if no other member can have noticed it.
//  - record_as() is called once before the first operation, if the recorder gets the communicator's operations: `comm`
//    is the id of its definition there.
//  - abandon() notifies the other members, as far as possible, that this member can use the communicator no more.
class Lane {
 public:
  virtual ~Lane() = default;
  virtual const char* backend() const = 0;
  virtual size_t depth() const { return 1; }
  virtual void note_issue(Operation&) {}
  virtual Progress post(Operation& op) = 0;
  virtual Progress test(Operation& op) = 0;
  virtual std::vector<int> missing(const Operation& op) const = 0;
  virtual std::string hint(const Operation&) { return ""; }
  virtual bool cancel(Operation& op) noexcept = 0;
  virtual std::optional<Error> health() { return std::nullopt; }
  virtual void record_as(uint32_t) {}
  virtual void abandon(const Error&) noexcept {}
  // Whether post() and a few test() calls usually complete the operation: then try them before a Work is made.
  virtual bool is_short(const Operation&) const { return false; }
  // Why the library cannot carry the operation; nothing if it can. A function of the operation alone (rule R8).
  virtual std::optional<std::string> refuses(const Operation&) const { return std::nullopt; }
  // Whether the lane can use the arrays in place. If not, the core copies arrays in device memory (op.device) to the
  // host for it. Also a function of the operation alone.
  virtual bool takes_memory(const Operation& op) const { return !op.device; }
  // For messages: a rank from which an unexpected message (no receive is posted) with this tag has arrived.
  virtual std::optional<int> find_sender(int) { return std::nullopt; }
  // For messages: the unexpected messages that have arrived, as text.
  virtual std::string unreceived() { return ""; }
  virtual Polling polling() const { return Polling::none; }
  // Whether threads of the library carry the operations in flight.
  virtual bool has_threads() const { return false; }
  // Whether the library may use the arrays of a cancelled operation until the process ends.
  virtual bool keeps_arrays() const { return false; }
};

}  // namespace hocket
