// The native part of a communicator as Python sees it.
#pragma once

#include <nanobind/nanobind.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bind/errors.hpp"
#include "bind/lanes.hpp"
#include "bind/virtual_ranks.hpp"
#include "core/communicator.hpp"
#include "hosts/remote_peers.hpp"
#include "shm/region.hpp"

namespace hocket {

struct PyHost {
  std::shared_ptr<Host> host;
};

struct PyControl {
  std::shared_ptr<Control> control;
};

class PyCommunicator {
 public:
  // members: in order of the new communicator's ranks; host ranks of a communicator of one host, job ranks of one that
  // spans hosts.
  // backends: names of all; "shm" is the first on one host, and none between hosts. The lanes of the others are added
  // before the first operation.
  PyCommunicator(const PyHost& host, std::vector<int> members, int rank, uint64_t key, std::string label,
                 std::vector<std::string> backends, double timeout_s, double open_timeout_s);
  // host_numbers: of the latter's members their host ranks, or -1 of those on other hosts.
  PyCommunicator(const PyControl& control, const PyHost& host, std::vector<int> members, std::vector<int> host_numbers,
                 int rank, uint64_t key, std::string label, std::vector<std::string> backends, double timeout_s,
                 double open_timeout_s);
  // members: job ranks, all of them virtual.
  PyCommunicator(const PyVirtualRanks& ranks, const std::vector<int>& members, int rank, uint64_t key,
                 std::string label, std::vector<std::string> backends, double timeout_s, double open_timeout_s);
  ~PyCommunicator();
  PyCommunicator(const PyCommunicator&) = delete;
  PyCommunicator& operator=(const PyCommunicator&) = delete;

  Communicator& core() { return *core_; }
  const std::shared_ptr<Communicator>& shared_core() const { return core_; }

  // `schedules`: messages by which schedules are executed, in a match space of their own.
  void add_backend(PyLane& collective, PyLane& point_to_point, PyLane& schedules);
  // Which backends operations may use; shm carries what the communicator needs for itself in any case.
  void set_allowed(const std::vector<std::string>& names);
  // The best way to carry a call, over the backend that it names if it does.
  Carrier choose(PyObject* backend, const Operation& op, bool keeps_program) const;
  bool takes_memory(const Operation& op) const;
  // Why a backend that a call may name is not there; for messages.
  void set_left_out(std::map<std::string, std::string> reasons) { left_out_ = std::move(reasons); }

  struct Leftovers {
    std::optional<Error> unseen;  // the first failure that the program was not told of
    std::string unreceived;       // messages, as text
  };
  // Waits until what is in flight is over (at most so long), then leaves. Idempotent. Nothing is left over where
  // operations get no time to end.
  Leftovers close(double drain_timeout_s);

  // Gives the communicator up: what is in flight fails here and on the other members, who hear the reason.
  void abort(const std::string& reason);
  // Waits until nothing is in flight; false if that takes longer. Throws what has broken the communicator.
  bool drain(double timeout_s);

  // Calls the method _take_turn of the Python object between two collectives: after so many more, where all members
  // that ask alike are at the same place of the issue order. Once; 0: never. Returns the number of the collective
  // before it.
  uint64_t set_turn(uint64_t num_collectives) {
    return turn_at_ = num_collectives ? core_->collectives_issued() + num_collectives : UINT64_MAX;
  }
  // Before a collective is entered.
  void take_turn_if_due(PyObject* self) {
    if (core_->collectives_issued() >= turn_at_ && mode != Mode::prepare && !core_->closed) [[unlikely]]
      take_turn(self);
  }

  const double timeout_s;
  bool check_grad = true;
  // What operations do: run; be kept for later (prepared.hpp); or be issued and waited for together.
  enum class Mode : uint8_t { run, prepare, coalesce };
  Mode mode = Mode::run;
  bool carries_object = false;  // what is issued is part of an operation on objects
  nb::list coalesced;           // Work objects
  nb::object on_failure;        // called with (communicator, exception) when an operation failed

 private:
  void take_turn(PyObject* self);
  void open_host(const PyHost& host, const std::vector<int>& host_numbers, int rank, uint64_t key,
                 double open_timeout_s);

  std::shared_ptr<Communicator> core_;
  uint64_t turn_at_ = UINT64_MAX;
  // Of a communicator of one host, or of those members of one that spans hosts that are on this host, if there are
  // several. What the last one to hold it lets go of tells the others that we left, so these are null once closed.
  std::shared_ptr<Region> region_;
  std::shared_ptr<RemotePeers> remote_peers_;  // only of one that spans hosts
  std::shared_ptr<Lane> host_messages_;        // likewise: messages of schedules between the ranks of this host
  std::vector<int> numbers_;                   // of the members in the region, or -1
  const std::vector<std::string> names_;
  std::map<std::string, std::string> left_out_;
};

struct PyWork {
  WorkPtr work;
  nb::object communicator;  // for on_failure
};

void bind_communicator(nb::module_& module);
void bind_prepared(nb::module_& module);
void add_program_methods(nb::class_<PyCommunicator>& communicator);
void bind_control(nb::module_& module);
void bind_work(nb::module_& module);

// For threads other than that of a virtual rank, which alone has a clock, and for those where it is another's.
Failure not_its_thread(const Communicator& core);

// Sets the exception of a failed operation and tells communicator.on_failure.
void raise_operation_error(nb::handle communicator, const Error& error);

// Waits without the GIL; raises what the operation raised. PythonError if a signal handler did.
void wait_for_work(nb::handle communicator, const WorkPtr& work, double timeout_s);

}  // namespace hocket
