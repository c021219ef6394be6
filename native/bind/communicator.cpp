#include "bind/communicator.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bind/call_arrays.hpp"
#include "bind/errors.hpp"
#include "bind/gil.hpp"
#include "bind/methods.hpp"
#include "bind/names.hpp"
#include "bind/shared_memory.hpp"
#include "core/process.hpp"
#include "core/watched_lane.hpp"
#include "hosts/remote_lane.hpp"
#include "hosts/routed_messages.hpp"
#include "schedule/scheduled_lane.hpp"
#include "shm/agreed_lane.hpp"
#include "shm/collective_lane.hpp"
#include "shm/point_to_point_lane.hpp"

namespace hocket {

PyCommunicator::PyCommunicator(const PyHost& host, std::vector<int> members, int rank, uint64_t key, std::string label,
                               std::vector<std::string> backends, double timeout, double open_timeout_s)
    : timeout_s(timeout), names_(backends) {
  {
    ReleasedGil hooks;
    region_ = Region::open(host.host, std::move(members), rank, key, std::move(backends), open_timeout_s, hooks);
  }
  core_ = std::make_shared<Communicator>(rank, region_->size, static_cast<uint32_t>(key), std::move(label));
  core_->add_backend(std::make_unique<CollectiveLane>(region_), std::make_unique<PointToPointLane>(region_));
  if (region_->num_lanes > 1)
    core_->set_issue_log([region = region_](const Operation& op) { region->note_issued(op); });
  const ProgressGuard guard;
  Engine::instance().attach(core_);
}

PyCommunicator::PyCommunicator(const PyControl& control, const PyHost& host, std::vector<int> members,
                               std::vector<int> host_numbers, int rank, uint64_t key, std::string label,
                               std::vector<std::string> backends, double timeout, double open_timeout_s)
    : timeout_s(timeout), names_(backends) {
  open_host(host, host_numbers, rank, key, open_timeout_s);
  remote_peers_ = std::make_shared<RemotePeers>(control.control, std::move(members), rank, key, std::move(backends));
  core_ = std::make_shared<Communicator>(rank, remote_peers_->size, static_cast<uint32_t>(key), std::move(label));
  core_->set_issue_log([peers = remote_peers_](const Operation& op) { peers->note_issued(op); });
  const ProgressGuard guard;
  Engine::instance().attach(core_);
}

PyCommunicator::PyCommunicator(const PyVirtualRanks& ranks, const std::vector<int>& members, int rank, uint64_t key,
                               std::string label, std::vector<std::string> backends, double timeout, double)
    : timeout_s(timeout), names_(std::move(backends)) {
  core_ = std::make_shared<Communicator>(rank, static_cast<int>(members.size()), static_cast<uint32_t>(key),
                                         std::move(label));
  core_->events().set_clock(ranks.ranks->clock_of(members[static_cast<size_t>(rank)]));
  const ProgressGuard guard;
  Engine::instance().attach(core_);
}

void PyCommunicator::open_host(const PyHost& host, const std::vector<int>& host_numbers, int rank, uint64_t key,
                               double open_timeout_s) {
  std::vector<int> members;
  for (const int number : host_numbers) {
    numbers_.push_back(number < 0 ? -1 : static_cast<int>(members.size()));
    if (number >= 0) members.push_back(number);
  }
  if (members.size() < 2) return;
  try {
    ReleasedGil hooks;
    region_ = Region::open(host.host, std::move(members), numbers_[static_cast<size_t>(rank)], key, {"shm"},
                           open_timeout_s, hooks);
  } catch (const Failure& failure) {
    throw Failure(as_seen_by_all(failure.error(), numbers_));
  }
  region_->need_controls(Channel::schedules);
  host_messages_ = std::make_shared<PointToPointLane>(region_, Channel::schedules);
}

void PyCommunicator::add_backend(PyLane& collective, PyLane& point_to_point, PyLane& schedules) {
  if (host_messages_)
    schedules.lane = std::make_unique<RoutedMessages>(std::move(schedules.lane), host_messages_, numbers_);
  auto scheduled = std::make_unique<ScheduledLane>(std::move(collective.lane), std::move(schedules.lane), core_->rank,
                                                   core_->size, static_cast<int>(core_->num_backends()));
  std::unique_ptr<Lane> collectives;
  std::unique_ptr<Lane> messages;
  if (core_->events().has_clock()) {  // the lanes of virtual ranks detect mismatches themselves
    collectives = std::move(scheduled);
    messages = std::move(point_to_point.lane);
  } else if (!remote_peers_) {
    collectives = std::make_unique<AgreedLane>(region_, core_->num_backends(), std::move(scheduled));
    messages = std::make_unique<WatchedLane>(region_, std::move(point_to_point.lane));
  } else {
    collectives = std::make_unique<RemoteLane>(remote_peers_, std::move(scheduled));
    messages = std::make_unique<RemoteLane>(remote_peers_, std::move(point_to_point.lane));
  }
  const ProgressGuard guard;
  core_->add_backend(std::move(collectives), std::move(messages));
}

void PyCommunicator::set_allowed(const std::vector<std::string>& names) {
  uint32_t allowed = 0;
  for (size_t backend = 0; backend < names_.size(); ++backend)
    for (const std::string& each : names)
      if (each == names_[backend]) allowed |= 1u << backend;
  core_->set_allowed(allowed);
}

Carrier PyCommunicator::choose(PyObject* object, const Operation& op, bool keeps_program) const {
  const bool is_named = object && object != Py_None;
  if (!is_named && names_.size() == 1 && core_->choices().is_empty()) return {0, op.program};
  std::vector<std::string> available;
  {
    const ProgressGuard guard;  // another thread may close the communicator and its lanes meanwhile
    if (core_->closed) throw Failure(core_->closed_error());
    if (!is_named) return core_->choose(op, {.keeps_program = keeps_program});
    for (size_t backend = 0; backend < names_.size(); ++backend) {
      if (!core_->allows(backend)) continue;
      if (PyUnicode_Check(object) && PyUnicode_CompareWithASCIIString(object, names_[backend].c_str()) == 0)
        return core_->choose(op, {.backend = static_cast<uint8_t>(backend), .keeps_program = keeps_program});
      available.push_back(names_[backend]);
    }
  }
  // Without the lock: this runs code of the program, and that code may enter hocket.
  const nb::object why = nb::module_::import_("hocket.comm.unavailable").attr("why_unavailable");
  throw Failure(ErrorCode::backend_unavailable, nb::cast<std::string>(why(nb::handle(object), available, left_out_)));
}

bool PyCommunicator::takes_memory(const Operation& op) const {
  const ProgressGuard guard;
  if (core_->closed) throw Failure(core_->closed_error());
  return core_->takes_memory(op);
}

void PyCommunicator::take_turn(PyObject* self) {
  const uint64_t due = std::exchange(turn_at_, UINT64_MAX);
  static const nb::object name = nb::str("_take_turn");
  PyObject* result = PyObject_CallMethodNoArgs(self, name.ptr());
  if (!result) {
    turn_at_ = due;  // the other members rely on this call, so the next collective repeats it
    throw PythonError();
  }
  Py_DECREF(result);
}

PyCommunicator::~PyCommunicator() {
  // Operations in flight keep the communicator alive in the engine; dropping a handle does not cancel them.
  if (g_forked_child.load(std::memory_order_relaxed) || core_->closed) return;
  const ProgressGuard guard;
  if (core_->unseen_failure()) Engine::instance().keep_unseen(*core_->unseen_failure());
  if (core_->idle()) Engine::instance().detach(*core_);
}

void PyCommunicator::abort(const std::string& reason) {
  check_not_forked();
  const ProgressGuard guard;
  if (core_->failure()) return;
  core_->fail({ErrorCode::aborted,
               "rank " + std::to_string(core_->rank) + " of " + core_->label + " aborted the communicator: " + reason,
               {}});
}

bool PyCommunicator::drain(double timeout_s) {
  check_not_forked();
  ReleasedGil hooks;
  Engine& engine = Engine::instance();
  const bool is_over =
      engine.wait_for([&] { return core_->failure() || core_->idle_but_background(); }, timeout_s, hooks);
  const std::lock_guard guard(engine.lock());
  if (core_->failure()) {
    core_->is_failure_seen = true;
    throw Failure(*core_->failure());
  }
  return is_over;
}

PyCommunicator::Leftovers PyCommunicator::close(double drain_timeout_s) {
  constexpr double kLongestCallbackS = 5.0;  // a callback of the program may wait for this rank
  if (g_forked_child.load(std::memory_order_relaxed) || core_->closed) return {};
  ReleasedGil hooks;
  Engine& engine = Engine::instance();
  engine.wait_for([&] { return core_->failure() || core_->idle(); }, drain_timeout_s, hooks);
  std::unique_lock guard(engine.lock());
  Leftovers left;
  if (!core_->failure() && drain_timeout_s > 0) left.unreceived = core_->unreceived();
  if (core_->idle_but_background())
    core_->drop();
  else
    core_->fail({ErrorCode::aborted,
                 "rank " + std::to_string(core_->rank) + " of " + core_->label +
                     " finalized the communicator while operations were in flight",
                 {}});
  if (drain_timeout_s > 0 && core_->unseen_failure()) {
    guard.unlock();
    engine.wait_for_callbacks(*core_, std::min(drain_timeout_s, kLongestCallbackS));  // one may handle the failure
    guard.lock();
    if (core_->closed) return {};  // closed by another thread
    left.unseen = core_->unseen_failure();
  }
  core_->close();
  host_messages_.reset();
  region_.reset();
  remote_peers_.reset();
  engine.detach(*core_);
  return left;
}

namespace {

nb::bytes records(PyCommunicator& self, uint64_t most) {
  std::vector<Event> events;
  {
    // In a forked child the lock may be held forever by a thread that exists only in the parent.
    std::optional<ProgressGuard> guard;
    if (!g_forked_child.load(std::memory_order_relaxed)) guard.emplace();
    events = self.core().events().snapshot(most);
  }
  return nb::bytes(reinterpret_cast<const char*>(events.data()), events.size() * sizeof(Event));
}

Operation operation_of(const std::string& kind, const std::string& dtype, const std::optional<std::string>& reduction,
                       uint64_t nbytes) {
  return {.kind = static_cast<OpKind>(index_of(kOpNames, kind, "operation")),
          .dtype = static_cast<DType>(index_of(kDTypeNames, dtype, "type")),
          .reduce = reduction ? static_cast<ReduceOp>(index_of(kReduceNames, *reduction, "reduction")) : ReduceOp::sum,
          .nbytes = nbytes};
}

std::pair<std::string, std::string> choose(PyCommunicator& self, const std::string& kind, const std::string& dtype,
                                           const std::optional<std::string>& reduction, uint64_t nbytes) {
  const Carrier carrier = self.choose(nullptr, operation_of(kind, dtype, reduction, nbytes), false);
  return {self.core().backend_name(carrier.backend), carrier.program ? carrier.program->name : ""};
}

std::optional<std::string> refuses(PyCommunicator& self, const std::string& backend, const std::string& kind,
                                   const std::string& dtype, const std::optional<std::string>& reduction,
                                   uint64_t nbytes) {
  if (self.core().closed) throw Failure(self.core().closed_error());
  const Operation op = operation_of(kind, dtype, reduction, nbytes);
  for (size_t number = 0; number < self.core().num_backends(); ++number) {
    if (backend != self.core().backend_name(number)) continue;
    if (self.core().find_carrier(op, {.backend = static_cast<uint8_t>(number)})) return std::nullopt;
    return self.core().refuses(number, op);
  }
  throw Failure(ErrorCode::invalid_argument, "there is no backend '" + backend + "'");
}

}  // namespace

void bind_communicator(nb::module_& module) {
  nb::class_<PyHost>(module, "Host", "The ranks of a job that share a host.")
      .def(
          "__init__",
          [](PyHost* self, const std::string& name, int rank, int size, double timeout) {
            new (self) PyHost();
            watch_forks();
            ReleasedGil hooks;
            self->host = Host::connect(name, rank, size, timeout, hooks);
          },
          nb::arg("name"), nb::arg("rank"), nb::arg("size"), nb::arg("timeout"))
      .def_prop_ro("rank", [](const PyHost& self) { return self.host->rank; })
      .def_prop_ro("size", [](const PyHost& self) { return self.host->size; })
      .def_prop_ro("num_cpus", [](const PyHost& self) { return self.host->num_cpus(); })
      .def(
          "allocate",
          [](const PyHost& self, uint64_t nbytes) {
            check_not_forked();
            const ProgressGuard guard;
            return new PySharedMemory(self.host->heap(), nbytes);  // Python owns it
          },
          nb::arg("nbytes"), nb::rv_policy::take_ownership)
      .def_prop_ro("num_allocated",
                   [](const PyHost& self) { return self.host->has_heap() ? self.host->heap()->num_allocated() : 0; })
      .def("gone",
           [](const PyHost& self) {
             Host& host = *self.host;
             std::vector<int> gone;
             const ProgressGuard guard;
             host.check_peers();
             for (int peer = 0; peer < host.size; ++peer)
               if (peer != host.rank && host.life(peer) != Host::Life::alive) gone.push_back(peer);
             return gone;
           })
      .def("set_finalized", [](PyHost& self) {
        if (!g_forked_child.load(std::memory_order_relaxed)) self.host->set_finalized();
      });

  PyType_Slot slots[] = {{Py_tp_methods, operation_methods()}, {0, nullptr}};
  nb::class_<PyCommunicator> communicator(module, "Communicator", nb::type_slots(slots));
  add_program_methods(communicator);
  communicator
      .def(nb::init<const PyHost&, std::vector<int>, int, uint64_t, std::string, std::vector<std::string>, double,
                    double>(),
           nb::arg("host"), nb::arg("members"), nb::arg("rank"), nb::arg("key"), nb::arg("label"), nb::arg("backends"),
           nb::arg("timeout"), nb::arg("open_timeout"))
      .def(nb::init<const PyControl&, const PyHost&, std::vector<int>, std::vector<int>, int, uint64_t, std::string,
                    std::vector<std::string>, double, double>(),
           nb::arg("control"), nb::arg("host"), nb::arg("members"), nb::arg("host_numbers"), nb::arg("rank"),
           nb::arg("key"), nb::arg("label"), nb::arg("backends"), nb::arg("timeout"), nb::arg("open_timeout"))
      .def(nb::init<const PyVirtualRanks&, const std::vector<int>&, int, uint64_t, std::string,
                    std::vector<std::string>, double, double>(),
           nb::arg("ranks"), nb::arg("members"), nb::arg("rank"), nb::arg("key"), nb::arg("label"), nb::arg("backends"),
           nb::arg("timeout"), nb::arg("open_timeout"))
      .def("_add_backend", &PyCommunicator::add_backend, nb::arg("collective"), nb::arg("point_to_point"),
           nb::arg("schedules"))
      .def("_set_allowed", &PyCommunicator::set_allowed, nb::arg("backends"))
      .def("_set_left_out", &PyCommunicator::set_left_out, nb::arg("reasons"))
      .def(
          "_record_members",
          [](PyCommunicator& self, const std::vector<int>& ranks) { self.core().events().define_members(ranks); },
          nb::arg("ranks"))
      .def("_refuses", &refuses, nb::arg("backend"), nb::arg("kind"), nb::arg("dtype"), nb::arg("reduction").none(),
           nb::arg("nbytes"))
      .def("_choose", &choose, nb::arg("kind"), nb::arg("dtype"), nb::arg("reduction").none(), nb::arg("nbytes"))
      .def_prop_ro(
          "rank", [](PyCommunicator& self) { return self.core().rank; }, "Rank of this process, from 0.")
      .def_prop_ro(
          "size", [](PyCommunicator& self) { return self.core().size; }, "Number of ranks.")
      .def_prop_ro(
          "timeout", [](const PyCommunicator& self) { return self.timeout_s; },
          "Timeout in seconds of operations that name none.")
      .def_prop_ro("_label", [](PyCommunicator& self) { return self.core().label; })
      .def_prop_ro("_closed", [](PyCommunicator& self) { return self.core().closed.load(); })
      .def_rw("_carries_object", &PyCommunicator::carries_object)
      .def_prop_rw(
          "_check_grad", [](const PyCommunicator& self) { return self.check_grad; },
          [](PyCommunicator& self, bool value) { self.check_grad = value; })
      .def_prop_rw(
          "_on_failure", [](const PyCommunicator& self) { return self.on_failure; },
          [](PyCommunicator& self, nb::object value) { self.on_failure = std::move(value); }, nb::arg("value").none())
      .def("_set_preparing",
           [](PyCommunicator& self, bool value) {
             self.mode = value ? PyCommunicator::Mode::prepare : PyCommunicator::Mode::run;
           })
      .def("_begin_coalescing",
           [](PyCommunicator& self) {
             if (self.mode != PyCommunicator::Mode::run)
               throw Failure(ErrorCode::invalid_state,
                             "operations are being coalesced already; coalesced() does not nest");
             self.mode = PyCommunicator::Mode::coalesce;
           })
      .def("_end_coalescing",
           [](PyCommunicator& self) {
             self.mode = PyCommunicator::Mode::run;
             return std::exchange(self.coalesced, nb::list());
           })
      .def("_records", &records, nb::arg("most") = EventRing::kMostEvents)
      .def("_set_turn", &PyCommunicator::set_turn, nb::arg("num_collectives"))
      .def("_abort", &PyCommunicator::abort, nb::arg("reason"))
      .def("_drain", &PyCommunicator::drain, nb::arg("timeout"))
      .def(
          "_close",
          [](PyCommunicator& self, double drain_timeout_s) {
            const PyCommunicator::Leftovers left = self.close(drain_timeout_s);
            if (!g_forked_child.load(std::memory_order_relaxed)) release_finished_arrays();
            nb::object unseen = left.unseen ? nb::steal(make_exception(*left.unseen)) : nb::none();
            return std::make_pair(std::move(unseen), left.unreceived);
          },
          nb::arg("drain_timeout"));
}

}  // namespace hocket
