// An MPI library that this process has loaded and initialised, called through function pointers: hocket is not linked
// to MPI, and can use several MPI builds. mpi4py provides the values that have no symbol (handles are numbers in one
// family of libraries and addresses in the other).
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
  // Handles: a type of the same width for each DType; an operation for each ReduceOp (for avg: the sum).
  std::array<uint64_t, kNumDTypes> datatypes{};
  std::array<uint64_t, kNumReduceOps> reductions{};
  uint64_t byte = 0;
};

// The interface for lanes. Arguments are MPI's; handles are numbers of 64 bits in both families.
class MpiLibrary : public DrivenLibrary {
 public:
  // Throws BackendUnavailable if the library lacks a function that lanes call.
  static std::shared_ptr<MpiLibrary> load(const MpiFacts& facts);
  // Make lanes over a communicator of the library, which must outlive them and return errors (MPI_ERRORS_RETURN). The
  // library may still use the arrays of a cancelled operation.
  virtual std::unique_ptr<Lane> make_collective_lane(uint64_t communicator, int rank, int size) = 0;
  virtual std::unique_ptr<Lane> make_point_to_point_lane(uint64_t communicator, int rank, int size) = 0;
};

}  // namespace hocket
