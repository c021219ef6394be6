// The recorder of this process: events, exact totals and the names that they refer to by number.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "recorder/histograms.hpp"
#include "recorder/layout.hpp"
#include "recorder/memory.hpp"
#include "recorder/ring.hpp"

namespace hocket {

class Recorder {
 public:
  // Made by the first call, and never destroyed: threads may record until the process ends. Two libraries of one
  // process that contain this class, the extension module and the preloaded hooks, have one recorder.
  static Recorder& instance();
  // The recorder of this library, whether or not another one of the process has one: what the hooks share.
  static Recorder& own();
  // For a library that is loaded into a process that has a recorder: what instance() will return there. Before its
  // first call.
  static void share(Recorder* recorder);

  bool is_on() const { return header_ != nullptr; }
  const RecorderMemory& memory() const { return memory_; }
  // Whether communicators that are made from now on record their operations; to measure what recording costs.
  void set_records_operations(bool wanted) { records_operations_ = wanted; }
  // The ring of operations, for its writer under the progress lock; none if they are not recorded.
  SerialRing operations() const { return records_operations_ ? operations_ : SerialRing(); }
  SerialHistograms& histograms() { return histograms_; }
  // How often this process's line of forks has begun anew; a communicator of an earlier process has another number.
  uint32_t num_forks() const { return num_forks_; }
  // The same ring as the first parent had it at the fork and goes on to write it; none without a fork.
  SerialRing operations_of_parent() const;
  uint64_t next_at_fork() const { return next_at_fork_; }
  // Any other ring; from any thread.
  SharedRing ring(RingId id) const;
  // Exact totals of the events in these rings; from any thread.
  SharedHistograms shared_histograms() const;
  // Null if there is no recorder; the same in a forked child.
  IoTotals* io_totals() const { return header_ ? &header_->io : nullptr; }

  void set_rank(int rank, int world_size);
  bool has_rank() const { return header_ && header_->rank >= 0; }
  // Adds a name. `id` 0: returns the next free number of this kind.
  uint32_t define(DefinitionKind kind, std::string_view text, uint32_t id = 0, uint16_t number = 0, int32_t extra = 0);
  // The process ends normally: nothing is left behind. Where no recorder was made, none is.
  static void end_process();

 private:
  Recorder();
  void lay_out();
  Event* events_of(const RingHeader& ring) const;
  void add_definition(DefinitionKind kind, std::string_view text, uint32_t id, uint16_t number, int32_t extra);
  void start_in_child();
  void end();

  RecorderMemory memory_;
  RegionHeader* header_ = nullptr;
  SerialRing operations_;
  bool records_operations_ = true;
  SerialHistograms histograms_;
  std::mutex definitions_mutex_;
  std::atomic<uint32_t> next_id_ = 1;
  uint32_t num_forks_ = 0;
  uint64_t next_at_fork_ = 0;  // of the first parent's ring of operations
};

// Number of this thread's definition, which has its id in the kernel.
uint16_t thread_number();

// The hooks export this function: the recorder, or null if `build` is not theirs, because then the classes may differ.
inline constexpr const char* kSharedRecorderSymbol = "hocket_recorder";
using SharedRecorder = Recorder*(const char* build);
const char* recorder_build();

}  // namespace hocket
