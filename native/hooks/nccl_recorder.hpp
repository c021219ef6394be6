// Operations of NCCL, as reported to its profiler plugin.
//
// NCCL reports when an operation is enqueued, but not when it completes. Its proxy thread reports for each channel when
// the kernel starts and stops. These reports come in any order: some before the operation is reported as enqueued, some
// after its communicator was destroyed.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "hooks/nccl_interface.hpp"
#include "hooks/open_event.hpp"

namespace hocket::hooks::nccl {

// What NCCL has of this library are numbers, never addresses: it goes on to use those of operations that are over.
using Handle = uint64_t;
inline constexpr Handle kNoHandle = 0;

// Thread-safe. One of each process: see of_this_process().
class NcclRecorder {
 public:
  NcclRecorder();

  bool is_on() const { return is_on_; }
  Handle add_communicator(const char* name, uint64_t hash, int num_ranks, int rank);
  // What is still in flight failed, as only a communicator that is aborted leaves operations behind.
  void remove_communicator(Handle communicator);
  // kNoHandle: this event is not recorded.
  Handle start(Handle communicator, uint64_t type, const EventDescriptor& descriptor);
  void stop(Handle event);

 private:
  // Enough for what a host hands to a device before it has to wait: about 1,024 launches.
  static constexpr size_t kMostOpen = 4096;
  static constexpr size_t kMostChannels = 256;

  struct Communicator {
    uint32_t id = 0;
    int num_ranks = 0;
    uint32_t num_collectives = 0;
    uint32_t num_messages = 0;
    // Operations that are handed over together: NCCL begins all of them, and then stops all. One batch after the other
    // runs on the device.
    uint64_t batch = 0;
    bool is_batch_stopped = true;
    bool has_kernel_events = false;
    std::map<std::string, uint16_t> algorithms;
  };
  struct Operation {
    uint64_t number = 0;  // 0: none; also the handle
    Handle communicator = kNoHandle;
    OpenEvent open;
    uint64_t batch = 0;
    size_t num_channels = 0;  // 0: unknown
    std::bitset<kMostChannels> begun;
    std::bitset<kMostChannels> ended;
    uint64_t last_end = 0;
    bool is_handed_over = false;
    bool has_kernel_events = true;
  };

  Handle start_operation(Handle communicator, Event event, size_t num_channels);
  Handle start_channel(Handle parent, uint8_t channel);
  void stop_channel(uint64_t number, uint8_t channel);
  Event event_of(Communicator& communicator, const EventDescriptor& descriptor, bool is_message);
  Operation* find(uint64_t number);
  void end_if_over(Operation& operation);
  void end_overdue(Handle communicator, uint64_t batch);
  void end(Operation& operation, EventState state, uint64_t now, uint8_t flags = 0);
  uint16_t algorithm_of(Communicator& communicator, const char* algorithm, const char* protocol);

  bool is_on_;
  std::mutex mutex_;
  std::unordered_map<Handle, Communicator> communicators_;
  Handle next_communicator_ = 1;
  uint64_t next_number_ = 1;
  uint64_t oldest_ = 1;  // no earlier operation is in flight
  std::unique_ptr<std::array<Operation, kMostOpen>> operations_;
};

}  // namespace hocket::hooks::nccl
