#include "sim/engine.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <set>

namespace hocket::sim {

Incidence::Incidence(size_t num_things, std::span<const int32_t> things, std::span<const int32_t> others)
    : offsets_(num_things + 1), items_(others.size()) {
  for (const int32_t thing : things) ++offsets_[static_cast<size_t>(thing) + 1];
  for (size_t i = 0; i < num_things; ++i) offsets_[i + 1] += offsets_[i];
  std::vector<size_t> next(offsets_.begin(), offsets_.end() - 1);
  for (size_t i = 0; i < others.size(); ++i) items_[next[static_cast<size_t>(things[i])]++] = others[i];
  for (size_t i = 0; i < num_things; ++i)
    std::sort(items_.begin() + static_cast<std::ptrdiff_t>(offsets_[i]),
              items_.begin() + static_cast<std::ptrdiff_t>(offsets_[i + 1]));
}

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Relative tolerance: flows that should end together do so in spite of rounding.
constexpr double kRounding = 1e-9;

// The transposed relation: for each of the others, the things that refer to it.
Incidence transposed(const Incidence& incidence, size_t num_things, size_t num_others) {
  std::vector<int32_t> things, others;
  things.reserve(incidence.size());
  others.reserve(incidence.size());
  for (size_t thing = 0; thing < num_things; ++thing)
    for (const int32_t other : incidence.of(static_cast<int32_t>(thing))) {
      things.push_back(static_cast<int32_t>(thing));
      others.push_back(other);
    }
  return Incidence(num_others, others, things);
}

// The flows in progress: bytes left and rates.
class Flows {
 public:
  explicit Flows(const TaskGraph& graph)
      : graph_(graph), residual_(graph.bandwidth.size()), num_on_(graph.bandwidth.size()) {}

  void add(int32_t task) {
    flows_.push_back({task, graph_.nbytes[static_cast<size_t>(task)], 0.0});
    is_stale_ = true;
  }
  // Time at which the next flows end, if no flow is added before.
  double next_end(double now) {
    if (flows_.empty()) return kNever;
    if (is_stale_) share();
    double soonest = kNever;
    for (const Flow& flow : flows_) soonest = std::min(soonest, flow.left / flow.rate);
    return now + soonest;
  }
  // Advances the time. With `to_end`, removes the flows that end first and adds their tasks to `arrived`.
  void advance(double seconds, bool to_end, std::vector<int32_t>& arrived) {
    double soonest = kNever;
    if (to_end)
      for (const Flow& flow : flows_) soonest = std::min(soonest, flow.left / flow.rate);
    for (Flow& flow : flows_) {
      const double left =
          flow.left - flow.rate * seconds;  // inexact: late on the clock, a short interval has few digits
      const bool ends = to_end && (left <= 0.0 || flow.left / flow.rate <= soonest * (1 + kRounding));
      flow.left = ends ? 0.0 : std::max(0.0, left);
      if (ends) arrived.push_back(flow.task);
    }
    if (!to_end) return;
    std::erase_if(flows_, [](const Flow& flow) { return flow.left == 0.0; });
    is_stale_ = true;
  }

 private:
  struct Flow {
    int32_t task;
    double left;
    double rate;
  };

  // Progressive filling: the link with the smallest share per flow fixes the rates of its flows; the other flows share
  // the remaining bandwidth in the same way.
  void share() {
    is_stale_ = false;
    std::vector<std::vector<size_t>> flows_on(residual_.size());
    std::vector<int32_t> links;
    for (size_t i = 0; i < flows_.size(); ++i) {
      flows_[i].rate = -1.0;
      for (const int32_t link : graph_.crosses.of(flows_[i].task)) {
        std::vector<size_t>& on = flows_on[static_cast<size_t>(link)];
        if (on.empty()) links.push_back(link);
        on.push_back(i);
      }
    }
    using Entry = std::pair<double, int32_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> by_share;
    const auto push = [&](int32_t link) {
      const auto l = static_cast<size_t>(link);
      if (num_on_[l] > 0) by_share.emplace(residual_[l] / static_cast<double>(num_on_[l]), link);
    };
    for (const int32_t link : links) {
      const auto l = static_cast<size_t>(link);
      residual_[l] = graph_.bandwidth[l];
      num_on_[l] = flows_on[l].size();
      push(link);
    }
    while (!by_share.empty()) {
      const auto [share, link] = by_share.top();
      by_share.pop();
      const auto l = static_cast<size_t>(link);
      if (num_on_[l] == 0 || share != residual_[l] / static_cast<double>(num_on_[l])) continue;  // an outdated entry
      for (const size_t i : flows_on[l]) {
        if (flows_[i].rate >= 0) continue;
        flows_[i].rate = share;
        for (const int32_t other : graph_.crosses.of(flows_[i].task)) {
          const auto o = static_cast<size_t>(other);
          residual_[o] = std::max(0.0, residual_[o] - share);
          --num_on_[o];
          if (o != l) push(other);
        }
      }
    }
  }

