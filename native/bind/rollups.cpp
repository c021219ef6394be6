#include "bind/rollups.hpp"

#include <nanobind/stl/optional.h>

#include <optional>
#include <utility>
#include <vector>

#include "bind/columns.hpp"
#include "rollups/rollup.hpp"

namespace hocket {

namespace {

using Integers = Column<int64_t>;

// A part of the events; a table may lack the last two columns.
struct Part {
  Column<double> began_s, ended_s;
  Integers process, rank;
  Numbers name;
  std::optional<Integers> weight, nbytes;

  explicit Part(const nb::tuple& columns)
      : began_s(nb::cast<Column<double>>(columns[0])),
        ended_s(nb::cast<Column<double>>(columns[1])),
        process(nb::cast<Integers>(columns[2])),
        rank(nb::cast<Integers>(columns[3])),
        name(nb::cast<Numbers>(columns[4])),
        weight(nb::cast<std::optional<Integers>>(columns[5])),
        nbytes(nb::cast<std::optional<Integers>>(columns[6])) {
    const size_t size = began_s.shape(0);
    need(ended_s.shape(0) == size && process.shape(0) == size && rank.shape(0) == size && name.shape(0) == size &&
             (!weight || weight->shape(0) == size) && (!nbytes || nbytes->shape(0) == size),
         "the columns of events must have equal lengths");
  }
  rollups::Events events() const {
    return {.size = began_s.shape(0),
            .began_s = began_s.data(),
            .ended_s = ended_s.data(),
            .process = process.data(),
            .rank = rank.data(),
            .name = name.data(),
            .weight = weight ? weight->data() : nullptr,
            .nbytes = nbytes ? nbytes->data() : nullptr};
  }
};

nb::tuple roll_up(const nb::list& columns, double width_s, int num_levels, double long_s, double latest_s) {
  need(width_s > 0 && num_levels > 0 && num_levels < 31, "spans must be longer than 0 s, of 1 to 30 levels");
  std::vector<Part> parts;
  for (nb::handle each : columns) parts.emplace_back(nb::cast<nb::tuple>(each));
  rollups::Rows rows;
  {
    const nb::gil_scoped_release released;
    rollups::Rollup rollup({.width_s = width_s, .num_levels = num_levels, .long_s = long_s, .latest_s = latest_s});
    for (const Part& part : parts) rollup.add(part.events());
    rows = rollup.rows();
  }
  return nb::make_tuple(
      as_array(std::move(rows.level)), as_array(std::move(rows.bin)), as_array(std::move(rows.process)),
      as_array(std::move(rows.rank)), as_array(std::move(rows.name)), as_array(std::move(rows.count)),
      as_array(std::move(rows.busy_s)), as_array(std::move(rows.most_s)), as_array(std::move(rows.nbytes)),
      as_array(std::move(rows.began_s)), as_array(std::move(rows.ended_s)));
}

}  // namespace

void bind_rollups(nb::module_& module) {
  module.def("roll_up", &roll_up, nb::arg("parts"), nb::arg("width_s"), nb::arg("num_levels"), nb::arg("long_s"),
             nb::arg("latest_s"));
}

}  // namespace hocket
