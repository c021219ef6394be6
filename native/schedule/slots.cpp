#include "schedule/slots.hpp"

#include <algorithm>

#include "core/copy.hpp"

namespace hocket {

Slots::Slots(const Operation& op, const Program& program, int rank)
    : op_(op),
      rank_(rank),
      size_(program.num_ranks),
      num_blocks_(program.num_blocks),
      num_array_slots_(program.kind == OpKind::all_to_all ? 2 * program.num_ranks : program.num_blocks),
      kind_(program.kind) {
  uint64_t nbytes = 0;
  if (kind_ == OpKind::reduce_scatter)
    nbytes = op.in_nbytes(size_);
  else if (kind_ == OpKind::reduce && op.root != rank_)
    nbytes = op.nbytes;
  scratch_begin_ = nbytes;
  // Every further slot has room for any block.
  if (const int further = program.num_slots - num_array_slots_; further > 0) {
    room_ = has_blocks() ? op.largest_block() : place_of(0).nbytes;
    nbytes += static_cast<uint64_t>(further) * room_;
  }
  if (nbytes) scratch_ = std::make_unique_for_overwrite<std::byte[]>(nbytes);
}

bool Slots::has_blocks() const { return has_input_blocks(kind_) || has_output_blocks(kind_); }

Block Slots::part_of(Block whole, int32_t part, int32_t num_parts) const {
  const uint64_t item = itemsize(op_.dtype);
  const uint64_t items = whole.nbytes / item / static_cast<uint64_t>(num_parts);
  const uint64_t rest = whole.nbytes / item % static_cast<uint64_t>(num_parts);
  const auto p = static_cast<uint64_t>(part);
  return {whole.offset + (p * items + std::min(p, rest)) * item, (items + (p < rest)) * item};
}

Block Slots::place_of(int32_t block) const {
  if (kind_ == OpKind::barrier) return {0, 0};
  const int32_t parts = num_blocks_ / size_;
  if (kind_ == OpKind::all_gather) return part_of(op_.out_block(block / parts), block % parts, parts);
  if (kind_ == OpKind::reduce_scatter) return part_of(op_.in_block(block / parts), block % parts, parts);
  if (kind_ != OpKind::all_to_all) return part_of({0, op_.nbytes}, block, num_blocks_);
  const int32_t from = block / size_, to = block % size_;
  if (from == rank_) return op_.in_block(to);
  if (to == rank_) return op_.out_block(from);
  return {0, op_.nbytes};  // a block between two other ranks; all blocks have equal sizes then
}

const std::byte* Slots::input(const Segment& segment) const {
  if (kind_ == OpKind::all_to_all && segment.slot < size_) return op_.in + op_.in_block(segment.slot).offset;
  const bool is_elsewhere = kind_ == OpKind::all_gather || segment.slot >= num_array_slots_;  // a copy or scratch
  return is_elsewhere ? home(segment) : op_.in + place_of(segment.block).offset;
}

std::byte* Slots::home(const Segment& segment) const {
  if (segment.slot >= num_array_slots_)
    return scratch_.get() + scratch_begin_ + static_cast<uint64_t>(segment.slot - num_array_slots_) * room_;
  if (kind_ == OpKind::all_to_all) return op_.out + op_.out_block(segment.slot - size_).offset;
  const uint64_t offset = place_of(segment.block).offset;
  if (kind_ == OpKind::reduce_scatter) {
    const Block own = op_.in_block(rank_);
    if (segment.block / (num_blocks_ / size_) == rank_) return op_.out + (offset - own.offset);
    return scratch_.get() + offset;
  }
  if (kind_ == OpKind::reduce && op_.root != rank_) return scratch_.get() + offset;
  return op_.out + offset;
}

void Slots::copy_own_input() const {
  if (kind_ == OpKind::all_gather) {
    const Block own = op_.out_block(rank_);
    if (op_.in != op_.out + own.offset) copy_bytes(op_.out + own.offset, op_.in, own.nbytes);
    return;
  }
  if (kind_ == OpKind::reduce_scatter && size_ == 1 && op_.in != op_.out) copy_bytes(op_.out, op_.in, op_.nbytes);
  const bool is_in_place = kind_ == OpKind::all_reduce || kind_ == OpKind::scan ||
                           ((kind_ == OpKind::reduce || kind_ == OpKind::broadcast) && op_.root == rank_);
  if (is_in_place && op_.in && op_.out && op_.in != op_.out) copy_bytes(op_.out, op_.in, op_.nbytes);
}

}  // namespace hocket
