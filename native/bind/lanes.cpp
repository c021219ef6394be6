#include "bind/lanes.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/driven_in_python.hpp"
#include "bind/errors.hpp"
#include "bind/gil.hpp"
#include "bind/names.hpp"
#include "bind/python_lane.hpp"
#include "core/split_lane.hpp"
#include "mpi/library.hpp"

namespace hocket {

namespace {

struct PyShares {
  std::shared_ptr<Shares> shares;
};

struct PyMpiLibrary {
  std::shared_ptr<MpiLibrary> library;
};

template <typename Array, typename Names>
void read_handles(Array& handles, const Names& names, const std::map<std::string, uint64_t>& given, const char* what) {
  for (size_t i = 0; i < handles.size(); ++i) {
    const auto found = given.find(names[i]);
    if (found == given.end())
      throw Failure(ErrorCode::invalid_argument, std::string("the MPI library has no ") + what + " for " + names[i]);
    handles[i] = found->second;
  }
}

}  // namespace

void bind_lanes(nb::module_& module) {
  nb::class_<PyLane>(module, "Lane", "A lane of a foreign library; a communicator takes ownership of it.");
  nb::class_<PyMpiLibrary>(module, "MpiLibrary", "The functions of a loaded and initialised MPI library.")
      .def(
          "__init__",
          [](PyMpiLibrary* self, std::string path, std::string backend, size_t handle_nbytes, uint64_t in_place,
             int max_tag, int any_source, int error_truncate, uint64_t byte,
             const std::map<std::string, uint64_t>& datatypes, const std::map<std::string, uint64_t>& reductions) {
            MpiFacts facts;
            facts.path = std::move(path);
            facts.backend = std::move(backend);
            facts.handle_nbytes = handle_nbytes;
            facts.in_place = in_place;
            facts.max_tag = max_tag;
            facts.any_source = any_source;
            facts.error_truncate = error_truncate;
            facts.byte = byte;
            read_handles(facts.datatypes, kDTypeNames, datatypes, "type");
            read_handles(facts.reductions, kReduceNames, reductions, "reduction");
            new (self) PyMpiLibrary{MpiLibrary::load(facts)};
            const ProgressGuard guard;
            Engine::instance().add(self->library);
          },
          nb::kw_only(), nb::arg("path"), nb::arg("backend"), nb::arg("handle_nbytes"), nb::arg("in_place"),
          nb::arg("max_tag"), nb::arg("any_source"), nb::arg("error_truncate"), nb::arg("byte"), nb::arg("datatypes"),
          nb::arg("reductions"))
      .def(
          "collective_lane",
          [](PyMpiLibrary& self, uint64_t communicator, int rank, int size) {
            return PyLane{self.library->make_collective_lane(communicator, rank, size)};
          },
          nb::arg("communicator"), nb::arg("rank"), nb::arg("size"))
      .def(
          "point_to_point_lane",
          [](PyMpiLibrary& self, uint64_t communicator, int rank, int size) {
            return PyLane{self.library->make_point_to_point_lane(communicator, rank, size)};
          },
          nb::arg("communicator"), nb::arg("rank"), nb::arg("size"));
  bind_driven_in_python(module);
  bind_python_lane(module);
  nb::class_<PyShares>(module, "Shares", "The share of an operation that the first of two libraries carries.")
      .def("__init__", [](PyShares* self) { new (self) PyShares{std::make_shared<Shares>()}; })
      .def(
          "set",
          [](const PyShares& self, const std::map<std::string, Shares::Ranges>& ranges) {
            std::map<OpKind, Shares::Ranges> checked;
            for (const auto& [kind, of_kind] : ranges) {
              for (const auto& [most_nbytes, share] : of_kind)
                if (!(share >= 0 && share <= 1))
                  throw Failure(ErrorCode::invalid_argument,
                                "a share of " + kind + " must lie between 0 and 1, not " + std::to_string(share));
              checked[static_cast<OpKind>(index_of(kOpNames, kind, "operation"))] = of_kind;
            }
            const ProgressGuard guard;  // lanes read the shares under this lock
            self.shares->set(std::move(checked));
          },
          nb::arg("ranges"));
  module.def(
      "split_lane",
      [](std::string backend, PyLane& first, PyLane& second, const PyShares& shares) {
        return PyLane{std::make_unique<SplitLane>(std::move(backend), std::move(first.lane), std::move(second.lane),
                                                  shares.shares)};
      },
      nb::arg("backend"), nb::arg("first"), nb::arg("second"), nb::arg("shares"));
}

}  // namespace hocket
