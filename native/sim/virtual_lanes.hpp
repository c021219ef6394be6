// The lanes of a communicator between virtual ranks.
//
//  - A collective begins once all members have posted it and their connections are free. It takes the time that Costs
//    gives, and ends on all members at the same time.
//  - A message of the program begins once it is sent and both connections are free. Its receive completes when the
//    message has arrived and the receive is posted. Messages are buffered, so sends never wait for receives.
//  - Messages of schedules begin in the order of their sender's sends and their receiver's receives, as in
//    hocket.collectives.simulate: so a schedule takes the same time here as in that simulation.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "core/lane.hpp"
#include "sim/virtual_ranks.hpp"

namespace hocket::sim {

class PendingCollective;
class Message;
struct Posted;

// The state that the members of one communicator share; protected by the lock of VirtualRanks.
struct Group : std::enable_shared_from_this<Group> {
  Group(VirtualRanks& ranks_, uint64_t key_, std::vector<int> members_)
      : ranks(ranks_), key(key_), members(std::move(members_)), ports(members.size()), has_left(members.size()) {}

  int size() const { return static_cast<int>(members.size()); }
  int number(int rank) const { return members[static_cast<size_t>(rank)]; }  // rank in the job
  double now_s(int rank) const { return ranks.now_s(number(rank)); }
  // Ends an operation, with success or an error.
  void end(Posted& posted, double end_s, std::optional<Error> error = std::nullopt) const;
  // Messages of the program from one rank to another with one tag, and the receives for them.
  struct Channel {
    std::deque<std::shared_ptr<Message>> messages;
    std::deque<std::shared_ptr<Posted>> receives;
  };
  void match(Channel& channel) const;
  void deliver(const Message& message, Posted& receive) const;
  // Messages of schedules that a rank must send and receive, in issue order.
  struct Port {
    std::deque<std::shared_ptr<Message>> sends;
    std::deque<std::shared_ptr<Posted>> receives;
    double sends_from_s = 0, receives_from_s = 0;  // time at which the current first one became the first
  };
  // Makes messages due that are first at both ends, starting with the sends and receives of `rank`.
  void connect(int rank);
  Error peer_failure(int rank) const;
  void leave(int rank);
  void fail(int rank, const Error& error);
  std::optional<Error> failure_as_seen_by(int rank) const;

  VirtualRanks& ranks;
  const uint64_t key;
  const std::vector<int> members;
  std::map<uint64_t, std::shared_ptr<PendingCollective>> collectives;  // by sequence number
  std::map<std::tuple<int, int, int>, Channel> channels;               // by source, destination and tag
  std::vector<Port> ports;                                             // by rank
  std::vector<bool> has_left;
  bool has_any_left = false;
  std::optional<Error> failure;
};

// One member's operation.
struct Posted {
  Operation op;
  int rank;
  double posted_s;
  std::optional<double> end_s = std::nullopt;  // set once known
  std::optional<Error> error = std::nullopt;
  bool is_dropped = false;
};

// A collective and its members' operations.
class PendingCollective final : public Due {
 public:
  explicit PendingCollective(Group& group) : posted_(group.members.size()), group_(group) {}
  // Returns true once all members have posted.
  bool post(const std::shared_ptr<Posted>& posted);
  std::vector<int> missing() const;
  double ready_s() const;
  void prepare(const Costs& costs) override;
  void settle() override;
  // Ends it with an error, because a member will never post it.
  void fail(double end_s, const Error& error);

 private:
  void move_data() const;
  bool is_dropped() const;
  bool agrees() const;
  std::string mismatch_text() const;

  std::vector<std::shared_ptr<Posted>> posted_;  // by rank
  size_t num_posted_ = 0;
  Group& group_;
  double seconds_ = 0;
};

class Message final : public Due {
 public:
  Message(Group& group, std::shared_ptr<Posted> send) : group_(group), send_(std::move(send)) {}
  void prepare(const Costs& costs) override;
  void settle() override;
  // For messages of schedules: the receive, which is known before the message begins.
  void set_receive(std::shared_ptr<Posted> receive) { receive_ = std::move(receive); }
  std::optional<double> arrived_s() const { return arrived_s_; }
  // The send operation; its arrays may be gone, the payload is data().
  const Operation& op() const { return send_->op; }
  int source() const { return send_->rank; }
  double posted_s() const { return send_->posted_s; }
  const std::vector<std::byte>& data() const { return data_; }

 private:
  Group& group_;
  const std::shared_ptr<Posted> send_;
  std::shared_ptr<Posted> receive_;
  MessageCost cost_;
  std::vector<std::byte> data_;
  std::optional<double> arrived_s_;
};

class VirtualLane : public Lane {
 public:
  VirtualLane(std::shared_ptr<VirtualRanks> ranks, std::shared_ptr<Group> group, int rank)
      : ranks_(std::move(ranks)), group_(std::move(group)), rank_(rank) {}
  const char* backend() const override { return "sim"; }
  size_t depth() const override { return SIZE_MAX; }
  Progress test(Operation& op) override;
  bool cancel(Operation& op) noexcept override;
  std::optional<Error> health() override;
  void abandon(const Error& error) noexcept override;

 protected:
  std::shared_ptr<Posted> hold(Operation& op) const;
  void check_failure() const;

  const std::shared_ptr<VirtualRanks> ranks_;
  const std::shared_ptr<Group> group_;
  const int rank_;
};

class VirtualCollectives final : public VirtualLane {
 public:
  using VirtualLane::VirtualLane;
  ~VirtualCollectives() override;
  Progress post(Operation& op) override;
  std::vector<int> missing(const Operation& op) const override;
};

// Messages of the program.
class VirtualMessages final : public VirtualLane {
 public:
  using VirtualLane::VirtualLane;
  Progress post(Operation& op) override;
  bool cancel(Operation& op) noexcept override;
  std::vector<int> missing(const Operation& op) const override { return {op.root}; }
};

// Messages of schedules.
class VirtualTransfers final : public VirtualLane {
 public:
  using VirtualLane::VirtualLane;
  Progress post(Operation& op) override;
  std::vector<int> missing(const Operation& op) const override { return {op.root}; }
};

}  // namespace hocket::sim
