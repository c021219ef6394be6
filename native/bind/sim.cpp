#include "bind/sim.hpp"

#include "bind/columns.hpp"
#include "sim/engine.hpp"

namespace hocket {

namespace {

template <typename T>
std::vector<T> values_of(const Column<T>& column) {
  return {column.data(), column.data() + column.shape(0)};
}

sim::Incidence incidence_of(size_t num_things, const Numbers& things, size_t num_others, const Numbers& others,
                            const char* what) {
  need(things.shape(0) == others.shape(0), what);
  for (size_t i = 0; i < things.shape(0); ++i)
    need(things.data()[i] >= 0 && static_cast<size_t>(things.data()[i]) < num_things && others.data()[i] >= 0 &&
             static_cast<size_t>(others.data()[i]) < num_others,
         what);
  return {num_things, {things.data(), things.shape(0)}, {others.data(), others.shape(0)}};
}

nb::tuple simulate(const Column<double>& duration_s, const Column<double>& nbytes, const Numbers& after_task,
                   const Numbers& after_other, const Numbers& uses_task, const Numbers& uses_resource,
                   const Numbers& crosses_task, const Numbers& crosses_link, const Numbers& capacity,
                   const Column<uint8_t>& in_order, const Column<double>& bandwidth) {
  sim::TaskGraph graph;
  graph.duration_s = values_of(duration_s);
  graph.nbytes = values_of(nbytes);
  graph.capacity = values_of(capacity);
  graph.in_order = values_of(in_order);
  graph.bandwidth = values_of(bandwidth);
  const size_t num_tasks = graph.duration_s.size();
  need(graph.nbytes.size() == num_tasks && graph.in_order.size() == graph.capacity.size(),
       "the columns of a task graph must have equal lengths");
  graph.after = incidence_of(num_tasks, after_task, num_tasks, after_other, "a task must come after an existing task");
  graph.uses =
      incidence_of(num_tasks, uses_task, graph.capacity.size(), uses_resource, "a task must use an existing resource");
  graph.crosses =
      incidence_of(num_tasks, crosses_task, graph.bandwidth.size(), crosses_link, "a task must cross an existing link");
  sim::Timeline timeline;
  {
    const nb::gil_scoped_release released;
    timeline = sim::simulate(graph);
  }
  return nb::make_tuple(as_array(std::move(timeline.begin_s)), as_array(std::move(timeline.end_s)),
                        as_array(std::move(timeline.link_bytes)), as_array(std::move(timeline.busy_s)),
                        timeline.num_over);
}

}  // namespace

void bind_sim(nb::module_& module) {
  module.def("simulate", &simulate, nb::arg("duration_s"), nb::arg("nbytes"), nb::arg("after_task"),
             nb::arg("after_other"), nb::arg("uses_task"), nb::arg("uses_resource"), nb::arg("crosses_task"),
             nb::arg("crosses_link"), nb::arg("capacity"), nb::arg("in_order"), nb::arg("bandwidth"));
}

}  // namespace hocket
