// A foreign library's collectives between ranks of one host: an operation is posted to the library only after all
// members have agreed on it. A mismatch that would be a hang, a crash or a wrong sum inside the library raises
// CollectiveMismatch here and does not reach the library.
#pragma once

#include <list>
#include <memory>
#include <vector>

#include "core/library_lane.hpp"
#include "core/watched_lane.hpp"
#include "shm/agreement.hpp"

namespace hocket {

class AgreedLane final : public LibraryLane {
 public:
  // backend: index among the region's backends.
  AgreedLane(std::shared_ptr<Region> region, size_t backend, std::unique_ptr<Lane> library)
      : LibraryLane(std::make_unique<WatchedLane>(region, std::move(library))),
        region_(region),
        agreement_(std::move(region), backend) {}

  Progress post(Operation& op) override;
  Progress test(Operation& op) override;
  std::vector<int> missing(const Operation& op) const override;
  bool cancel(Operation& op) noexcept override;
  std::optional<Error> health() override;
  void abandon(const Error& error) noexcept override { library_->abandon(error); }

 private:
  // One operation: queued -> agreeing -> in the library. Only the first one that is not yet in the library is agreeing.
  struct Passage {
    bool in_library = false;
    void* token = nullptr;  // the library's
  };
  using Passages = std::list<Passage>;
  Passage& passage_of(const Operation& op) const { return *static_cast<Passage*>(op.token); }
  bool is_next(const Passage& passage) const { return !waiting_.empty() && waiting_.front() == &passage; }
  void forget(Operation& op);
  Progress in_library(Operation& op, Progress (Lane::*call)(Operation&));

  std::shared_ptr<Region> region_;
  Agreement agreement_;
  Passages passages_;
  std::list<Passage*> waiting_;  // passages not yet in the library, in issue order
};

}  // namespace hocket
