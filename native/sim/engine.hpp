// The project's only discrete-event engine: tasks depend on each other, hold resources and share links, on a virtual
// clock. Collective schedules, pipelines and networks are lowered to it.
//
// A task can begin once its predecessors are finished and all of its resources have room. It first takes its duration.
// A task with bytes then moves them over all of its links at the same time, and ends when they have arrived. Links are
// shared max-min fairly: no flow gets more at the cost of a flow that has less (Bertsekas and Gallager, Data Networks,
// 1992, section 6.5.2). A task holds its resources from its begin to its end.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace hocket::sim {

// A relation: for each thing, the sorted numbers of others. Pair i is (things[i], others[i]); pairs may be in any
// order.
class Incidence {
 public:
  Incidence() = default;
  Incidence(size_t num_things, std::span<const int32_t> things, std::span<const int32_t> others);
  std::span<const int32_t> of(int32_t thing) const {
    const auto i = static_cast<size_t>(thing);
    return {items_.data() + offsets_[i], offsets_[i + 1] - offsets_[i]};
  }
  size_t size() const { return items_.size(); }

 private:
  std::vector<size_t> offsets_;
  std::vector<int32_t> items_;
};

struct TaskGraph {
  std::vector<double> duration_s;  // of every task
  std::vector<double> nbytes;      // of every task: bytes that it moves over its links afterwards
  Incidence after;                 // of every task: its predecessors
  Incidence uses;                  // of every task: its resources
  Incidence crosses;               // of every task: its links
  std::vector<int32_t> capacity;   // of every resource: number of tasks that may hold it at a time
  std::vector<uint8_t> in_order;   // of every resource: whether its tasks begin in the order of their numbers
  std::vector<double> bandwidth;   // of every link, in bytes per second
};

struct Timeline {
  std::vector<double> begin_s;  // of every task; negative: it never began
  std::vector<double> end_s;
  std::vector<double> link_bytes;
  std::vector<double> busy_s;  // of every resource, summed over the tasks that held it
  int64_t num_over = 0;        // finished tasks; fewer than all tasks if some wait for each other
};

Timeline simulate(const TaskGraph& graph);

}  // namespace hocket::sim
