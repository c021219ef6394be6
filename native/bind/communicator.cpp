#include "bind/communicator.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/errors.hpp"
#include "bind/gil.hpp"
#include "bind/methods.hpp"
#include "core/process.hpp"
#include "shm/collective_lane.hpp"

namespace hocket {

PyCommunicator::PyCommunicator(const PyHost& host, std::vector<int> members, int rank, uint64_t key, std::string label,
                               double timeout, double open_timeout_s)
    : timeout_s(timeout) {
  std::shared_ptr<Region> region;
  {
    ReleasedGil hooks;
    region = Region::open(host.host, std::move(members), rank, key, open_timeout_s, hooks);
  }
  core_ = std::make_shared<Communicator>(rank, region->size, static_cast<uint32_t>(key), std::move(label));
  auto point_to_point = std::make_unique<PointToPointLane>(region);
  point_to_point_ = point_to_point.get();
  core_->add_lane(std::make_unique<CollectiveLane>(region));
  core_->add_lane(std::move(point_to_point));
  const ProgressGuard guard;
  Engine::instance().attach(core_);
}

PyCommunicator::~PyCommunicator() {
  // Operations in flight keep the communicator alive in the engine (dropping a handle cancels nothing).
  if (g_forked_child.load(std::memory_order_relaxed) || core_->closed) return;
  const ProgressGuard guard;
  if (core_->idle()) Engine::instance().detach(*core_);
}

void PyCommunicator::close(double drain_timeout_s) {
  if (g_forked_child.load(std::memory_order_relaxed) || core_->closed) return;
  ReleasedGil hooks;
  Engine& engine = Engine::instance();
  engine.wait_for([&] { return core_->failure() || core_->idle(); }, drain_timeout_s, hooks);
  const std::lock_guard guard(engine.lock());
  if (!core_->idle())
    core_->fail({ErrorCode::aborted,
                 "rank " + std::to_string(core_->rank) + " of " + core_->label +
                     " finalized the communicator while operations were in flight",
                 {}});
  core_->close();
  engine.detach(*core_);
}

namespace {

nb::bytes records(PyCommunicator& self) {
  std::vector<Event> events;
  {
    // In a forked child the lock may be held for ever by a thread that only the parent has.
    std::optional<ProgressGuard> guard;
    if (!g_forked_child.load(std::memory_order_relaxed)) guard.emplace();
    events = self.core().events().snapshot();
  }
  return nb::bytes(reinterpret_cast<const char*>(events.data()), events.size() * sizeof(Event));
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
      .def("set_finalized", [](PyHost& self) {
        if (!g_forked_child.load(std::memory_order_relaxed)) self.host->set_finalized();
      });

  PyType_Slot slots[] = {{Py_tp_methods, operation_methods()}, {0, nullptr}};
  nb::class_<PyCommunicator>(module, "Communicator", nb::type_slots(slots))
      .def(nb::init<const PyHost&, std::vector<int>, int, uint64_t, std::string, double, double>(), nb::arg("host"),
           nb::arg("members"), nb::arg("rank"), nb::arg("key"), nb::arg("label"), nb::arg("timeout"),
           nb::arg("open_timeout"))
      .def_prop_ro("rank", [](PyCommunicator& self) { return self.core().rank; })
      .def_prop_ro("size", [](PyCommunicator& self) { return self.core().size; })
      .def_prop_ro("timeout", [](const PyCommunicator& self) { return self.timeout_s; })
      .def_prop_ro("_label", [](PyCommunicator& self) { return self.core().label; })
      .def_prop_ro("_closed", [](PyCommunicator& self) { return self.core().closed.load(); })
      .def_prop_rw(
          "_check_grad", [](const PyCommunicator& self) { return self.check_grad; },
          [](PyCommunicator& self, bool value) { self.check_grad = value; })
      .def_prop_rw(
          "_on_failure", [](const PyCommunicator& self) { return self.on_failure; },
          [](PyCommunicator& self, nb::object value) { self.on_failure = std::move(value); }, nb::arg("value").none())
      .def("_records", &records)
      .def("_close", &PyCommunicator::close, nb::arg("drain_timeout"));
}

}  // namespace hocket
