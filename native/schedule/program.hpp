// A collective schedule as the ranks of a communicator execute it: the table of hocket.collectives.Schedule, compiled
// to steps for each rank.
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

// A block that is sent from, or received into, one of a rank's slots.
struct Segment {
  int32_t block;
  int32_t slot;
  bool reduces;      // the block is reduced into the content of the slot
  bool reads_input;  // the slot still holds the rank's input
};

// The part of a round that involves one rank and one peer, or the rank alone (move).
struct Step {
  enum class Kind : uint8_t { send, receive, move };
  Kind kind;
  // True if no slot that is written is also read in the same round, and nothing is reduced. Then a receive can write
  // directly to its slots once its dependencies are done, and a move can move one block after the other.
  bool is_direct;
  int32_t peer;  // rank of the schedule
  uint32_t first_segment, num_segments;
  uint32_t first_wait, num_waits;  // dependencies: steps that must be done before slots are read or written
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
          int group_size, std::vector<Row> rows, uint32_t comm = 0);

  const OpKind kind;       // without counts
  const std::string name;  // "chain(num_blocks=8)"
  const uint16_t number;   // among the communicator's programs, from 1
  const int num_ranks;
  const int num_blocks;
  const int num_slots;
  const int ports;
  const int group_size;  // consecutive ranks that stay together for every root
  const uint64_t hash;   // of all that the members must agree on
  const uint32_t comm;   // id of its communicator's definition in the recorder; 0: transfers are not recorded

  // Why it cannot execute an operation; nothing if it can. A function of the operation alone (rule R8).
  std::optional<std::string> refuses(const Operation& op) const;
  // Ranks of the schedule are relative to the root: the group (host) and the place in the group are shifted separately.
  int place_of(int rank, int root) const {
    const int num_groups = num_ranks / group_size;
    return (rank / group_size - root / group_size + num_groups) % num_groups * group_size +
           (rank % group_size - root % group_size + group_size) % group_size;
  }
  int rank_at(int place, int root) const {
    return (place / group_size + root / group_size) % (num_ranks / group_size) * group_size +
           (place % group_size + root % group_size) % group_size;
  }
  // The steps of a rank of the schedule; compiled at the first call. Call under the progress lock.
  const RankProgram& of(int rank) const;

 private:
  RankProgram compile(int rank) const;
  const std::vector<Row> rows_;
  mutable std::map<int, RankProgram> compiled_;
};

}  // namespace hocket
