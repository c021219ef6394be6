// Ranks that are threads of one process, on a virtual clock.
//
// One thread runs at a time. What it does takes no time, but for computation that it says it does; what it waits for
// has an end, and its clock is put there when it goes on. The turn always goes to whoever is earliest: the rank whose
// wait ends first, or what is due first (an operation that all members have posted, a message), which then occupies the
// ranks' connections and gets its end. A rank that goes on at time t can post nothing before t, and t is the least of
// all times; so what is due is settled in the order of time, and the run depends on nothing but the program.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "core/operation.hpp"
#include "core/turns.hpp"

namespace hocket::sim {

struct Group;

// What a message takes: latency_s, then occupied_s for its bytes, for which it holds what it shares with others.
struct MessageCost {
  double latency_s = 0;
  double occupied_s = 0;
  std::vector<int> shared = {};  // numbers of links, of which each carries one message at a time
};

// Called by one thread at a time, without locks.
struct Costs {
  std::function<double(uint64_t key, const Operation& op, const std::vector<int>& members)> collective_s;
  std::function<MessageCost(int source, int destination, uint64_t nbytes)> message;
};

// Something that occupies connections from a time on at which all that it needs is there.
class Due {
 public:
  virtual ~Due() = default;
  virtual void prepare(const Costs& costs) = 0;  // without the lock
  virtual void settle() = 0;                     // under it
};

class VirtualRanks {
 public:
  // moves_data: false: only time passes, and arrays keep what they hold.
  VirtualRanks(int num_ranks, Costs costs, bool moves_data);
  VirtualRanks(const VirtualRanks&) = delete;
  VirtualRanks& operator=(const VirtualRanks&) = delete;

  const int num_ranks;
  const bool moves_data;

  // Gives the first turn. After this each rank's thread calls begin(), which returns when it has its turn, and end().
  void start();
  void begin(int rank);
  void end(int rank);
  // A rank that will never begin; before start().
  void leave_out(int rank);
  // Nobody waits for anything any more: waits, present and later ones, fail.
  void stop(Error error);
  std::optional<Error> stopped() const;

  double now_s(int rank) const;
  // In nanoseconds, for events; lives as long as whoever holds it.
  std::shared_ptr<const std::atomic<uint64_t>> clock_of(int rank);

  std::mutex& mutex() { return mutex_; }
  // All following under the lock.
  // Of the communicator with that key, from its first member's arrival until all have left.
  std::shared_ptr<Group> group(uint64_t key, const std::vector<int>& members);
  void forget_group(uint64_t key) { groups_.erase(key); }
  void add_due(double ready_s, std::shared_ptr<Due> due, std::shared_ptr<const Group> group);
  // Something that the rank waits for, maybe, ends then.
  void add_end(int rank, double end_s);
  void forget_end(int rank, double end_s);
  // It has something else to look at, then.
  void wake(int rank, double at_s);
  // When the rank's connection is free; a message is sent over one half of it.
  double& sends_from_s(int rank) { return seats_[static_cast<size_t>(rank)]->sends_from_s; }
  double& receives_from_s(int rank) { return seats_[static_cast<size_t>(rank)]->receives_from_s; }
  double& shared_from_s(int link) { return shared_from_s_[link]; }

 private:
  struct Seat final : Turns {
    Seat(VirtualRanks& ranks_, int rank_) : ranks(ranks_), rank(rank_) {}
    double now_s() const override { return ranks.now_s(rank); }
    void hand_on(double until_s) override { ranks.hand_on(rank, until_s); }
    std::optional<Error> stopped() const override { return ranks.stopped(); }

    VirtualRanks& ranks;
    const int rank;
    std::atomic<double> clock_s{0};
    std::shared_ptr<std::atomic<uint64_t>> clock_ns = std::make_shared<std::atomic<uint64_t>>(0);
    bool is_waiting = true;
    double wake_s = 0;           // while it waits
    std::multiset<double> ends;  // of what is not yet seen to be over
    double sends_from_s = 0, receives_from_s = 0;
    std::condition_variable turn;
  };

  void hand_on(int rank, double until_s);
  void wait_for_turn(std::unique_lock<std::mutex>& lock, Seat& seat);
  // Settles what is due before any rank goes on, then gives the turn to the earliest.
  void pass(std::unique_lock<std::mutex>& lock);
  void sleep_until(Seat& seat, double wake_s);

  const Costs costs_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Seat>> seats_;
  int running_ = -1;
  std::set<std::pair<double, int>> sleepers_;  // waiting seats by the time they go on
  struct Entry {
    double ready_s;
    uint64_t number;
    std::shared_ptr<Due> due;
    std::shared_ptr<const Group> group;  // that it belongs to, kept until it is settled
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
