// Schedules of a communicator, and the choices for its operations.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/columns.hpp"
#include "bind/communicator.hpp"
#include "bind/gil.hpp"
#include "bind/names.hpp"

namespace hocket {

namespace {

uint16_t add_program(PyCommunicator& self, const std::string& kind, std::string name, int num_blocks, int num_slots,
                     int ports, int group_size, const Numbers& rounds, const Numbers& sources,
                     const Numbers& destinations, const Numbers& blocks, const Numbers& source_slots,
                     const Numbers& destination_slots, const Column<bool>& reduces) {
  std::vector<Program::Row> rows(rounds.shape(0));
  for (const Numbers* column : {&sources, &destinations, &blocks, &source_slots, &destination_slots})
    need(column->shape(0) == rows.size(), "the columns of a schedule must have equal lengths");
  need(reduces.shape(0) == rows.size(), "the columns of a schedule must have equal lengths");
  for (size_t i = 0; i < rows.size(); ++i)
    rows[i] = {rounds.data()[i],       sources.data()[i],           destinations.data()[i], blocks.data()[i],
               source_slots.data()[i], destination_slots.data()[i], reduces.data()[i]};
  const auto op = static_cast<OpKind>(index_of(kOpNames, kind, "operation"));
  const ProgressGuard guard;
  return self.core().add_program(op, std::move(name), num_blocks, num_slots, ports, group_size, std::move(rows));
}

using Ranking = std::vector<std::pair<uint8_t, uint16_t>>;

void set_choice(PyCommunicator& self, const std::string& kind, const std::string& dtype_class,
                const std::vector<std::pair<uint64_t, Ranking>>& ranges) {
  const ProgressGuard guard;
  std::vector<ChoiceTable::Range> table;
  for (const auto& [most_nbytes, ranking] : ranges) {
    ChoiceTable::Range range{most_nbytes, {}};
    for (const auto& [backend, program] : ranking) {
      if (backend >= self.core().num_backends())
        throw Failure(ErrorCode::invalid_argument, "no backend number " + std::to_string(backend));
      range.ranking.push_back({backend, self.core().program(program)});
    }
    table.push_back(std::move(range));
  }
  const auto op = static_cast<OpKind>(index_of(kOpNames, kind, "operation"));
  const auto dtypes = static_cast<DTypeClass>(index_of(kDTypeClassNames, dtype_class, "class of types"));
  self.core().choices().set(op, dtypes, std::move(table));
}

constexpr size_t kMostPolicyText = 4096;
constexpr size_t kMostPolicies = 16;  // of a communicator

// For recorded runs. A text that is too long is left out: what was chosen is recorded without it.
void define_policy(PyCommunicator& self, const std::string& json, size_t number) {
  if (json.size() > kMostPolicyText || number >= kMostPolicies) return;
  const ProgressGuard guard;
  self.core().events().define(DefinitionKind::policy, json, number);
}

}  // namespace

void add_program_methods(nb::class_<PyCommunicator>& communicator) {
  communicator
      .def("_add_program", &add_program, nb::arg("kind"), nb::arg("name"), nb::arg("num_blocks"), nb::arg("num_slots"),
           nb::arg("ports"), nb::arg("group_size"), nb::arg("rounds"), nb::arg("sources"), nb::arg("destinations"),
           nb::arg("blocks"), nb::arg("source_slots"), nb::arg("destination_slots"), nb::arg("reduces"))
      .def("_program_names", [](PyCommunicator& self) { return self.core().program_names(); })
      .def("_define_policy", &define_policy, nb::arg("json"), nb::arg("number"))
      .def("_set_choice", &set_choice, nb::arg("kind"), nb::arg("dtype_class"), nb::arg("ranges"));
}

}  // namespace hocket
