// Collectives over shared memory: every kind and size class against an oracle, mismatches, and members that leave.
#include <sys/wait.h>

#include <cstdio>
#include <random>

#include "core/process.hpp"
#include "oracle.hpp"
#include "thread_job.hpp"
#include "tier.hpp"

namespace {

using namespace hocket;

constexpr OpKind kKinds[] = {OpKind::all_reduce,     OpKind::reduce,     OpKind::broadcast, OpKind::all_gather,
                             OpKind::reduce_scatter, OpKind::all_to_all, OpKind::split};

void collective(Rank& rank, OpKind kind, DType dtype, ReduceOp op, int root, uint64_t count, uint64_t salt) {
  check_collective(kind, dtype, op, root, count, salt, rank.rank, rank.size, salt % 2,
                   [&](const Operation& operation) { rank.run(operation); });
}

// Every kind around the borders of the size classes: inline, eager, one chunk, several.
void test_size_classes(int size) {
  ThreadJob job(size);
  const uint64_t n = static_cast<uint64_t>(size);
  job.run([&](Rank& rank) {
    const uint64_t chunk = rank.region().chunk_bytes;
    uint64_t salt = 0;
    for (OpKind kind : kKinds) {
      const bool blocks_in = kind == OpKind::reduce_scatter || kind == OpKind::all_to_all;
      const uint64_t parts = blocks_in ? n : 1;
      for (uint64_t border : {kInlineBytes / parts, kEagerBytes / parts})
        for (uint64_t nbytes : {border - 1, border, border + 1})
          collective(rank, kind, DType::uint8, ReduceOp::max, size - 1, nbytes, ++salt);
      for (uint64_t count : {0, 1, 3}) collective(rank, kind, DType::int16, ReduceOp::sum, 0, count, ++salt);
      const uint64_t part = chunk / parts / 64 * 64;
      for (uint64_t nbytes : {part - 8, part, part + 8, 2 * part + 264, 3 * part}) {
        const int root = static_cast<int>(++salt % n);
        collective(rank, kind, DType::int64, ReduceOp::sum, root, nbytes / 8, salt);
      }
      rank.run({.kind = OpKind::barrier});
    }
  });
}

void test_dtypes_and_reductions(int size) {
  ThreadJob job(size);
  job.run([&](Rank& rank) {
    uint64_t salt = 0;
    for (DType dtype : kOracleDTypes)
      for (size_t op = 0; op < kNumReduceOps; ++op)
        for (OpKind kind : {OpKind::all_reduce, OpKind::reduce, OpKind::reduce_scatter})
          for (uint64_t count : {5, 700, 6001})
            if (reducible(dtype, static_cast<ReduceOp>(op)))
              collective(rank, kind, dtype, static_cast<ReduceOp>(op), 1, count, ++salt);
  });
}

// The same random program on every rank, with different random pauses.
void test_random_program(int size, unsigned seed) {
  ThreadJob job(size);
  job.run([&](Rank& rank) {
    std::mt19937 program(seed);
    std::mt19937 pauses(seed * 31 + static_cast<unsigned>(rank.rank));
    const auto draw = [&](uint64_t below) { return program() % below; };
    for (uint64_t step = 0; step < 60; ++step) {
      const OpKind kind = kKinds[draw(std::size(kKinds))];
      const DType dtype = kOracleDTypes[draw(std::size(kOracleDTypes))];
      const auto op = static_cast<ReduceOp>(draw(kNumReduceOps));
      const uint64_t most[] = {12, 12, 1000, 30'000, 300'000};
      const uint64_t count = draw(most[draw(std::size(most))] / itemsize(dtype) + 1);
      const int root = static_cast<int>(draw(static_cast<uint64_t>(size)));
      if (reduces(kind) && !reducible(dtype, op)) continue;
      for (unsigned i = pauses() % 4; i > 0; --i) sched_yield();
      collective(rank, kind, dtype, op, root, count, step);
    }
  });
}

// After a mismatch, every rank's error has the operations of all others, the operation is skipped, and the next one is
// correct.
void test_mismatch() {
  ThreadJob job(3);
  job.run([&](Rank& rank) {
    Bytes x(1 << 20);
    const auto all_reduce = [&](uint64_t nbytes, DType dtype) {
      rank.run({.kind = OpKind::all_reduce, .dtype = dtype, .nbytes = nbytes, .in = x.data(), .out = x.data()});
    };
    uint64_t salt = 0;
    for (int odd_one : {0, 1, 2}) {
      const bool odd = rank.rank == odd_one;
      const Error size = error_of([&] { all_reduce(odd ? 16 : x.size(), DType::float32); });
      CHECK(size.code == ErrorCode::collective_mismatch);
      CHECK(contains(size.message, "all_reduce(sum) of 16 bytes float32 at test.py:1"));
      CHECK(contains(size.message, "all_reduce(sum) of 1048576 bytes float32 at test.py:1"));
      CHECK(contains(size.message, "rank " + std::to_string(odd_one) + ": "));
      collective(rank, OpKind::all_reduce, DType::float32, ReduceOp::sum, -1, 100'000, ++salt);
      const Error kind = error_of([&] { odd ? rank.run({.kind = OpKind::barrier}) : all_reduce(8, DType::int8); });
      CHECK(contains(kind.message, "barrier at test.py:1") && contains(kind.message, "8 bytes int8"));
      const Error dtype = error_of([&] { all_reduce(8, odd ? DType::int8 : DType::uint8); });
      CHECK(contains(dtype.message, "8 bytes int8") && contains(dtype.message, "8 bytes uint8"));
      const Error root = error_of([&] {
        rank.run({.kind = OpKind::broadcast, .root = odd ? 2 : 1, .nbytes = 8, .in = x.data(), .out = x.data()});
      });
      CHECK(contains(root.message, "with root 2") && contains(root.message, "with root 1"));
      collective(rank, OpKind::all_gather, DType::int32, ReduceOp::sum, -1, 10, ++salt);
    }
  });
}

// A long array is driven in steps, even with fast peers, so that other lanes run in between.
void test_steps_of_long_operations() {
  ThreadJob job(2);
  job.run([&](Rank& rank) {
    Bytes x(16 << 20);
    rank.run({.kind = OpKind::broadcast, .root = 0, .nbytes = x.size(), .in = x.data(), .out = x.data()});
    // Checked on the rank that copies; the number of tests of a waiting rank has no meaning.
    if (rank.rank == 1) CHECK(rank.num_tests >= static_cast<int64_t>(x.size() / kMostBroadcastChunkBytes / 8 - 1));
    if (rank.rank == 0)
      rank.send(1, x.data(), x.size());
    else
      rank.recv(0, x.data(), x.size());
    if (rank.rank == 1) CHECK(rank.num_tests >= static_cast<int64_t>(x.size() / kBulkBytes / kMostSlots - 1));
  });
}

// Rank 0 completes and leaves before rank 1 has read what rank 0 published: rank 1 completes too. In one thread, so
// that the order is fixed.
void test_leaving_after_the_last_operation() {
  ThreadJob job(2);
  Bytes x(100'000);
  Operation ops[2];
  for (Operation& op : ops)
    op = {.kind = OpKind::all_reduce, .seq = 1, .nbytes = x.size(), .in = x.data(), .out = x.data(), .site = "a"};
  Lane& lane0 = job.ranks[0]->collective;
  Lane& lane1 = job.ranks[1]->collective;
  lane0.post(ops[0]);
  lane1.post(ops[1]);
  CHECK(lane0.test(ops[0]) == Progress::moved);
  CHECK(lane1.test(ops[1]) == Progress::moved);
  CHECK(lane0.test(ops[0]) == Progress::done);
  job.ranks[0].reset();
  CHECK(!lane1.health());
  CHECK(lane1.missing(ops[1]).empty());
  CHECK(lane1.test(ops[1]) == Progress::done);
  // But rank 0 will never enter the next operation.
  ops[1].seq = 2;
  lane1.post(ops[1]);
  CHECK(lane1.test(ops[1]) == Progress::waiting);
  const std::optional<Error> error = lane1.health();
  CHECK(error && error->code == ErrorCode::peer_failure && error->ranks == std::vector<int>{0});
  CHECK(contains(error->message, "left the communicator"));
  lane1.cancel(ops[1]);
}

void test_abort_reaches_everyone() {
  ThreadJob job(3);
  job.ranks[2]->collective.abandon({ErrorCode::comm_timeout, "no patience", {1}});
  job.ranks[0]->point_to_point.abandon({ErrorCode::aborted, "the second one", {}});
  for (int rank : {0, 1}) {
    const std::optional<Error> error = job.ranks[static_cast<size_t>(rank)]->collective.health();
    CHECK(error && error->message == "no patience");
    // The awaited rank did not time out itself.
    CHECK(error->code == (rank == 1 ? ErrorCode::aborted : ErrorCode::comm_timeout));
  }
}

// A forked child that destroys a rank does not leave on behalf of its parent.
void test_forked_child_leaves_nothing() {
  watch_forks();
  ThreadJob job(2);
  const pid_t child = fork();
  if (child == 0) {
    job.ranks.pop_back();
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(!job.ranks[0]->region().has_left(1) && !job.ranks[1]->region().has_left(0));
  job.ranks[1].reset();
  CHECK(job.ranks[0]->region().has_left(1));
}

}  // namespace

int main() {
  test_forked_child_leaves_nothing();
  test_leaving_after_the_last_operation();
  test_abort_reaches_everyone();
  test_mismatch();
  test_steps_of_long_operations();
  for (int size = 1; size <= 5; ++size) test_size_classes(size);
  for (int size : {2, 3}) test_dtypes_and_reductions(size);
  // Every size from 2 to 5, once or twice.
  for (unsigned seed = 0; seed < (is_full_tier() ? 8 : 4); ++seed)
    test_random_program(2 + static_cast<int>(seed % 4), seed);
  std::puts("shm: ok");
  return 0;
}