  const TaskGraph& graph_;
  std::vector<Flow> flows_;
  std::vector<double> residual_;
  std::vector<size_t> num_on_;
  bool is_stale_ = false;
};

class Simulation {
 public:
  explicit Simulation(const TaskGraph& graph)
      : graph_(graph),
        num_tasks_(graph.duration_s.size()),
        followers_(transposed(graph.after, num_tasks_, num_tasks_)),
        users_(transposed(graph.uses, num_tasks_, graph.capacity.size())),
        num_before_(num_tasks_),
        ready_s_(num_tasks_),
        room_(graph.capacity),
        next_user_(graph.capacity.size()),
        waiting_(graph.capacity.size()),
        flows_(graph) {
    timeline_.begin_s.assign(num_tasks_, -1.0);
    timeline_.end_s.assign(num_tasks_, -1.0);
    timeline_.link_bytes.assign(graph.bandwidth.size(), 0.0);
    timeline_.busy_s.assign(graph.capacity.size(), 0.0);
  }

  Timeline run() {
    for (size_t task = 0; task < num_tasks_; ++task)
      num_before_[task] = graph_.after.of(static_cast<int32_t>(task)).size();
    for (size_t task = 0; task < num_tasks_; ++task)
      if (num_before_[task] == 0) set_ready(static_cast<int32_t>(task));
    std::vector<int32_t> arrived;
    while (true) {
      const double flow_end = flows_.next_end(now_);
      const double event = events_.empty() ? kNever : events_.top().first;
      const double next = std::min(flow_end, event);
      if (next == kNever) break;
      arrived.clear();
      flows_.advance(next - now_, flow_end <= event, arrived);
      now_ = next;
      for (const int32_t task : arrived) finish(task);
      while (!events_.empty() && events_.top().first <= now_) {
        const int32_t task = events_.top().second;
        events_.pop();
        const auto t = static_cast<size_t>(task);
        if (graph_.nbytes[t] > 0 && !graph_.crosses.of(task).empty())
          flows_.add(task);
        else
          finish(task);
      }
    }
    return std::move(timeline_);
  }

 private:
  void set_ready(int32_t task) {
    ready_s_[static_cast<size_t>(task)] = now_;
    if (try_begin(task)) return;
    for (const int32_t resource : graph_.uses.of(task))
      if (!graph_.in_order[static_cast<size_t>(resource)]) waiting_[static_cast<size_t>(resource)].emplace(now_, task);
  }

  bool try_begin(int32_t task) {
    const auto t = static_cast<size_t>(task);
    if (num_before_[t] != 0 || timeline_.begin_s[t] >= 0) return false;
    for (const int32_t resource : graph_.uses.of(task)) {
      const auto r = static_cast<size_t>(resource);
      if (room_[r] == 0 || (graph_.in_order[r] && users_.of(resource)[next_user_[r]] != task)) return false;
    }
    timeline_.begin_s[t] = now_;
    events_.emplace(now_ + graph_.duration_s[t], task);
    for (const int32_t resource : graph_.uses.of(task)) {
      const auto r = static_cast<size_t>(resource);
      --room_[r];
      if (graph_.in_order[r])
        ++next_user_[r];
      else
        waiting_[r].erase({ready_s_[t], task});
    }
    for (const int32_t resource : graph_.uses.of(task)) begin_waiting_tasks(resource);
    return true;
  }

  // Starts waiting tasks of a resource if they can begin; called when the resource's state has changed.
  void begin_waiting_tasks(int32_t resource) {
    const auto r = static_cast<size_t>(resource);
    if (room_[r] == 0) return;
    if (graph_.in_order[r]) {
      const auto users = users_.of(resource);
      if (next_user_[r] < users.size()) try_begin(users[next_user_[r]]);
      return;
    }
    for (bool again = true; again && room_[r] > 0;) {
      again = false;
      for (const auto& [since, task] : waiting_[r])
        if (try_begin(task)) {  // changes the set, so start over
          again = true;
          break;
        }
    }
  }

  void finish(int32_t task) {
    const auto t = static_cast<size_t>(task);
    timeline_.end_s[t] = now_;
    ++timeline_.num_over;
    for (const int32_t link : graph_.crosses.of(task))
      timeline_.link_bytes[static_cast<size_t>(link)] += graph_.nbytes[t];
    for (const int32_t resource : graph_.uses.of(task)) {
      ++room_[static_cast<size_t>(resource)];
      timeline_.busy_s[static_cast<size_t>(resource)] += now_ - timeline_.begin_s[t];
    }
    for (const int32_t follower : followers_.of(task))
      if (--num_before_[static_cast<size_t>(follower)] == 0) set_ready(follower);
    for (const int32_t resource : graph_.uses.of(task)) begin_waiting_tasks(resource);
  }

  using Event = std::pair<double, int32_t>;

  const TaskGraph& graph_;
  const size_t num_tasks_;
  const Incidence followers_;
  const Incidence users_;
  std::vector<size_t> num_before_;
  std::vector<double> ready_s_;
  std::vector<int32_t> room_;
  std::vector<size_t> next_user_;
  std::vector<std::set<Event>> waiting_;  // for unordered resources: waiting tasks, longest wait first
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  Flows flows_;
  Timeline timeline_;
  double now_ = 0.0;
};

}  // namespace

Timeline simulate(const TaskGraph& graph) { return Simulation(graph).run(); }

}  // namespace hocket::sim
