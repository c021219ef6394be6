// An MPI library that this process has loaded and initialised, called through pointers: no MPI is linked, and any
// number of differently built ones can be used. What cannot be asked for by name (handles are numbers in one family of
// libraries and addresses in the other) comes from mpi4py, which knows.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "core/driven_library.hpp"
#include "core/lane.hpp"

namespace hocket {

struct MpiFacts {
  std::string path;          // of the shared library
  std::string backend;       // the name of its lanes
  size_t handle_nbytes = 0;  // 4: handles are ints, 8: addresses
  uint64_t in_place = 0;     // MPI_IN_PLACE
  int max_tag = 0;
  int any_source = 0;
  int error_truncate = 0;  // the class MPI_ERR_TRUNCATE
  // Handles. A type of the same width for each DType; an operation for each ReduceOp, of avg the sum.
  std::array<uint64_t, kNumDTypes> datatypes{};
  std::array<uint64_t, kNumReduceOps> reductions{};
  uint64_t byte = 0;
};

// The calls that lanes make. Arguments are MPI's; handles are numbers of 64 bits in either family.
class MpiLibrary : public DrivenLibrary {
 public:
  // Throws BackendUnavailable if the library does not have what lanes call.
  static std::shared_ptr<MpiLibrary> load(const MpiFacts& facts);
  // Lanes over a communicator of the library's, which has to outlive them and to return its errors. A library may use
  // the arrays of an operation that was given up.
  virtual std::unique_ptr<Lane> make_collective_lane(uint64_t communicator, int rank, int size) = 0;
  virtual std::unique_ptr<Lane> make_point_to_point_lane(uint64_t communicator, int rank, int size) = 0;
};

}  // namespace hocket
