// The agreement: how the members of a communicator check that all of them start the same operation
// (docs/decisions/collectives-complete-after-all-have-entered.md). Each member writes one header line and reads the
// lines of all members; this is one round. A lane has one agreement, and its operations go through it one at a time, in
// issue order.
//
// Two alternating sets of lines are enough. Proof: a member writes set r mod 2 for round r + 2 only after it has
// finished round r + 1, so it has read every member's line of round r + 1. Each member wrote that line only after it
// had finished round r, hence after its last read of set r mod 2 for round r. A round is finished when all lines have
// been read and their payloads used.
//
// A line carries the sequence number of its operation in the issue order. A member that put this operation on another
// lane writes no line for it here; Region::issued holds the operation. Then all members that began the round undo it:
// their next operation writes the same set again. No member takes an old line for a new one, because the sequence
// numbers differ.
#pragma once

#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "core/lane.hpp"
#include "shm/region.hpp"

namespace hocket {

class Agreement {
 public:
  Agreement(std::shared_ptr<Region> region, size_t lane) : region_(std::move(region)), lane_(lane) {}

  bool is_open() const { return phase_ != Phase::closed; }
  uint64_t round() const { return round_; }

  // Payload of operations that are not eager.
  static constexpr size_t kMostPayload = kInlineBytes - sizeof(uint64_t);
  // A member's contribution to this round: in its line, or in its eager slot.
  std::byte* payload(int peer, uint64_t nbytes) const {
    return nbytes <= kInlineBytes ? region_->line(lane_, round_, peer).payload : region_->eager(round_, peer);
  }
  // Publishes this member's line; the payload is already written. `refusal`: why this member cannot take part.
  void begin(const Operation& op, std::optional<Error> refusal = std::nullopt) {
    HeaderLine& line = region_->line(lane_, round_, region_->rank);
    // If the last round was undone, another member may still be reading this line for it: a reader that sees the new
    // fingerprint (release) also sees this zero.
    line.seq.store(0, std::memory_order_relaxed);
    if (op.kind == OpKind::all_to_allv) {
      const uint64_t balance = balance_of(*op.blocks, region_->rank);
      std::memcpy(line.payload + kBalanceAt, &balance, sizeof balance);
    }
    line.fingerprint.store(refusal ? kRefused : fingerprint(op), std::memory_order_release);
    line.seq.store(op.seq, std::memory_order_release);
    region_->ring_peers();
    phase_ = Phase::lines;
    seq_ = op.seq;
    next_line_ = 0;
    agree_ = !refusal;
    refusal_ = std::move(refusal);
  }
  // Returns done if all members agree; finish() must follow after the use of the payloads. If they do not agree, throws
  // CollectiveMismatch, or the error of a member's refusal, on all members; this ends the round.
  Progress test(const Operation& op) {
    if (phase_ != Phase::lines) return exchange_details(op);
    const uint64_t mine = region_->line(lane_, round_, region_->rank).fingerprint.load(std::memory_order_relaxed);
    for (; next_line_ < region_->size; ++next_line_) {
      const HeaderLine& line = region_->line(lane_, round_, next_line_);
      if (line.seq.load(std::memory_order_acquire) != op.seq) return check_for_stray(op);
      const uint64_t theirs = line.fingerprint.load(std::memory_order_acquire);
      if (line.seq.load(std::memory_order_relaxed) != op.seq) return check_for_stray(op);
      if (theirs != mine) agree_ = false;
    }
    if (op.kind == OpKind::all_to_allv && agree_) agree_ = is_balanced();
    return agree_ ? Progress::done : exchange_details(op);
  }
  void finish() {
    phase_ = Phase::closed;
    ++round_;
  }
  // Undoes the round that was begun.
  void cancel() {
    phase_ = Phase::closed;
    refusal_.reset();
  }

  std::vector<int> missing() const;
  // An abort, a member that died, or, in an open round, an awaited member that left.
  std::optional<Error> health();

 private:
  static constexpr uint64_t kRefused = 0;  // never a fingerprint
  // Offset in the line's payload of the balance of an all_to_allv, which is never eager.
  static constexpr size_t kBalanceAt = kMostPayload;
  enum class Phase : uint8_t { closed, lines, publish_detail, details };
  bool is_balanced() const;
  Progress check_for_stray(const Operation& op);
  Progress exchange_details(const Operation& op);
  void publish_detail(const Operation& op);
  [[noreturn]] void raise_mismatch(const Operation& op);

  std::shared_ptr<Region> region_;
  const size_t lane_;
  Phase phase_ = Phase::closed;
  uint64_t round_ = 0;
  uint64_t seq_ = 0;   // of the operation of this round
  int next_line_ = 0;  // the lines of members [0, next_line_) have arrived
  bool agree_ = true;
  bool is_stray_check_due_ = false;
  std::optional<Error> refusal_;
};

}  // namespace hocket
