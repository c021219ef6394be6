// One operation over several libraries at once: each library carries a part of the array, on lanes of its own.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/lane.hpp"
#include "core/transfer_log.hpp"

namespace hocket {

// The share of an operation, from 0 to 1, that the first of two libraries carries; equal on all members (rule R8). A
// new version applies to operations that are issued after set(): the issue order is equal on all members, the time of
// posting is not.
class Shares {
 public:
  // Pairs (at most this many bytes, share), in order of size; the key for messages is OpKind::send.
  using Ranges = std::vector<std::pair<uint64_t, double>>;
  void set(std::map<OpKind, Ranges> ranges) { versions_.push_back(std::move(ranges)); }
  uint32_t version() const { return static_cast<uint32_t>(versions_.size()); }
  // Bytes of the first part: a whole number of items; ends at the end of a cache line if the array begins at one.
  uint64_t first_nbytes(const Operation& op) const;

 private:
  std::vector<std::map<OpKind, Ranges>> versions_;
};

class SplitLane final : public Lane {
 public:
  SplitLane(std::string backend, std::unique_ptr<Lane> first, std::unique_ptr<Lane> second,
            std::shared_ptr<const Shares> shares)
      : backend_(std::move(backend)), shares_(std::move(shares)) {
    lanes_.push_back(std::move(first));
    lanes_.push_back(std::move(second));
  }

  const char* backend() const override { return backend_.c_str(); }
  size_t depth() const override { return std::min(lanes_[0]->depth(), lanes_[1]->depth()); }
  void note_issue(Operation& op) override { op.shares = shares_->version(); }
  void record_as(uint32_t comm) override { comm_ = comm; }
  Progress post(Operation& op) override;
  Progress test(Operation& op) override;
  std::vector<int> missing(const Operation& op) const override;
  bool cancel(Operation& op) noexcept override;
  std::optional<Error> health() override;
  void abandon(const Error& error) noexcept override;
  std::optional<std::string> refuses(const Operation& op) const override;
  bool takes_memory(const Operation& op) const override {
    return lanes_[0]->takes_memory(op) && lanes_[1]->takes_memory(op);
  }
  Polling polling() const override { return std::max(lanes_[0]->polling(), lanes_[1]->polling()); }
  bool has_threads() const override { return lanes_[0]->has_threads() && lanes_[1]->has_threads(); }
  bool keeps_arrays() const override { return lanes_[0]->keeps_arrays() || lanes_[1]->keeps_arrays(); }

 private:
  // A library's part of an operation; no part if `lane` is null.
  struct Part {
    Lane* lane = nullptr;
    Operation op = {};
    bool is_done = false;
    Transfer transfer = {};
  };
  struct Flight {
    Part parts[2];
    bool is_done() const { return parts[0].is_done && parts[1].is_done; }
  };
  static Flight& flight_of(const Operation& op) { return *static_cast<Flight*>(op.token); }
  // Calls one library; if it fails, cancels the other library's part and ends the operation.
  Progress call(Operation& op, Part& part, Progress (Lane::*call)(Operation&));
  void forget(Operation& op);
  bool cancel_parts(Flight& flight) noexcept;

  const std::string backend_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  const std::shared_ptr<const Shares> shares_;
  std::list<Flight> flights_;
  uint32_t comm_ = 0;
  TransferLog log_;
};

}  // namespace hocket
