// Communicators and windows of MPI that operations refer to: their names, members and counts of operations.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "hooks/mpi_library.hpp"

namespace hocket::hooks {

struct GroupSizes {
  int rank = -1;  // of this process
  int size = 0;
  int num_peers = 0;  // the ranks that it can address: of the other group between groups
  bool is_inter = false;
};
GroupSizes sizes_of(const HookedMpi& mpi, Handle comm);

struct KnownGroup {
  uint32_t id = 0;  // of its definition
  GroupSizes sizes;
  std::atomic<uint32_t> num_collectives{0};
  std::atomic<uint32_t> num_messages{0};
};

// Of this process. A freed handle is given to another communicator, so the hooks of MPI_Comm_free forget it.
std::shared_ptr<KnownGroup> communicator_of(const HookedMpi& mpi, Handle comm);
std::shared_ptr<KnownGroup> window_of(const HookedMpi& mpi, Handle window);
void forget_communicator(Handle comm);
void forget_window(Handle window);
void rename_communicator(Handle comm, const char* name);
void rename_window(Handle window, const char* name);

// Numbers of blocks in an operation between neighbours.
struct Neighbours {
  int in = 0;
  int out = 0;
};
Neighbours neighbours_of(const HookedMpi& mpi, Handle comm);

}  // namespace hocket::hooks
