#include "sim/virtual_ranks.hpp"

#include <algorithm>

#include "sim/virtual_lanes.hpp"

namespace hocket::sim {

VirtualRanks::VirtualRanks(int num_ranks_, Costs costs, bool moves_data_)
    : num_ranks(num_ranks_), moves_data(moves_data_), costs_(std::move(costs)) {
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads_.push_back(std::make_unique<RankThread>(*this, rank));
    sleepers_.insert({0.0, rank});
  }
}

std::optional<Error> VirtualRanks::stopped() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

std::pair<uint64_t, uint64_t> VirtualRanks::traffic(int rank) const {
  const std::lock_guard lock(mutex_);
  const RankThread& thread = *threads_.at(static_cast<size_t>(rank));
  return {thread.sent_nbytes, thread.received_nbytes};
}

double VirtualRanks::now_s(int rank) const {
  return threads_[static_cast<size_t>(rank)]->clock_s.load(std::memory_order_relaxed);
}

std::shared_ptr<const std::atomic<uint64_t>> VirtualRanks::clock_of(int rank) {
  return threads_[static_cast<size_t>(rank)]->clock_ns;
}

void VirtualRanks::start() {
  std::unique_lock lock(mutex_);
  schedule_next(lock);
}

void VirtualRanks::begin(int rank) {
  RankThread& thread = *threads_[static_cast<size_t>(rank)];
  std::unique_lock lock(mutex_);
  wait_until_scheduled(lock, thread);
  VirtualThread::current() = &thread;
}

void VirtualRanks::end(int rank) {
  VirtualThread::current() = nullptr;
  threads_[static_cast<size_t>(rank)]->is_waiting = false;
  std::unique_lock lock(mutex_);
  schedule_next(lock);
}

void VirtualRanks::leave_out(int rank) {
  RankThread& thread = *threads_[static_cast<size_t>(rank)];
  const std::lock_guard lock(mutex_);
  sleepers_.erase({thread.wake_s, rank});
  thread.is_waiting = false;
}

void VirtualRanks::stop(Error error) {
  const std::lock_guard lock(mutex_);
  if (!stopped_) stopped_ = std::move(error);
}

void VirtualRanks::wait_until_scheduled(std::unique_lock<std::mutex>& lock, RankThread& thread) {
  thread.scheduled.wait(lock, [&] { return running_ == thread.rank; });
}

void VirtualRanks::set_wake_time(RankThread& thread, double wake_s) {
  if (thread.is_waiting) sleepers_.erase({thread.wake_s, thread.rank});
  thread.is_waiting = true;
  thread.wake_s = wake_s;
  sleepers_.insert({wake_s, thread.rank});
}

void VirtualRanks::sleep_until(int rank, double until_s) {
  RankThread& thread = *threads_[static_cast<size_t>(rank)];
  std::unique_lock lock(mutex_);
  const double first_s = thread.ends.empty() ? until_s : std::min(until_s, *thread.ends.begin());
  set_wake_time(thread, std::max(first_s, thread.clock_s.load(std::memory_order_relaxed)));
  schedule_next(lock);
  wait_until_scheduled(lock, thread);
}

void VirtualRanks::schedule_next(std::unique_lock<std::mutex>& lock) {
  running_ = -1;
  while (!stopped_ && !due_.empty() && (sleepers_.empty() || due_.begin()->ready_s <= sleepers_.begin()->first)) {
    const Entry entry = *due_.begin();
    due_.erase(due_.begin());
    lock.unlock();  // Costs may call Python, and another thread may hold the GIL while it waits for this lock
    std::optional<Error> error;
    try {
      entry.due->prepare(costs_);
    } catch (const Failure& failure) {
      error = failure.error();
    } catch (const std::exception& exception) {
      error = Error{ErrorCode::aborted, std::string("the simulation failed: ") + exception.what()};
    }
    lock.lock();
    if (error && !stopped_) stopped_ = std::move(error);
    if (!stopped_) entry.due->settle();
  }
  if (sleepers_.empty()) return;
  RankThread& next = *threads_[static_cast<size_t>(sleepers_.begin()->second)];
  sleepers_.erase(sleepers_.begin());
  next.is_waiting = false;
  if (!stopped_)
    next.clock_s.store(std::max(next.wake_s, next.clock_s.load(std::memory_order_relaxed)), std::memory_order_relaxed);
  next.clock_ns->store(static_cast<uint64_t>(next.clock_s.load(std::memory_order_relaxed) * 1e9 + 0.5),
                       std::memory_order_relaxed);
  running_ = next.rank;
  next.scheduled.notify_one();
}

void VirtualRanks::add_due(double ready_s, std::shared_ptr<Due> due, std::shared_ptr<const Group> group) {
  due_.insert({ready_s, num_due_++, std::move(due), std::move(group)});
}

void VirtualRanks::add_end(int rank, double end_s) {
  RankThread& thread = *threads_[static_cast<size_t>(rank)];
  thread.ends.insert(end_s);
  wake(rank, end_s);
}

void VirtualRanks::wake(int rank, double at_s) {
  RankThread& thread = *threads_[static_cast<size_t>(rank)];
  if (thread.is_waiting && at_s < thread.wake_s) set_wake_time(thread, at_s);
}

void VirtualRanks::forget_end(int rank, double end_s) {
  std::multiset<double>& ends = threads_[static_cast<size_t>(rank)]->ends;
  if (const auto found = ends.find(end_s); found != ends.end()) ends.erase(found);
}

std::shared_ptr<Group> VirtualRanks::group(uint64_t key, const std::vector<int>& members) {
  std::shared_ptr<Group>& group = groups_[key];
  if (!group) group = std::make_shared<Group>(*this, key, members);
  return group;
}

}  // namespace hocket::sim
