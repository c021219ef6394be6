// Where the blocks of an operation are in memory: in its arrays, or in scratch memory.
#pragma once

#include <memory>

#include "core/operation.hpp"
#include "schedule/program.hpp"

namespace hocket {

// Divides arrays like hocket.collectives.blocks: whole items, sizes as equal as possible, larger parts first.
class Slots {
 public:
  Slots(const Operation& op, const Program& program, int rank);

  uint64_t nbytes(int32_t block) const { return place_of(block).nbytes; }
  // The rank's input for a segment.
  const std::byte* input(const Segment& segment) const;
  // Memory of results and of blocks in transit.
  std::byte* home(const Segment& segment) const;
  const std::byte* content(const Segment& segment) const {
    return segment.reads_input ? input(segment) : home(segment);
  }
  // Copies the data that no step moves: a rank's own block of all_gather, the input of a reduction that is not in
  // place, and the input of a single rank.
  void copy_own_input() const;
  // Leaks the scratch memory, because a library may continue to write to it.
  void leak_scratch() { static_cast<void>(scratch_.release()); }

 private:
  bool has_blocks() const;
  // The place of a block in the array that its slot represents.
  Block place_of(int32_t block) const;
  Block part_of(Block whole, int32_t part, int32_t num_parts) const;

  const Operation& op_;
  const int rank_;
  const int size_;
  const int32_t num_blocks_;
  const int32_t num_array_slots_;
  const OpKind kind_;
  uint64_t scratch_begin_ = 0;  // offset of the further slots, behind scratch memory that replaces an array
  uint64_t room_ = 0;           // bytes of each further slot
  std::unique_ptr<std::byte[]> scratch_;
};

}  // namespace hocket
