// A foreign library's messages between ranks of one host: what the library does not know about its peers, shared memory
// does.
#pragma once

#include <memory>
#include <vector>

#include "core/late_reason.hpp"
#include "core/library_lane.hpp"
#include "core/peers.hpp"

namespace hocket {

class WatchedLane final : public LibraryLane {
 public:
  WatchedLane(std::shared_ptr<const Peers> peers, std::unique_ptr<Lane> library)
      : LibraryLane(std::move(library)), peers_(peers), late_(std::move(peers)) {}

  Progress post(Operation& op) override {
    return late_.guard(op, [&] { return library_->post(op); });
  }
  Progress test(Operation& op) override {
    if (late_.holds(op)) return late_.look(op);
    return late_.guard(op, [&] { return library_->test(op); });
  }
  std::vector<int> missing(const Operation& op) const override {
    return late_.holds(op) ? std::vector<int>{op.root} : library_->missing(op);
  }
  bool cancel(Operation& op) noexcept override {
    if (!late_.holds(op)) return library_->cancel(op);
    late_.drop(op);
    return false;
  }
  std::optional<Error> health() override {
    if (std::optional<Error> error = peers_->look_at_peers()) return error;
    return library_->health();
  }
  void abandon(const Error& error) noexcept override {
    peers_->post_abort(error);
    library_->abandon(error);
  }

 private:
  const std::shared_ptr<const Peers> peers_;
  LateReason late_;
};

}  // namespace hocket
