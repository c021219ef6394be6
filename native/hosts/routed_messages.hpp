// Messages of schedules between ranks on several hosts: those between two ranks of a host go through its shared memory,
// the others over a library. That is what makes a hierarchy out of a schedule that has levels.
//
// What one rank sends another always goes the same way, so messages of a pair keep their order; no schedule needs more
// (executor.hpp). Who died or left is found out by the lane that executes (RemoteLane).
#pragma once

#include <memory>
#include <vector>

#include "core/library_lane.hpp"

namespace hocket {

// What went wrong between the ranks of a host, with their ranks in the communicator. `numbers`: of every rank of that
// its number on the host, or -1.
Error as_seen_by_all(Error error, const std::vector<int>& numbers);

class RoutedMessages final : public LibraryLane {
 public:
  // `host`: shared by the lanes of all libraries, which tell their messages apart by tag; `numbers`: of every rank its
  // number there, or -1.
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
