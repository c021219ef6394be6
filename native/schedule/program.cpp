#include "schedule/program.hpp"

#include <algorithm>
#include <array>

#include "core/error.hpp"
#include "core/operation.hpp"

namespace hocket {

namespace {

uint64_t hash_of(OpKind kind, int num_ranks, int num_blocks, int group_size, const std::vector<Program::Row>& rows) {
  uint64_t h = mix_bits(static_cast<uint64_t>(kind) << 48 ^ static_cast<uint64_t>(num_ranks) << 24 ^
                        static_cast<uint64_t>(num_blocks));
  if (group_size != num_ranks) h = mix_bits(h ^ static_cast<uint64_t>(group_size));
  for (const Program::Row& row : rows)
    for (const int32_t value : {row.round, row.source, row.destination, row.block, row.source_slot,
                                row.destination_slot, static_cast<int32_t>(row.reduces)})
      h = mix_bits(h ^ static_cast<uint64_t>(static_cast<uint32_t>(value)));
  return h;
}

constexpr uint32_t kNone = UINT32_MAX;

// The latest accesses to a slot, as step numbers.
struct SlotHistory {
  uint32_t writer = kNone;
  std::vector<uint32_t> readers;  // since that write
};

void add_unique(std::vector<uint32_t>& values, uint32_t value) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

}  // namespace

Program::Program(OpKind kind_, std::string name_, uint16_t number_, int num_ranks_, int num_blocks_, int num_slots_,
                 int ports_, int group_size_, std::vector<Row> rows, uint32_t comm_)
    : kind(kind_),
      name(std::move(name_)),
      number(number_),
      num_ranks(num_ranks_),
      num_blocks(num_blocks_),
      num_slots(num_slots_),
      ports(ports_),
      group_size(group_size_),
      hash(hash_of(kind_, num_ranks_, num_blocks_, group_size_, rows)),
      comm(comm_),
      rows_(std::move(rows)) {
  if (group_size < 1 || num_ranks % group_size)
    throw Failure(ErrorCode::invalid_argument, name + ": groups of " + std::to_string(group_size) +
                                                   " ranks do not divide its " + std::to_string(num_ranks) + " ranks");
  int32_t round = 0;
  for (const Row& row : rows_) {
    const bool is_right = row.round >= round && row.source >= 0 && row.source < num_ranks && row.destination >= 0 &&
                          row.destination < num_ranks && row.block >= 0 && row.block < num_blocks &&
                          row.source_slot >= 0 && row.source_slot < num_slots && row.destination_slot >= 0 &&
                          row.destination_slot < num_slots;
    if (!is_right)
      throw Failure(ErrorCode::invalid_argument,
                    name + ": row " + std::to_string(&row - rows_.data()) +
                        " has a rank, block, slot or round that is out of range, or rows are not sorted by round");
    round = row.round;
  }
}

std::optional<std::string> Program::refuses(const Operation& op) const {
  if (without_counts(op.kind) != kind) return name + " is a schedule of " + hocket::name(kind);
  if (reduces(op.kind) && op.reduce == ReduceOp::avg && is_half(op.dtype))
    return "a schedule would round the sum to 16 bits before it is divided";
  if (op.kind == OpKind::all_to_allv && num_slots > 2 * num_ranks)
    return name + " sends blocks through ranks that do not know their sizes";
  return std::nullopt;
}

const RankProgram& Program::of(int rank) const {
  const auto found = compiled_.find(rank);
  return found != compiled_.end() ? found->second : compiled_.emplace(rank, compile(rank)).first->second;
}

// In a round, all reads come before all writes. So a step waits for these steps:
//  - the writers, in earlier rounds, of the slots that it reads;
//  - the writers, in earlier rounds, and the readers, in earlier rounds and its own round, of the slots that it writes.
// Steps of a round are made in the order of their kinds, so that all readers are known when the writers are made.
RankProgram Program::compile(int rank) const {
  RankProgram program;
  std::vector<SlotHistory> history(static_cast<size_t>(num_slots));
  std::vector<bool> written(static_cast<size_t>(num_slots));
  const auto end_of_round = [&](size_t begin) {
    size_t end = begin;
    while (end < rows_.size() && rows_[end].round == rows_[begin].round) ++end;
    return end;
  };
  for (size_t begin = 0; begin < rows_.size();) {
    const size_t end = end_of_round(begin);
    const size_t first_of_round = program.steps.size();
    std::array<std::vector<const Row*>, 3> of_kind;  // sends, receives, moves
    for (size_t i = begin; i < end; ++i) {
      const Row& row = rows_[i];
      if (row.source == rank && row.destination == rank)
        of_kind[2].push_back(&row);
      else if (row.source == rank)
        of_kind[0].push_back(&row);
      else if (row.destination == rank)
        of_kind[1].push_back(&row);
    }
    begin = end;
    const std::vector<bool> written_before = written;
    const auto make_steps = [&](Step::Kind kind, const std::vector<const Row*>& rows, const auto& peer_of,
                                const auto& add_segments) {
      for (size_t i = 0; i < rows.size();) {
        Step step{.kind = kind,
                  .is_direct = true,
                  .peer = peer_of(*rows[i]),
                  .first_segment = static_cast<uint32_t>(program.segments.size()),
                  .num_segments = 0,
                  .first_wait = static_cast<uint32_t>(program.waits.size()),
                  .num_waits = 0};
        std::vector<uint32_t> waits;
        const auto number = static_cast<uint32_t>(program.steps.size());
        for (; i < rows.size() && peer_of(*rows[i]) == step.peer; ++i) add_segments(*rows[i], number, step, waits);
        step.num_segments = static_cast<uint32_t>(program.segments.size()) - step.first_segment;
        step.num_waits = static_cast<uint32_t>(waits.size());
        program.waits.insert(program.waits.end(), waits.begin(), waits.end());
        program.steps.push_back(step);
      }
    };
    const auto read = [&](int32_t slot, uint32_t number, std::vector<uint32_t>& waits) {
      SlotHistory& slot_history = history[static_cast<size_t>(slot)];
      if (slot_history.writer != kNone && slot_history.writer < first_of_round) add_unique(waits, slot_history.writer);
      add_unique(slot_history.readers, number);
    };
    // `history` holds earlier rounds: readers of this round do not wait for writers of this round.
    std::vector<std::pair<int32_t, uint32_t>> writes;
    const auto write = [&](int32_t slot, uint32_t number, Step& step, std::vector<uint32_t>& waits) {
      const SlotHistory& slot_history = history[static_cast<size_t>(slot)];
      if (slot_history.writer != kNone) add_unique(waits, slot_history.writer);
      for (const uint32_t reader : slot_history.readers) {
        if (reader >= first_of_round) step.is_direct = false;
        if (reader != number) add_unique(waits, reader);
      }
      writes.emplace_back(slot, number);
      written[static_cast<size_t>(slot)] = true;
    };
    const auto is_input = [&](int32_t slot) { return !written_before[static_cast<size_t>(slot)]; };
    std::stable_sort(of_kind[0].begin(), of_kind[0].end(),
                     [](const Row* a, const Row* b) { return a->destination < b->destination; });
    std::stable_sort(of_kind[1].begin(), of_kind[1].end(),
                     [](const Row* a, const Row* b) { return a->source < b->source; });
    // Reads of moves enter the history before the receives are made, although moves come last in the order of steps.
    make_steps(
        Step::Kind::send, of_kind[0], [](const Row& row) { return row.destination; },
        [&](const Row& row, uint32_t number, Step&, std::vector<uint32_t>& waits) {
          read(row.source_slot, number, waits);
          program.segments.push_back({row.block, row.source_slot, false, is_input(row.source_slot)});
        });
    const auto num_receives = [&] {
      uint32_t count = 0;
      for (size_t i = 0; i < of_kind[1].size(); ++i)
        count += i == 0 || of_kind[1][i]->source != of_kind[1][i - 1]->source;
      return count;
    };
    const auto number_of_move = static_cast<uint32_t>(program.steps.size()) + num_receives();
    for (const Row* row : of_kind[2])
      add_unique(history[static_cast<size_t>(row->source_slot)].readers, number_of_move);
    make_steps(
        Step::Kind::receive, of_kind[1], [](const Row& row) { return row.source; },
        [&](const Row& row, uint32_t number, Step& step, std::vector<uint32_t>& waits) {
          write(row.destination_slot, number, step, waits);
          step.is_direct &= !row.reduces;
          program.segments.push_back({row.block, row.destination_slot, row.reduces, is_input(row.destination_slot)});
        });
    make_steps(
        Step::Kind::move, of_kind[2], [&](const Row&) { return rank; },
        [&](const Row& row, uint32_t number, Step& step, std::vector<uint32_t>& waits) {
          read(row.source_slot, number, waits);
          write(row.destination_slot, number, step, waits);
          program.segments.push_back({row.block, row.source_slot, false, is_input(row.source_slot)});
          program.segments.push_back({row.block, row.destination_slot, row.reduces, is_input(row.destination_slot)});
        });
    for (const auto& [slot, number] : writes) {
      SlotHistory& slot_history = history[static_cast<size_t>(slot)];
      slot_history.writer = number;
      slot_history.readers.clear();  // the writer waits for them
    }
  }
  return program;
}

}  // namespace hocket
