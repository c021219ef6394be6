// An MPI library that a program uses, as the hooks see it. They are compiled without any mpi.h, because one preloaded
// file serves MPICH and its relatives (handles are ints), Open MPI (addresses) and the standard ABI of MPI 5.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <unordered_map>

#include "core/types.hpp"
#include "hooks/open_event.hpp"

namespace hocket::hooks {

// A handle of any MPI: an int or an address, both in one register. The upper half of an int's register is undefined, so
// `HookedMpi::handle` makes a value of it that can be compared.
using Handle = intptr_t;

// MPI_Count and the MPI_Aint of displacements, as types of their own: only they are narrowed for a library without the
// functions that end in _c.
enum class LargeCount : int64_t {};
enum class LargeDisplacement : intptr_t {};

struct MpiConstants {
  const char* name;
  size_t handle_nbytes;
  size_t status_nbytes;
  size_t source_at;  // fields of a status
  size_t tag_at;
  size_t error_at;
  uintptr_t in_place;
  uintptr_t status_ignore;  // and MPI_STATUSES_IGNORE
  int any_source;
  int proc_null;
  int root;  // MPI_ROOT, on the root of a collective between groups
  int pending_error;
  int unsupported_error;
  int graph;  // results of MPI_Topo_test
  int cart;
  int dist_graph;
  // MPICH leaves the status of MPI_Isendrecv undefined (5.0.2).
  bool has_exchange_status;
  // Of the tool interface: MPI_T_PVAR_CLASS_STATE, MPI_T_BIND_NO_OBJECT and MPI_T_BIND_MPI_COMM. Negative: not known.
  int first_variable_class;
  int bind_to_nothing;
  int bind_to_communicator;
};

inline constexpr int kUndefined = -32766;  // MPI_UNDEFINED, the same everywhere
inline constexpr int kCountError = 2;      // MPI_ERR_COUNT, too
inline constexpr size_t kMostLibraries = 4;
inline constexpr size_t kMostStatusNbytes = 64;

class HookedMpi {
 public:
  // The library that the caller of a hook would have called; null if the process has none.
  static HookedMpi* of_caller(const void* caller);

  const MpiConstants& constants() const { return *constants_; }
  size_t number() const { return number_; }
  // A function of the library itself, whatever else has its name; null if it has none.
  void* find(const char* name) const;

  Handle handle(Handle given) const { return constants_->handle_nbytes == 4 ? static_cast<int32_t>(given) : given; }
  Handle handle_at(const void* handles, size_t index) const {
    const auto* at = static_cast<const std::byte*>(handles) + index * constants_->handle_nbytes;
    if (constants_->handle_nbytes == 4) return *reinterpret_cast<const int32_t*>(at);
    return *reinterpret_cast<const Handle*>(at);
  }
  bool is_null(Handle given) const;
  bool is_in_place(const void* buffer) const { return reinterpret_cast<uintptr_t>(buffer) == constants_->in_place; }
  bool is_ignored(const void* status) const { return reinterpret_cast<uintptr_t>(status) == constants_->status_ignore; }
  static int field(const void* status, size_t at) {
    int value;
    std::memcpy(&value, static_cast<const std::byte*>(status) + at, sizeof value);
    return value;
  }

  Handle world() const { return world_; }
  std::optional<DType> dtype(Handle type) const;
  uint8_t reduction(Handle operation) const;
  // Bytes of one element, without the gaps of a derived type.
  int64_t type_nbytes(Handle type) const;
  // What a receive or a file operation transferred; 0 if the library does not know.
  uint64_t nbytes_of(const void* status) const;

  // Functions that the hooks call for themselves.
  struct Functions {
    int (*type_size_x)(Handle type, int64_t* size);
    int (*get_elements_x)(const void* status, Handle type, int64_t* count);
    int (*test_cancelled)(const void* status, int* flag);
    int (*initialized)(int* flag);
    int (*comm_rank)(Handle comm, int* rank);
    int (*comm_size)(Handle comm, int* size);
    int (*comm_test_inter)(Handle comm, int* flag);
    int (*comm_remote_size)(Handle comm, int* size);
    int (*comm_get_name)(Handle comm, char* name, int* length);
    int (*comm_group)(Handle comm, void* group);
    int (*comm_remote_group)(Handle comm, void* group);
    int (*group_size)(Handle group, int* size);
    int (*group_rank)(Handle group, int* rank);
    int (*group_translate_ranks)(Handle group, int count, const int* ranks, Handle other, int* others);
    int (*group_free)(void* group);
    int (*topo_test)(Handle comm, int* status);
    int (*cartdim_get)(Handle comm, int* count);
    int (*graph_neighbors_count)(Handle comm, int rank, int* count);
    int (*dist_graph_neighbors_count)(Handle comm, int* in, int* out, int* is_weighted);
    int (*win_get_group)(Handle window, void* group);
    int (*win_get_name)(Handle window, char* name, int* length);
    int (*file_get_byte_offset)(Handle file, int64_t offset, int64_t* bytes);
    int (*file_get_position)(Handle file, int64_t* offset);
  };
  const Functions& functions() const { return functions_; }

 private:
  HookedMpi(void* library, size_t number);
  static HookedMpi* look_up(const void* caller);
  static HookedMpi* of_symbol(const void* symbol);
  void know_mpich();
  void know_open_mpi();
  void know_standard_abi();

  void* library_;
  size_t number_;
  const MpiConstants* constants_;
  Handle world_ = 0;
  Handle byte_ = 0;
  std::array<Handle, 5> nulls_{};  // of addresses: communicator, type, request, message, window
  std::unordered_map<Handle, DType> dtypes_;
  std::unordered_map<Handle, ReduceOp> reductions_;
  Functions functions_{};
};

}  // namespace hocket::hooks
