#include "sim/virtual_ranks.hpp"

#include <algorithm>

#include "sim/virtual_lanes.hpp"

namespace hocket::sim {

VirtualRanks::VirtualRanks(int num_ranks_, Costs costs, bool moves_data_)
    : num_ranks(num_ranks_), moves_data(moves_data_), costs_(std::move(costs)) {
  for (int rank = 0; rank < num_ranks; ++rank) {
    seats_.push_back(std::make_unique<Seat>(*this, rank));
    sleepers_.insert({0.0, rank});
  }
}

std::optional<Error> VirtualRanks::stopped() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

double VirtualRanks::now_s(int rank) const {
  return seats_[static_cast<size_t>(rank)]->clock_s.load(std::memory_order_relaxed);
}

std::shared_ptr<const std::atomic<uint64_t>> VirtualRanks::clock_of(int rank) {
  return seats_[static_cast<size_t>(rank)]->clock_ns;
}

void VirtualRanks::start() {
  std::unique_lock lock(mutex_);
  pass(lock);
}

void VirtualRanks::begin(int rank) {
  Seat& seat = *seats_[static_cast<size_t>(rank)];
  std::unique_lock lock(mutex_);
  wait_for_turn(lock, seat);
  Turns::mine() = &seat;
}

void VirtualRanks::end(int rank) {
  Turns::mine() = nullptr;
  seats_[static_cast<size_t>(rank)]->is_waiting = false;
  std::unique_lock lock(mutex_);
  pass(lock);
}

void VirtualRanks::leave_out(int rank) {
  Seat& seat = *seats_[static_cast<size_t>(rank)];
  const std::lock_guard lock(mutex_);
  sleepers_.erase({seat.wake_s, rank});
  seat.is_waiting = false;
}

void VirtualRanks::stop(Error error) {
  const std::lock_guard lock(mutex_);
  if (!stopped_) stopped_ = std::move(error);
}

void VirtualRanks::wait_for_turn(std::unique_lock<std::mutex>& lock, Seat& seat) {
  seat.turn.wait(lock, [&] { return running_ == seat.rank; });
}

void VirtualRanks::sleep_until(Seat& seat, double wake_s) {
  if (seat.is_waiting) sleepers_.erase({seat.wake_s, seat.rank});
  seat.is_waiting = true;
  seat.wake_s = wake_s;
  sleepers_.insert({wake_s, seat.rank});
}

void VirtualRanks::hand_on(int rank, double until_s) {
  Seat& seat = *seats_[static_cast<size_t>(rank)];
  std::unique_lock lock(mutex_);
  const double first_s = seat.ends.empty() ? until_s : std::min(until_s, *seat.ends.begin());
  sleep_until(seat, std::max(first_s, seat.clock_s.load(std::memory_order_relaxed)));
  pass(lock);
  wait_for_turn(lock, seat);
}

void VirtualRanks::pass(std::unique_lock<std::mutex>& lock) {
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
  Seat& next = *seats_[static_cast<size_t>(sleepers_.begin()->second)];
  sleepers_.erase(sleepers_.begin());
  next.is_waiting = false;
  if (!stopped_)
    next.clock_s.store(std::max(next.wake_s, next.clock_s.load(std::memory_order_relaxed)), std::memory_order_relaxed);
  next.clock_ns->store(static_cast<uint64_t>(next.clock_s.load(std::memory_order_relaxed) * 1e9 + 0.5),
                       std::memory_order_relaxed);
  running_ = next.rank;
  next.turn.notify_one();
}

void VirtualRanks::add_due(double ready_s, std::shared_ptr<Due> due, std::shared_ptr<const Group> group) {
  due_.insert({ready_s, num_due_++, std::move(due), std::move(group)});
}

void VirtualRanks::add_end(int rank, double end_s) {
  Seat& seat = *seats_[static_cast<size_t>(rank)];
  seat.ends.insert(end_s);
  wake(rank, end_s);
}

void VirtualRanks::wake(int rank, double at_s) {
  Seat& seat = *seats_[static_cast<size_t>(rank)];
  if (seat.is_waiting && at_s < seat.wake_s) sleep_until(seat, at_s);
}

void VirtualRanks::forget_end(int rank, double end_s) {
  std::multiset<double>& ends = seats_[static_cast<size_t>(rank)]->ends;
  if (const auto found = ends.find(end_s); found != ends.end()) ends.erase(found);
}

std::shared_ptr<Group> VirtualRanks::group(uint64_t key, const std::vector<int>& members) {
  std::shared_ptr<Group>& group = groups_[key];
  if (!group) group = std::make_shared<Group>(*this, key, members);
  return group;
}

}  // namespace hocket::sim
