// Messages of schedules between ranks on several hosts: messages between two ranks of a host go through its shared
// memory, all others over a library. So a schedule with levels becomes a hierarchical algorithm.
//
// All messages from one rank to another use the same path, so they keep their order; no schedule needs more
// (executor.hpp). The lane that executes the schedule (RemoteLane) detects ranks that died or left.
#pragma once

#include <memory>
#include <vector>

#include "core/library_lane.hpp"

namespace hocket {

// Converts an error between the ranks of a host to ranks of the communicator. `numbers`: for every rank of the
// communicator, its number on the host, or -1.
Error as_seen_by_all(Error error, const std::vector<int>& numbers);

class RoutedMessages final : public LibraryLane {
 public:
  // `host`: shared by the lanes of all libraries, each of which uses tags of its own. `numbers`: for every rank, its
  // number on the host, or -1.
  RoutedMessages(std::unique_ptr<Lane> library, std::shared_ptr<Lane> host, std::vector<int> numbers)
      : LibraryLane(std::move(library)), host_(std::move(host)), numbers_(std::move(numbers)) {}

  Progress post(Operation& op) override;
  Progress test(Operation& op) override;
  std::vector<int> missing(const Operation& op) const override { return {op.root}; }
  bool cancel(Operation& op) noexcept override;
  std::optional<Error> health() override { return library_->health(); }
  void abandon(const Error& error) noexcept override { library_->abandon(error); }

 private:
  int number_of(const Operation& op) const { return numbers_[static_cast<size_t>(op.root)]; }
  template <typename Call>
  Progress call_host(Operation& op, const Call& call);

  const std::shared_ptr<Lane> host_;
  const std::vector<int> numbers_;
};

}  // namespace hocket
