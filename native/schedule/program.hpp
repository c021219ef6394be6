// A collective schedule as the ranks of a communicator execute it: the table of hocket.collectives.Schedule, and what
// each rank has to do by it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/types.hpp"

namespace hocket {

struct Operation;

// A block in one of a rank's slots, on its way from or to another one.
struct Segment {
  int32_t block;
  int32_t slot;
  bool reduces;      // into what the slot holds
  bool reads_input;  // what the slot holds is the rank's input still
};

// What one rank does in one round with one other rank, or with itself.
struct Step {
  enum class Kind : uint8_t { send, receive, move };
  Kind kind;
  // Nothing that is written has to be read in the same round, or is reduced: a receive may write to its place what
  // comes as it comes, once the steps that it waits for are over, and a move may move one block after the other.
  bool is_direct;
  int32_t peer;  // rank of the schedule
  uint32_t first_segment, num_segments;
  uint32_t first_wait, num_waits;  // steps that have to be over before slots are read or written
};

// Steps by round; within a round sends come before receives, and these before moves.
struct RankProgram {
  std::vector<Step> steps;
  std::vector<Segment> segments;  // of a move: pairs, from and to
  std::vector<uint32_t> waits;
};

class Program {
 public:
  struct Row {
    int32_t round, source, destination, block, source_slot, destination_slot;
    bool reduces;
  };

  // Rows are sorted by round. Throws Failure if a number is out of range.
  Program(OpKind kind, std::string name, uint16_t number, int num_ranks, int num_blocks, int num_slots, int ports,
          int group_size, std::vector<Row> rows);

  const OpKind kind;       // without counts
  const std::string name;  // "chain(num_blocks=8)"
  const uint16_t number;   // among those of its communicator, from 1
  const int num_ranks;
  const int num_blocks;
  const int num_slots;
  const int ports;
  const int group_size;  // ranks in a row that stay together wherever the root is
  const uint64_t hash;   // of all that the members have to agree on

  // Why an operation cannot be executed by it, nothing if it can; a function of the operation alone (rule R8).
  std::optional<std::string> refuses(const Operation& op) const;
  // Ranks of the schedule count from the root, hosts (groups) and places within them each by themselves.
  int place_of(int rank, int root) const {
    const int num_groups = num_ranks / group_size;
    return (rank / group_size - root / group_size + num_groups) % num_groups * group_size +
           (rank % group_size - root % group_size + group_size) % group_size;
  }
  int rank_at(int place, int root) const {
    return (place / group_size + root / group_size) % (num_ranks / group_size) * group_size +
           (place % group_size + root % group_size) % group_size;
  }
  // What a rank of the schedule has to do; made when it is asked for first. Under the progress lock.
  const RankProgram& of(int rank) const;

 private:
  RankProgram compile(int rank) const;
  const std::vector<Row> rows_;
  mutable std::map<int, RankProgram> compiled_;
};

}  // namespace hocket
