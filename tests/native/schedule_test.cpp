// Schedules: compiled for every rank, executed over shared memory and checked against sums; and cancelled half-way.
#include <cstdio>
#include <memory>
#include <numeric>
#include <vector>

#include "schedule/executor.hpp"
#include "thread_job.hpp"

namespace {

using namespace hocket;
using Rows = std::vector<Program::Row>;

// Block b leaves rank r in round b + r.
Rows chain(int num_ranks, int num_blocks) {
  Rows rows;
  for (int round = 0; round < num_blocks + num_ranks - 2; ++round)
    for (int rank = 0; rank + 1 < num_ranks; ++rank)
      if (const int block = round - rank; block >= 0 && block < num_blocks)
        rows.push_back({round, rank, rank + 1, block, block, block, false});
  return rows;
}

// Ring, block by block: reduce-scatter first, then all-gather of the sums.
Rows ring(int num_ranks) {
  Rows rows;
  const auto wrapped = [&](int rank) { return (rank + 2 * num_ranks) % num_ranks; };
  for (int round = 0; round < num_ranks - 1; ++round)
    for (int rank = 0; rank < num_ranks; ++rank) {
      const int block = wrapped(rank - round - 1);
      rows.push_back({round, rank, wrapped(rank + 1), block, block, block, true});
    }
  for (int round = 0; round < num_ranks - 1; ++round)
    for (int rank = 0; rank < num_ranks; ++rank) {
      const int block = wrapped(rank - round);
      rows.push_back({num_ranks - 1 + round, rank, wrapped(rank + 1), block, block, block, false});
    }
  return rows;
}

// Partners at doubling distances exchange whole arrays: every round sends the slot that it also reduces into.
Rows doubling(int num_ranks) {
  Rows rows;
  for (int round = 0; 1 << round < num_ranks; ++round)
    for (int rank = 0; rank < num_ranks; ++rank) rows.push_back({round, rank, rank ^ 1 << round, 0, 0, 0, true});
  return rows;
}

// Two ranks exchange their arrays, each of which is broadcast to the other: slot 0 is sent and replaced in one round.
Rows swap_and_swap_back() {
  return {{0, 0, 1, 0, 0, 0, false}, {0, 1, 0, 0, 0, 0, false}, {1, 0, 1, 0, 0, 0, false}, {1, 1, 0, 0, 0, 0, false}};
}

std::unique_ptr<Program> program(OpKind kind, int num_ranks, int num_blocks, Rows rows) {
  return std::make_unique<Program>(kind, "test", 1, num_ranks, num_blocks, num_blocks, 1, num_ranks, std::move(rows));
}

Operation operation(OpKind kind, const Program& by, std::vector<int32_t>& x, int root = -1) {
  auto* bytes = reinterpret_cast<std::byte*>(x.data());
  return {.kind = kind,
          .dtype = DType::int32,
          .root = root,
          .nbytes = x.size() * sizeof(int32_t),
          .in = bytes,
          .out = bytes,
          .program = &by};
}

std::vector<int32_t> numbers(size_t count, int rank) {
  std::vector<int32_t> x(count);
  std::iota(x.begin(), x.end(), 1000 * rank);
  return x;
}

constexpr size_t kCounts[] = {0, 1, 5, 1000, 40'000};

void test_broadcast(int num_ranks) {
  ThreadJob job(num_ranks);
  job.run([&](Rank& rank) {
    const auto by = program(OpKind::broadcast, num_ranks, 7, chain(num_ranks, 7));
    for (const size_t count : kCounts)
      for (int root = 0; root < num_ranks; ++root) {
        std::vector<int32_t> x = numbers(count, rank.rank);
        rank.run(operation(OpKind::broadcast, *by, x, root));
        CHECK(x == numbers(count, root));
      }
  });
}

void test_all_reduce(int num_ranks, int num_blocks, const Rows& rows) {
  ThreadJob job(num_ranks);
  job.run([&](Rank& rank) {
    const auto by = program(OpKind::all_reduce, num_ranks, num_blocks, rows);
    for (int turn = 0; turn < 5; ++turn)
      for (const size_t count : kCounts) {
        std::vector<int32_t> x = numbers(count, rank.rank);
        rank.run(operation(OpKind::all_reduce, *by, x));
        for (size_t i = 0; i < count; ++i) {
          const auto index = static_cast<int32_t>(i);
          CHECK(x[i] == num_ranks * index + 500 * num_ranks * (num_ranks - 1));
        }
      }
  });
}

// A receive must not wait for the send of its own round, whose peer waits for a receive.
void test_exchange_in_place() {
  ThreadJob job(2);
  job.run([&](Rank& rank) {
    const auto by = program(OpKind::all_reduce, 2, 1, swap_and_swap_back());
    std::vector<int32_t> x = numbers(100'000, rank.rank);
    rank.run(operation(OpKind::all_reduce, *by, x));
    CHECK(x == numbers(100'000, rank.rank));
  });
}

// The transfers that the recorder of this process has, from its memory.
std::vector<Event> recorded_transfers() {
  const auto* base = static_cast<const std::byte*>(Recorder::instance().memory().base);
  const RingHeader& ring = reinterpret_cast<const RegionHeader*>(base)->rings[static_cast<size_t>(RingId::transfers)];
  const auto* events = reinterpret_cast<const Event*>(base + ring.offset);
  return {events, events + ring.next};
}

// A rank starts alone and cancels: no state is left, and it can start again. Its transfers are recorded: in flight
// while the other rank does not answer, and failed after that.
void test_cancel_and_restart() {
  CHECK(recorded_transfers().empty());  // of programs that belong to no communicator of the recorder
  ThreadJob job(2);
  Rank& rank = *job.ranks[0];
  rank.region().need_controls(Channel::schedules);
  Executor executor(std::make_unique<PointToPointLane>(rank.shared_region(), Channel::schedules), 0, 2, 0);
  constexpr uint32_t kComm = 77;
  constexpr size_t kInFlight = 2;  // the send and the receive of the first round
  const auto by = std::make_unique<Program>(OpKind::all_reduce, "test", 3, 2, 2, 2, 1, 2, ring(2), kComm);
  std::vector<int32_t> x = numbers(50'000, 0);
  for (int turn = 0; turn < 2; ++turn) {
    executor.start(operation(OpKind::all_reduce, *by, x));
    for (int i = 0; i < 10; ++i) CHECK(executor.drive() != Progress::done);
    CHECK(executor.missing() == std::vector<int>{1});
    const std::vector<Event> in_flight = recorded_transfers();
    CHECK(in_flight.size() == static_cast<size_t>(turn + 1) * kInFlight);
    executor.cancel();
    CHECK(!executor.is_running());
    const std::vector<Event> over = recorded_transfers();
    for (size_t i = static_cast<size_t>(turn) * kInFlight; i < over.size(); ++i) {
      CHECK(in_flight[i].state == EventState::started && in_flight[i].t_end == 0);
      CHECK(over[i].state == EventState::failed && over[i].t_end >= over[i].t_begin);
      CHECK(over[i].comm == kComm && over[i].algorithm == 3 && over[i].layer == Layer::transfer);
      CHECK(over[i].peer == 1 && over[i].nbytes == 50'000 / 2 * sizeof(int32_t));
      const bool is_send = over[i].kind == static_cast<uint8_t>(TransferKind::send);
      CHECK(is_send == (over[i].aux == 0));  // the steps of a round begin with its sends
    }
  }
}

void test_wrong_rows() {
  const auto error_with = [](Rows rows) {
    return error_of([&] { program(OpKind::broadcast, 2, 1, std::move(rows)); }).code == ErrorCode::invalid_argument;
  };
  CHECK(error_with({{0, 0, 2, 0, 0, 0, false}}));
  CHECK(error_with({{0, 0, 1, 1, 0, 0, false}}));
  CHECK(error_with({{0, 0, 1, 0, 0, 1, false}}));
  CHECK(error_with({{1, 0, 1, 0, 0, 0, false}, {0, 0, 1, 0, 0, 0, false}}));
}

// Hosts (groups) stay together for every root.
void test_groups() {
  const Program by(OpKind::broadcast, "test", 1, 6, 1, 1, 1, 3, {});
  for (int root = 0; root < 6; ++root) {
    CHECK(by.place_of(root, root) == 0);
    for (int place = 0; place < 6; ++place) {
      const int rank = by.rank_at(place, root);
      CHECK(by.place_of(rank, root) == place);
      CHECK((rank / 3 == root / 3) == (place < 3));
    }
  }
  bool has_thrown = false;
  try {
    Program(OpKind::broadcast, "test", 1, 6, 1, 1, 1, 4, {});
  } catch (const Failure&) {
    has_thrown = true;
  }
  CHECK(has_thrown);
}

}  // namespace

int main() {
  test_groups();
  for (const int num_ranks : {2, 3, 4}) test_broadcast(num_ranks);
  for (const int num_ranks : {2, 3, 4}) test_all_reduce(num_ranks, num_ranks, ring(num_ranks));
  for (const int num_ranks : {2, 4}) test_all_reduce(num_ranks, 1, doubling(num_ranks));
  test_exchange_in_place();
  test_cancel_and_restart();
  test_wrong_rows();
  std::puts("schedule_test: all checks passed");
}
