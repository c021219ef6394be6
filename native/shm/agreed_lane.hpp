// A foreign library's collectives between ranks of one host: each operation is posted to the library only once all
// members are about to do the same. What would be a hang, a crash or a wrong sum inside of the library is a
// CollectiveMismatch here, and leaves the library untouched.
#pragma once

#include <list>
#include <memory>
#include <vector>

#include "core/lane.hpp"
#include "shm/agreement.hpp"
#include "shm/late_reason.hpp"

namespace hocket {

class AgreedLane final : public Lane {
 public:
  // backend: place among those of the region.
  AgreedLane(std::shared_ptr<Region> region, size_t backend, std::unique_ptr<Lane> library)
      : region_(region), agreement_(region, backend), late_(std::move(region)), library_(std::move(library)) {}

  const char* backend() const override { return library_->backend(); }
  size_t depth() const override { return library_->depth(); }
  Progress post(Operation& op) override;
  Progress test(Operation& op) override;
  std::vector<int> missing(const Operation& op) const override;
  bool cancel(Operation& op) noexcept override;
  std::optional<Error> health() override;
  void abandon(const Error& error) noexcept override;
  std::optional<std::string> refuses(const Operation& op) const override { return library_->refuses(op); }
  // Before it is posted to the library an operation waits for peers, who ring.
  Polling polling() const override { return library_->polling(); }
  bool keeps_arrays() const override { return library_->keeps_arrays(); }

 private:
  // One operation: queued -> agreeing -> in the library. The first that is not in the library yet is agreeing.
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
  LateReason late_;
  std::unique_ptr<Lane> library_;
  Passages passages_;
  std::list<Passage*> waiting_;  // those not in the library, in issue order
};

}  // namespace hocket
