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
  // members: in the order of the new communicator's ranks; as ranks of the host if the communicator has one host, else
  // as ranks of the job.
  // backends: names of all backends. On one host "shm" is the first; between hosts "shm" is absent. The lanes of the
  // others are added before the first operation.
  PyCommunicator(const PyHost& host, std::vector<int> members, int rank, uint64_t key, std::string label,
                 std::vector<std::string> backends, double timeout_s, double open_timeout_s);
  // host_numbers: for each member, its rank on this host, or -1 if it is on another host.
  PyCommunicator(const PyControl& control, const PyHost& host, std::vector<int> members, std::vector<int> host_numbers,
                 int rank, uint64_t key, std::string label, std::vector<std::string> backends, double timeout_s,
                 double open_timeout_s);
  // members: ranks of the job; all are virtual.
  PyCommunicator(const PyVirtualRanks& ranks, const std::vector<int>& members, int rank, uint64_t key,
                 std::string label, std::vector<std::string> backends, double timeout_s, double open_timeout_s);
  ~PyCommunicator();
  PyCommunicator(const PyCommunicator&) = delete;
  PyCommunicator& operator=(const PyCommunicator&) = delete;

  Communicator& core() { return *core_; }
  const std::shared_ptr<Communicator>& shared_core() const { return core_; }

  // `schedules`: the messages of schedules, in their own match space.
  void add_backend(PyLane& collective, PyLane& point_to_point, PyLane& schedules);
  // Sets the backends that operations may use; shm always carries the communicator's internal operations.
  void set_allowed(const std::vector<std::string>& names);
  // Returns the best way to carry a call, over the named backend if the call names one.
  Carrier choose(PyObject* backend, const Operation& op, bool keeps_program) const;
  bool takes_memory(const Operation& op) const;
  // Sets the reasons why backends are not available, for messages.
  void set_left_out(std::map<std::string, std::string> reasons) { left_out_ = std::move(reasons); }

  struct Leftovers {
    std::optional<Error> unseen;  // the first failure that the program has not seen
    std::string unreceived;       // messages, as text
  };
  // Waits at most this long for operations in flight, then leaves. Idempotent. With a time of 0 the result is empty.
  Leftovers close(double drain_timeout_s);

  // Breaks the communicator: operations in flight fail with the reason, on this rank and on the other members.
  void abort(const std::string& reason);
  // Waits until no operation is in flight; false on timeout. Throws the error that has broken the communicator.
  bool drain(double timeout_s);

  // Calls the Python method _take_turn once, after this many more collectives; 0: never. All members that pass the same
  // number make the call at the same place of the issue order. Returns the number of the collective before the call.
  uint64_t set_turn(uint64_t num_collectives) {
    return turn_at_ = num_collectives ? core_->collectives_issued() + num_collectives : UINT64_MAX;
  }
  // Called before a collective is entered.
  void take_turn_if_due(PyObject* self) {
    if (core_->collectives_issued() >= turn_at_ && mode != Mode::prepare && !core_->closed) [[unlikely]]
      take_turn(self);
  }

  const double timeout_s;
  bool check_grad = true;
  // What a method does with its operation: run it, keep it for later (prepared.hpp), or issue it and wait with others.
  enum class Mode : uint8_t { run, prepare, coalesce };
  Mode mode = Mode::run;
  bool carries_object = false;  // issued operations belong to an operation on objects
  nb::list coalesced;           // Work objects
  nb::object on_failure;        // called with (communicator, exception) when an operation has failed

 private:
  void take_turn(PyObject* self);
  void open_host(const PyHost& host, const std::vector<int>& host_numbers, int rank, uint64_t key,
                 double open_timeout_s);

  std::shared_ptr<Communicator> core_;
  uint64_t turn_at_ = UINT64_MAX;
  // The region of the members on this host, if there are several. Its destruction notifies the others that this rank
  // has left, so the pointers below are null once the communicator is closed.
  std::shared_ptr<Region> region_;
  std::shared_ptr<RemotePeers> remote_peers_;  // only if the communicator spans hosts
  std::shared_ptr<Lane> host_messages_;        // likewise: messages of schedules between the ranks of this host
  std::vector<int> numbers_;                   // for each member its number in the region, or -1
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

// The error for a wait in a wrong thread: only the thread of a virtual rank may wait on that rank's communicators.
Failure not_its_thread(const Communicator& core);

// Sets the exception of a failed operation and calls communicator.on_failure.
void raise_operation_error(nb::handle communicator, const Error& error);

// Waits without the GIL; raises the operation's error. PythonError if a signal handler raised.
void wait_for_work(nb::handle communicator, const WorkPtr& work, double timeout_s);

}  // namespace hocket
