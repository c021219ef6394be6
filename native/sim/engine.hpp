// The project's one discrete-event engine: tasks that wait for each other, hold resources and share links, on a virtual
// clock. Collective schedules, pipelines and networks are lowered to it.
//
// A task may begin once all tasks it comes after are over and all of its resources have room. It takes its duration;
// a task with bytes to carry then moves them over its links, all at once, and ends when they have arrived. Links are
// shared max-min fairly: no flow gets more at the cost of one that has less (Bertsekas and Gallager, Data Networks,
// 1992, section 6.5.2). Resources are held from the beginning to the end.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace hocket::sim {

// For each of so many things the numbers of others; `pairs` in any order, kept in order of the second number.
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
  std::vector<double> nbytes;      // that it carries over its links afterwards
  Incidence after;                 // the tasks that have to be over first
  Incidence uses;                  // its resources
  Incidence crosses;               // its links
  std::vector<int32_t> capacity;   // of every resource: tasks that it holds at a time
  std::vector<uint8_t> in_order;   // of every resource: whether its tasks begin in the order of their numbers
  std::vector<double> bandwidth;   // of every link, in bytes per second
};

struct Timeline {
  std::vector<double> begin_s;  // of every task; negative: it never began
  std::vector<double> end_s;
  std::vector<double> link_bytes;
  std::vector<double> busy_s;  // of every resource, summed over what it holds
  int64_t num_over = 0;        // tasks; less than there are if some wait for each other
};

Timeline simulate(const TaskGraph& graph);

}  // namespace hocket::sim
