// Ranks that are threads of one process, on a virtual clock.
//
// One thread runs at a time. Its work takes no virtual time, except computation that the program declares. A wait has
// an end, and the rank's clock is set to that end when the thread continues. The next step is always the earlier of:
//  - the rank whose wait ends first continues;
//  - the first due event is settled: an operation that all members have posted, or a message, occupies the connections
//    of its ranks and gets its end.
//
// Proof that a run depends only on the program: a rank that continues at time t posts nothing before t, and t is the
// minimum of all times; so events are settled in the order of time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/operation.hpp"
#include "core/virtual_thread.hpp"

namespace hocket::sim {

struct Group;

// The time of a message: latency_s, then occupied_s for its bytes; during occupied_s it holds its shared links.
struct MessageCost {
  double latency_s = 0;
  double occupied_s = 0;
  std::vector<int> shared = {};  // link numbers; each link carries one message at a time
};

// The cost functions; called by one thread at a time, without locks.
struct Costs {
  std::function<double(uint64_t key, const Operation& op, const std::vector<int>& members)> collective_s;
  std::function<MessageCost(int source, int destination, uint64_t nbytes)> message;
};

// An event that occupies connections from the time at which its requirements are met.
class Due {
 public:
  virtual ~Due() = default;
  virtual void prepare(const Costs& costs) = 0;  // called without the lock
  virtual void settle() = 0;                     // called under the lock
};

class VirtualRanks {
 public:
  // moves_data: if false, operations only take time and do not change arrays.
  VirtualRanks(int num_ranks, Costs costs, bool moves_data);
  VirtualRanks(const VirtualRanks&) = delete;
  VirtualRanks& operator=(const VirtualRanks&) = delete;

  const int num_ranks;
  const bool moves_data;

  // Schedules the first rank. Each rank's thread calls begin(), which returns when it is scheduled, and at last end().
  void start();
  void begin(int rank);
  void end(int rank);
  // Excludes a rank that will never begin; call before start().
  void leave_out(int rank);
  // Stops the job: all present and later waits fail with this error.
  void stop(Error error);
  std::optional<Error> stopped() const;

  double now_s(int rank) const;
  // The rank's clock in nanoseconds, for events; may outlive this object.
  std::shared_ptr<const std::atomic<uint64_t>> clock_of(int rank);

  // Bytes that the rank has sent to others and received from them, in messages (those of schedules included) and in
  // all_to_all and all_to_allv, whose blocks cannot go other ways. Operations that only take their predicted time, such
  // as an all_reduce without algorithm=, have no messages.
  std::pair<uint64_t, uint64_t> traffic(int rank) const;

  std::mutex& mutex() { return mutex_; }
  // Call all of the following under the lock.
  // The group of a communicator, which exists from its first member's arrival until all have left.
  std::shared_ptr<Group> group(uint64_t key, const std::vector<int>& members);
  void forget_group(uint64_t key) { groups_.erase(key); }
  void add_due(double ready_s, std::shared_ptr<Due> due, std::shared_ptr<const Group> group);
  // An operation of the rank ends at end_s; the rank may be waiting for it.
  void add_end(int rank, double end_s);
  void forget_end(int rank, double end_s);
  // Wakes the rank at at_s, if it would sleep longer.
  void wake(int rank, double at_s);
  // Time from which the rank's connection is free, for each direction.
  double& sends_from_s(int rank) { return threads_[static_cast<size_t>(rank)]->sends_from_s; }
  double& receives_from_s(int rank) { return threads_[static_cast<size_t>(rank)]->receives_from_s; }
  double& shared_from_s(int link) { return shared_from_s_[link]; }
  void count_bytes(int rank, uint64_t sent, uint64_t received) {
    threads_[static_cast<size_t>(rank)]->sent_nbytes += sent;
    threads_[static_cast<size_t>(rank)]->received_nbytes += received;
  }

 private:
  struct RankThread final : VirtualThread {
    RankThread(VirtualRanks& ranks_, int rank_) : ranks(ranks_), rank(rank_) {}
    double now_s() const override { return ranks.now_s(rank); }
    void sleep_until(double until_s) override { ranks.sleep_until(rank, until_s); }
    std::optional<Error> stopped() const override { return ranks.stopped(); }

    VirtualRanks& ranks;
    const int rank;
    std::atomic<double> clock_s{0};
    std::shared_ptr<std::atomic<uint64_t>> clock_ns = std::make_shared<std::atomic<uint64_t>>(0);
    bool is_waiting = true;
    double wake_s = 0;           // valid while it waits
    std::multiset<double> ends;  // end times of operations that the rank has not yet tested as done
    double sends_from_s = 0, receives_from_s = 0;
    uint64_t sent_nbytes = 0, received_nbytes = 0;
    std::condition_variable scheduled;
  };

  void sleep_until(int rank, double until_s);
  void wait_until_scheduled(std::unique_lock<std::mutex>& lock, RankThread& thread);
  // Settles the events that are due before any rank continues, then schedules the earliest rank.
  void schedule_next(std::unique_lock<std::mutex>& lock);
  void set_wake_time(RankThread& thread, double wake_s);

  const Costs costs_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<RankThread>> threads_;
  int running_ = -1;
  std::set<std::pair<double, int>> sleepers_;  // waiting ranks by wake-up time
  struct Entry {
    double ready_s;
    uint64_t number;
    std::shared_ptr<Due> due;
    std::shared_ptr<const Group> group;  // keeps the event's group alive until it is settled
    bool operator<(const Entry& other) const {
      return ready_s != other.ready_s ? ready_s < other.ready_s : number < other.number;
    }
  };
  std::set<Entry> due_;
  uint64_t num_due_ = 0;
  std::unordered_map<uint64_t, std::shared_ptr<Group>> groups_;
  std::unordered_map<int, double> shared_from_s_;
  std::optional<Error> stopped_;
};

}  // namespace hocket::sim
