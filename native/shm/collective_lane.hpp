// Collectives over shared memory.
//
// Every operation begins with one header line per rank, at the same place for every size, and every rank reads the line
// of every member before data moves (decision 2). What follows from that:
//  - A mismatch is seen by all members, which then exchange what they had wanted and raise; the operation is skipped.
//  - Two alternating sets of lines (and eager slots) suffice. Proof: a rank writes set s mod 2 for operation s + 2 only
//    after it completed s + 1, for which it read everyone's line of s + 1; everyone wrote that line only after it had
//    completed s, hence after its last read of set s.
//  - When the headers of operation s are in, every member has completed s - 1: all stages are free.
// Contributions up to kEagerBytes travel with the header, so that small operations are over when the lines are read.
#pragma once

#include <memory>
#include <vector>

#include "core/lane.hpp"
#include "reduce/reduce.hpp"
#include "shm/region.hpp"
#include "shm/task.hpp"

namespace hocket {

class CollectiveLane final : public Lane {
 public:
  explicit CollectiveLane(std::shared_ptr<Region> region);

  const char* backend() const override { return "shm"; }
  Progress post(Operation& op) override;
  Progress test(Operation& op) override;
  std::vector<int> missing(const Operation&) const override { return missing(); }
  bool cancel(Operation& op) noexcept override;
  std::optional<Error> health() override;
  void abandon(const Error& error) noexcept override { region_->post_abort(error); }
  bool is_short(const Operation& op) const override { return is_eager(op); }

 private:
  enum class Phase : uint8_t { idle, headers, task, publish_detail, details };

  uint64_t contribution(const Operation& op) const;
  bool is_eager(const Operation& op) const { return contribution(op) <= kEagerBytes; }
  const std::byte* payload(const Operation& op, int peer) const;
  std::vector<int> missing() const;
  bool read_headers(const Operation& op);
  void consume_eager(const Operation& op);
  void do_alone(const Operation& op) const;
  Task start(const Operation& op);
  Progress publish_detail(const Operation& op);
  [[noreturn]] void raise_mismatch(const Operation& op);

  // The staged algorithms, in staged.cpp.
  Task reduce_in_slices(Operation op);
  Task reduce_scatter(Operation op);
  Task all_gather(Operation op);
  Task broadcast(Operation op);
  Task all_to_all(Operation op);
  Reached staged_by(int peer, uint64_t epoch) const { return {region_->flags(peer).staged.value, epoch, peer}; }
  Reached finished_by(int peer, uint64_t epoch) const { return {region_->flags(peer).finished.value, epoch, peer}; }
  void publish_staged(uint64_t epoch) const;
  void publish_finished(uint64_t epoch) const;
  uint64_t take_epochs(uint64_t num_chunks);

  std::shared_ptr<Region> region_;
  const int rank_;
  const int size_;
  Phase phase_ = Phase::idle;
  uint64_t seq_ = 0;     // of the operation at the head of the lane
  int next_header_ = 0;  // the first so many members' headers are in
  bool agree_ = true;
  std::optional<Error> own_error_;  // why this rank could not start the operation
  Task task_;
  uint64_t epoch_ = 1;  // chunks staged by operations so far, equal on all members; 1: see Region::open
  std::vector<const std::byte*> sources_;
};

}  // namespace hocket
