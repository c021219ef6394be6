// A library's collectives, and schedules over the library's messages: the program of an operation executes it; without
// a program, the library does.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>

#include "core/library_lane.hpp"
#include "schedule/executor.hpp"

namespace hocket {

class ScheduledLane final : public LibraryLane {
 public:
  // `messages`: a lane with its own match space (rule R4), or shared, with a tag of their own.
  ScheduledLane(std::unique_ptr<Lane> library, std::unique_ptr<Lane> messages, int rank, int size, int tag)
      : LibraryLane(std::move(library)), executor_(std::move(messages), rank, size, tag) {}

  Progress post(Operation& op) override;
  Progress test(Operation& op) override;
  std::vector<int> missing(const Operation& op) const override;
  bool cancel(Operation& op) noexcept override;
  std::optional<Error> health() override { return library_->health(); }
  void abandon(const Error& error) noexcept override { library_->abandon(error); }
  std::optional<std::string> refuses(const Operation& op) const override {
    return op.program ? std::nullopt : library_->refuses(op);
  }
  // The lane of the executor's messages may have another kind of polling than the library's collectives.
  Polling polling() const override {
    const Polling most = std::max(library_->polling(), executor_.polling());
    // A message of a schedule may complete while a blocking call waits for another one.
    return most == Polling::blocking && executor_.is_running() ? Polling::patient : most;
  }
  bool has_threads() const override { return !executor_.is_running() && library_->has_threads(); }
  // Schedules reduce and move blocks on the host.
  bool takes_memory(const Operation& op) const override {
    return op.program ? !op.device && executor_.takes_memory(op) : library_->takes_memory(op);
  }

 private:
  Executor executor_;          // runs the first of runs_
  std::deque<uint64_t> runs_;  // sequence numbers of operations with a program, in issue order
};

}  // namespace hocket
