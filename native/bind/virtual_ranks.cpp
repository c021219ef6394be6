#include "bind/virtual_ranks.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "bind/gil.hpp"
#include "bind/lanes.hpp"
#include "core/process.hpp"
#include "sim/virtual_lanes.hpp"

namespace hocket {

namespace {

// Calls a Python function that returns a cost; its exception aborts the simulation.
template <typename Result, typename... Arguments>
Result cost_from(const nb::handle& function, Arguments&&... arguments) {
  const nb::gil_scoped_acquire gil;
  try {
    return nb::cast<Result>(function(std::forward<Arguments>(arguments)...));
  } catch (nb::python_error& error) {
    throw Failure(ErrorCode::aborted, std::string("the simulation failed with ") + error.what());
  } catch (const nb::cast_error&) {
    throw Failure(ErrorCode::aborted, "the simulation failed: a cost is not a number of seconds");
  }
}

// The last reference may be dropped on any thread; the deleter takes the GIL.
std::shared_ptr<nb::object> shared(nb::object object) {
  return {new nb::object(std::move(object)), [](nb::object* held) {
            const nb::gil_scoped_acquire gil;
            delete held;
          }};
}

sim::Costs costs_of(nb::object collective_s, nb::object message) {
  using Cost = std::tuple<double, double, std::vector<int>>;
  return {
      [function = shared(std::move(collective_s))](uint64_t key, const Operation& op, const std::vector<int>& members) {
        return cost_from<double>(*function, key, name(op.kind), op.nbytes, op.root, members);
      },
      [function = shared(std::move(message))](int source, int destination, uint64_t nbytes) {
        auto [latency_s, occupied_s, links] = cost_from<Cost>(*function, source, destination, nbytes);
        return sim::MessageCost{latency_s, occupied_s, std::move(links)};
      }};
}

nb::tuple open_lanes(const PyVirtualRanks& self, uint64_t key, const std::vector<int>& members, int rank) {
  std::shared_ptr<sim::Group> group;
  {
    const std::lock_guard lock(self.ranks->mutex());
    group = self.ranks->group(key, members);
  }
  return nb::make_tuple(PyLane{std::make_unique<sim::VirtualCollectives>(self.ranks, group, rank)},
                        PyLane{std::make_unique<sim::VirtualMessages>(self.ranks, group, rank)},
                        PyLane{std::make_unique<sim::VirtualTransfers>(self.ranks, group, rank)});
}

// Ends the rank, and closes the communicators that it dropped with operations in flight.
void end(const PyVirtualRanks& self, int rank) {
  std::vector<std::shared_ptr<Communicator>> left;
  {
    const std::lock_guard guard(Engine::instance().lock());
    left.swap(VirtualThread::current()->communicators);
    for (const auto& communicator : left) {
      communicator->drop();
      communicator->close();
    }
  }
  self.ranks->end(rank);
}

VirtualThread& own_virtual_thread() {
  VirtualThread* thread = VirtualThread::current();
  if (!thread) throw Failure(ErrorCode::invalid_state, "this thread does not belong to a virtual rank");
  return *thread;
}

}  // namespace

void bind_virtual_ranks(nb::module_& module) {
  nb::class_<PyVirtualRanks>(module, "VirtualRanks", "Ranks that are threads of this process, on a virtual clock.")
      .def(
          "__init__",
          [](PyVirtualRanks* self, int num_ranks, nb::object collective_s, nb::object message, bool moves_data) {
            new (self) PyVirtualRanks{std::make_shared<sim::VirtualRanks>(
                num_ranks, costs_of(std::move(collective_s), std::move(message)), moves_data)};
          },
          nb::arg("num_ranks"), nb::arg("collective_s"), nb::arg("message"), nb::arg("moves_data"))
      .def("open_lanes", &open_lanes, nb::arg("key"), nb::arg("members"), nb::arg("rank"))
      .def(
          "start", [](const PyVirtualRanks& self) { self.ranks->start(); }, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "begin", [](const PyVirtualRanks& self, int rank) { self.ranks->begin(rank); }, nb::arg("rank"),
          nb::call_guard<nb::gil_scoped_release>())
      .def("end", &end, nb::arg("rank"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "leave_out", [](const PyVirtualRanks& self, int rank) { self.ranks->leave_out(rank); }, nb::arg("rank"),
          nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("moves_data", [](const PyVirtualRanks& self) { return self.ranks->moves_data; })
      .def(
          "stop",
          [](const PyVirtualRanks& self, std::string reason) {
            self.ranks->stop({ErrorCode::aborted, std::move(reason)});
          },
          nb::arg("reason"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "now_s", [](const PyVirtualRanks& self, int rank) { return self.ranks->now_s(rank); }, nb::arg("rank"))
      .def(
          "traffic", [](const PyVirtualRanks& self, int rank) { return self.ranks->traffic(rank); }, nb::arg("rank"))
      .def("stopped", [](const PyVirtualRanks& self) -> std::string {
        const nb::gil_scoped_release released;
        const std::optional<Error> error = self.ranks->stopped();
        return error ? error->message : "";
      });
  module.def("is_virtual_rank", [] { return VirtualThread::current() != nullptr; });
  module.def("virtual_now_s", [] { return own_virtual_thread().now_s(); });
  module.def(
      "pass_virtual_time",
      [](double seconds) {
        VirtualThread& thread = own_virtual_thread();
        ReleasedGil released;
        Engine::instance().wait_until(thread.now_s() + seconds, thread);
      },
      nb::arg("seconds"));
}

}  // namespace hocket
