// The seam between the core and a backend. A lane carries operations of one communicator over one library.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/operation.hpp"

namespace hocket {

enum class Progress : uint8_t { waiting, moved, done };
// How a wait finds the end of what a library carries:
//  - none: who ends it rings.
//  - blocking: a call returns when something may be over (Engine::set_pump); the library works on threads of its own.
//  - patient: by looking now and then; the library works on threads of its own, which need the processor.
//  - eager: by looking again and again, which is what drives the library.
enum class Polling : uint8_t { none, blocking, patient, eager };

// Of the lanes that carry something.
struct InFlight {
  Polling most = Polling::none;
  bool is_alike = true;
  bool has_in_flight = false;
  bool has_threads = false;  // all of them are carried by threads of libraries, which need the processor

  void add(Polling polling, bool by_threads) {
    has_threads = by_threads && (has_threads || !has_in_flight);
    is_alike = is_alike && (!has_in_flight || polling == most);
    most = has_in_flight ? std::max(most, polling) : polling;
    has_in_flight = true;
  }
  // Nothing else can end meanwhile, and nobody rings.
  bool is_to_block() const { return is_alike && most == Polling::blocking; }
};

// Contract. Every call is made under the engine's progress lock, and none may block or call back into the engine.
//  - note_issue() is called when an operation gets its place in the issue order, before it is posted.
//  - post() starts an operation; the arrays it names stay valid until test() said done, threw, or cancel() was called.
//    The core posts at most depth() operations that are not done yet, in issue order.
//  - test() drives a posted operation. Operation moves in memory between post() and test() are allowed; what must stay
//    is op.token.
//  - Both throw Failure when the operation failed; it is forgotten then, as if cancelled. PeerFailure, CommTimeout and
//    Aborted break the communicator, any other Failure is the operation's own. Other exceptions break it as well.
//  - missing() names the ranks that the operation waits for, for stall reports and timeouts.
//  - hint() adds to them what may be the cause, such as messages with other tags.
//  - health() looks at the peers' lives and the abort word; called while something waits, a few times a second.
//  - cancel() forgets a posted operation; true if no other member can have noticed it.
//  - abandon() tells the other members, as far as that can be done, that this member gives the communicator up.
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
  virtual void abandon(const Error&) noexcept {}
  // Whether post() followed by a few test() calls is all there is to it: worth trying before a Work is made.
  virtual bool is_short(const Operation&) const { return false; }
  // Why the library cannot carry the operation, nothing if it can; a function of the operation alone (rule R8).
  virtual std::optional<std::string> refuses(const Operation&) const { return std::nullopt; }
  // Whether it uses the arrays where they lie. Of memory of a device (op.device) a copy on the host is made for a lane
  // that does not. Also a function of the operation alone.
  virtual bool takes_memory(const Operation& op) const { return !op.device; }
  // Of messages: a rank of which one with this tag has come that no receive waits for.
  virtual std::optional<int> find_sender(int) { return std::nullopt; }
  // Of messages: those that have come and that no receive waits for, as text.
  virtual std::string unreceived() { return ""; }
  virtual Polling polling() const { return Polling::none; }
  // The library has threads of its own, which carry what is in flight.
  virtual bool has_threads() const { return false; }
  // The library may use the arrays of a cancelled operation as long as the process lives.
  virtual bool keeps_arrays() const { return false; }
};

}  // namespace hocket
