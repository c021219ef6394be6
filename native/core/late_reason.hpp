// A library that loses a connection knows no more than that; why, the kernel tells a moment later. An operation that a
// library gave up is kept here for that moment: a member that died is the reason, whatever the library says.
#pragma once

#include <algorithm>
#include <list>
#include <memory>

#include "core/clock.hpp"
#include "core/lane.hpp"
#include "core/peers.hpp"

namespace hocket {

class LateReason {
 public:
  explicit LateReason(std::shared_ptr<const Peers> peers) : peers_(std::move(peers)) {}

  // Calls the library; what it fails with becomes the operation's state here, if a death may be behind it.
  template <typename Call>
  Progress guard(Operation& op, Call&& call) {
    try {
      return call();
    } catch (const Failure& failure) {
      if (failure.error().code != ErrorCode::aborted) throw;
      held_.push_back({failure.error(), now_ns()});
      op.token = &held_.back();
      return Progress::moved;
    }
  }
  bool holds(const Operation& op) const {
    return std::any_of(held_.begin(), held_.end(), [&](const Held& held) { return &held == op.token; });
  }
  Progress look(Operation& op) {
    constexpr int64_t kMomentNs = 500'000'000;
    const Held& held = *static_cast<Held*>(op.token);
    const std::optional<Error> reason = peers_->look_at_peers();
    if (!reason && now_ns() - held.since_ns < kMomentNs) return Progress::waiting;
    const Error error = reason ? *reason : held.error;
    drop(op);
    throw Failure(error);
  }
  void drop(Operation& op) {
    held_.remove_if([&](const Held& held) { return &held == op.token; });
    op.token = nullptr;
  }

 private:
  struct Held {
    Error error;
    int64_t since_ns;
  };
  std::shared_ptr<const Peers> peers_;
  std::list<Held> held_;
};

}  // namespace hocket
