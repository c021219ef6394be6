// The functions of an MPI library; one type per kind of handle (int or address) and of count (int, or MPI_Count if the
// library has the MPI 4 functions that end in _c).
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "core/error.hpp"

namespace hocket {

template <typename Handle, typename Count>
struct MpiFunctions {
  using Status = std::byte[64];  // larger than any library's
  using Displacement = std::conditional_t<(sizeof(Count) > sizeof(int)), intptr_t, int>;

  int (*ibarrier)(Handle comm, Handle* request);
  int (*iallreduce)(const void*, void*, Count, Handle type, Handle op, Handle comm, Handle* request);
  int (*ireduce)(const void*, void*, Count, Handle type, Handle op, int root, Handle comm, Handle* request);
  int (*iscan)(const void*, void*, Count, Handle type, Handle op, Handle comm, Handle* request);
  int (*ibcast)(void*, Count, Handle type, int root, Handle comm, Handle* request);
  int (*iallgather)(const void*, Count, Handle, void*, Count, Handle, Handle comm, Handle* request);
  int (*ireduce_scatter_block)(const void*, void*, Count, Handle type, Handle op, Handle comm, Handle* request);
  int (*ialltoall)(const void*, Count, Handle, void*, Count, Handle, Handle comm, Handle* request);
  int (*igather)(const void*, Count, Handle, void*, Count, Handle, int root, Handle comm, Handle* request);
  int (*iscatter)(const void*, Count, Handle, void*, Count, Handle, int root, Handle comm, Handle* request);
  int (*iallgatherv)(const void*, Count, Handle, void*, const Count*, const Displacement*, Handle, Handle comm,
                     Handle* request);
  int (*ireduce_scatter)(const void*, void*, const Count*, Handle type, Handle op, Handle comm, Handle* request);
  int (*ialltoallv)(const void*, const Count*, const Displacement*, Handle, void*, const Count*, const Displacement*,
                    Handle, Handle comm, Handle* request);
  int (*igatherv)(const void*, Count, Handle, void*, const Count*, const Displacement*, Handle, int root, Handle comm,
                  Handle* request);
  int (*iscatterv)(const void*, const Count*, const Displacement*, Handle, void*, Count, Handle, int root, Handle comm,
                   Handle* request);
  int (*isend)(const void*, Count, Handle type, int dest, int tag, Handle comm, Handle* request);
  int (*irecv)(void*, Count, Handle type, int source, int tag, Handle comm, Handle* request);
  int (*test)(Handle* request, int* flag, Status* status);
  int (*iprobe)(int source, int tag, Handle comm, int* flag, Status* status);
  int (*finalized)(int* flag);
  int (*cancel)(Handle* request);
  int (*request_free)(Handle* request);
  int (*get_count)(const Status* status, Handle type, Count* count);
  int (*op_create)(void (*function)(void*, void*, int*, Handle*), int commute, Handle* op);
  int (*error_string)(int code, char* text, int* length);
  int (*error_class)(int code, int* error_class);

  static constexpr uint64_t kMaxCount = static_cast<uint64_t>(std::numeric_limits<Count>::max());

  explicit MpiFunctions(void* library) {
    constexpr bool is_large = sizeof(Count) > sizeof(int);
    const auto find = [&]<typename Function>(Function& function, const char* name, bool has_count) {
      const std::string symbol = std::string("MPI_") + name + (has_count && is_large ? "_c" : "");
      function = reinterpret_cast<Function>(dlsym(library, symbol.c_str()));
      if (!function) throw Failure(ErrorCode::backend_unavailable, "the MPI library has no " + symbol);
    };
    find(ibarrier, "Ibarrier", false);
    find(iallreduce, "Iallreduce", true);
    find(ireduce, "Ireduce", true);
    find(iscan, "Iscan", true);
    find(ibcast, "Ibcast", true);
    find(iallgather, "Iallgather", true);
    find(ireduce_scatter_block, "Ireduce_scatter_block", true);
    find(ialltoall, "Ialltoall", true);
    find(igather, "Igather", true);
    find(iscatter, "Iscatter", true);
    find(iallgatherv, "Iallgatherv", true);
    find(ireduce_scatter, "Ireduce_scatter", true);
    find(ialltoallv, "Ialltoallv", true);
    find(igatherv, "Igatherv", true);
    find(iscatterv, "Iscatterv", true);
    find(isend, "Isend", true);
    find(irecv, "Irecv", true);
    find(test, "Test", false);
    find(iprobe, "Iprobe", false);
    find(finalized, "Finalized", false);
    find(cancel, "Cancel", false);
    find(request_free, "Request_free", false);
    find(get_count, "Get_count", true);
    find(op_create, "Op_create", false);
    find(error_string, "Error_string", false);
    find(error_class, "Error_class", false);
  }

  // Whether a library has the functions with large counts.
  static bool has_large_counts(void* library) { return dlsym(library, "MPI_Iallreduce_c") != nullptr; }

  std::string text(int code) const {
    char message[1024];
    int length = 0;
    if (error_string(code, message, &length) != 0) return "error code " + std::to_string(code);
    return std::string(message, static_cast<size_t>(length));
  }
};

}  // namespace hocket
