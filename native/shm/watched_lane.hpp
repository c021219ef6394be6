// A foreign library's messages between ranks of one host: what the library does not know about its peers, the region
// does.
#pragma once

#include <memory>
#include <vector>

#include "core/lane.hpp"
#include "shm/late_reason.hpp"
#include "shm/region.hpp"

namespace hocket {

class WatchedLane final : public Lane {
 public:
  WatchedLane(std::shared_ptr<Region> region, std::unique_ptr<Lane> library)
      : region_(region), late_(std::move(region)), library_(std::move(library)) {}

  const char* backend() const override { return library_->backend(); }
  size_t depth() const override { return library_->depth(); }
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
    if (std::optional<Error> error = region_->look_at_peers()) return error;
    return library_->health();
  }
  void abandon(const Error& error) noexcept override {
    region_->post_abort(error);
    library_->abandon(error);
  }
  std::optional<std::string> refuses(const Operation& op) const override { return library_->refuses(op); }
  Polling polling() const override { return library_->polling(); }
  bool keeps_arrays() const override { return library_->keeps_arrays(); }

 private:
  std::shared_ptr<Region> region_;
  LateReason late_;
  std::unique_ptr<Lane> library_;
};

}  // namespace hocket
