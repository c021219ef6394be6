// How the members of a communicator make sure that they are about to do the same operation: each writes one line, and
// reads the line of everyone (docs/decisions/collectives-complete-after-all-have-entered.md). A lane has one agreement,
// and its operations pass through it one at a time, in issue order.
//
// Two alternating sets of lines suffice. Proof: a member writes set r mod 2 for round r + 2 only after it had finished
// round r + 1, for which it read everyone's line of r + 1; everyone wrote that line only after it had finished round r,
// hence after its last read of set r. A round is finished when all lines were read and their payloads used.
//
// A line carries the number of its operation in the issue order. A member that put that operation on another lane has
// no line for it here; what it issued instead stands in Region::issued. The round is undone then by all members that
// began it: their next operation writes the same set again, and nobody takes an old line for a new one, as the number
// is another.
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

  // Of operations that are not eager.
  static constexpr size_t kMostPayload = kInlineBytes - sizeof(uint64_t);
  // Where a member's contribution to this round lies: in its line, or in its eager slot.
  std::byte* payload(int peer, uint64_t nbytes) const {
    return nbytes <= kInlineBytes ? region_->line(lane_, round_, peer).payload : region_->eager(round_, peer);
  }
  // Publishes this member's line; its payload is there already. A refusal says why this member cannot take part.
  void begin(const Operation& op, std::optional<Error> refusal = std::nullopt) {
    HeaderLine& line = region_->line(lane_, round_, region_->rank);
    // Where a round was undone, a member may still look at this line for its sake: who reads the new fingerprint sees
    // at least the zero.
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
  // done: everyone is about to do the same; finish() follows once the payloads were used. Throws on all members if not:
  // CollectiveMismatch, or what a member's refusal says; the round is over then.
  Progress look(const Operation& op) {
    if (phase_ != Phase::lines) return look_at_details(op);
    const uint64_t mine = region_->line(lane_, round_, region_->rank).fingerprint.load(std::memory_order_relaxed);
    for (; next_line_ < region_->size; ++next_line_) {
      const HeaderLine& line = region_->line(lane_, round_, next_line_);
      if (line.seq.load(std::memory_order_acquire) != op.seq) return look_for_stray(op);
      const uint64_t theirs = line.fingerprint.load(std::memory_order_acquire);
      if (line.seq.load(std::memory_order_relaxed) != op.seq) return look_for_stray(op);
      if (theirs != mine) agree_ = false;
    }
    if (op.kind == OpKind::all_to_allv && agree_) agree_ = is_balanced();
    return agree_ ? Progress::done : look_at_details(op);
  }
  void finish() {
    phase_ = Phase::closed;
    ++round_;
  }
  // Forgets the round that was begun.
  void cancel() {
    phase_ = Phase::closed;
    refusal_.reset();
  }

  std::vector<int> missing() const;
  // Of an open round: the members that it waits for and that left, or any that died, or an abort.
  std::optional<Error> health();

 private:
  static constexpr uint64_t kRefused = 0;  // never a fingerprint
  // Where in its line's payload a member puts the balance of its all_to_allv, which is never eager.
  static constexpr size_t kBalanceAt = kMostPayload;
  enum class Phase : uint8_t { closed, lines, publish_detail, details };
  bool is_balanced() const;
  Progress look_for_stray(const Operation& op);
  Progress look_at_details(const Operation& op);
  void publish_detail(const Operation& op);
  [[noreturn]] void raise_mismatch(const Operation& op);

  std::shared_ptr<Region> region_;
  const size_t lane_;
  Phase phase_ = Phase::closed;
  uint64_t round_ = 0;
  uint64_t seq_ = 0;   // of the operation of this round
  int next_line_ = 0;  // the first so many members' lines are in
  bool agree_ = true;
  bool look_for_stray_ = false;
  std::optional<Error> refusal_;
};

}  // namespace hocket
