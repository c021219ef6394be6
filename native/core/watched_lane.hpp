// A foreign library's lane, with the state of the peers from `Peers`, which the library does not know.
//
// A library that loses a connection does not know the reason; the kernel reports a death a moment later. This lane
// holds an operation that the library aborted for that moment: if a member died, its death is the reason, whatever
// error the library reports.
#pragma once

#include <algorithm>
#include <list>
#include <memory>
#include <vector>

#include "core/clock.hpp"
#include "core/library_lane.hpp"
#include "core/peers.hpp"

namespace hocket {

class WatchedLane final : public LibraryLane {
 public:
  WatchedLane(std::shared_ptr<const Peers> peers, std::unique_ptr<Lane> library)
      : LibraryLane(std::move(library)), peers_(std::move(peers)) {}

  Progress post(Operation& op) override { return call_library(op, &Lane::post); }
  Progress test(Operation& op) override { return holds(op) ? test_held(op) : call_library(op, &Lane::test); }
  std::vector<int> missing(const Operation& op) const override {
    if (!holds(op)) return library_->missing(op);
    return is_point_to_point(op.kind) ? std::vector<int>{op.root} : std::vector<int>{};
  }
  bool cancel(Operation& op) noexcept override {
    if (!holds(op)) return library_->cancel(op);
    drop(op);
    return false;
  }
  std::optional<Error> health() override {
    if (std::optional<Error> error = peers_->check_peers()) return error;
    return library_->health();
  }
  void abandon(const Error& error) noexcept override {
    peers_->post_abort(error);
    library_->abandon(error);
  }

  // Whether the library aborted the operation and the reason is not yet known.
  bool holds(const Operation& op) const {
    return std::any_of(held_.begin(), held_.end(), [&](const Held& held) { return &held == op.token; });
  }

 private:
  struct Held {
    Error error;
    int64_t since_ns;
  };

  // Calls the library; holds its error if the death of a member may be the reason.
  Progress call_library(Operation& op, Progress (Lane::*call)(Operation&)) {
    try {
      return (library_.get()->*call)(op);
    } catch (const Failure& failure) {
      if (failure.error().code != ErrorCode::aborted) throw;
      held_.push_back({failure.error(), now_ns()});
      op.token = &held_.back();
      return Progress::moved;
    }
  }
  Progress test_held(Operation& op) {
    constexpr int64_t kMomentNs = 500'000'000;
    const Held& held = *static_cast<Held*>(op.token);
    const std::optional<Error> reason = peers_->check_peers();
    if (!reason && now_ns() - held.since_ns < kMomentNs) return Progress::waiting;
    const Error error = reason ? *reason : held.error;
    drop(op);
    throw Failure(error);
  }
  void drop(Operation& op) {
    held_.remove_if([&](const Held& held) { return &held == op.token; });
    op.token = nullptr;
  }

  const std::shared_ptr<const Peers> peers_;
  std::list<Held> held_;
};

}  // namespace hocket
