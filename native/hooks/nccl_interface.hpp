// NCCL's profiler plugin, versions 4 to 6, as its documentation describes it (plugins/profiler/README.md of NCCL). NCCL
// 2.27 looks for version 4, 2.28 for version 5, 2.29 and later ones for version 6, and each for the earlier ones, too.
// Version 3 does not report the number of channels of an operation, so its completion cannot be detected.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hocket::hooks::nccl {

inline constexpr int kSuccess = 0;

// Kinds of events, and bits of the mask that says which ones a plugin wants. NCCL begins the parents of these, too.
enum EventType : uint64_t {
  kCollective = 1 << 1,
  kMessage = 1 << 2,
  kKernelChannel = 1 << 6,
  kCopyEngineCollective = 1 << 12,  // from version 6 on
};

// In version 4 `type` is one byte, followed by padding. The fields that the hooks read have the same places in all
// versions.
struct EventDescriptor {
  uint64_t type;
  void* parent;
  int rank;
  union {
    struct {
      uint64_t number;
      const char* function;
      const void* sent;
      void* received;
      size_t count;
      int root;
      const char* datatype;
      uint8_t num_channels;
      uint8_t num_warps;
      const char* algorithm;
      const char* protocol;
    } collective;
    struct {
      const char* function;
      void* buffer;
      const char* datatype;
      size_t count;
      int peer;
      uint8_t num_channels;
    } message;
    struct {
      uint8_t channel;
      uint64_t begin;  // of the GPU's clock
    } kernel_channel;
  };
};
static_assert(offsetof(EventDescriptor, collective) == 24 && offsetof(EventDescriptor, collective.datatype) == 72);
static_assert(offsetof(EventDescriptor, collective.protocol) == 96 && offsetof(EventDescriptor, message.peer) == 56);

using Init4 = int(void** context, int* wanted, const char* name, uint64_t hash, int num_nodes, int num_ranks, int rank,
                  void* log);
using Init5 = int(void** context, uint64_t hash, int* wanted, const char* name, int num_nodes, int num_ranks, int rank,
                  void* log);

template <typename Init>
struct Plugin {
  const char* name;
  Init* init;
  int (*start)(void* context, void** event, EventDescriptor* descriptor);
  int (*stop)(void* event);
  int (*record_state)(void* event, int state, void* arguments);
  int (*finalize)(void* context);
};

}  // namespace hocket::hooks::nccl
