// Foreign lanes behind an agreement: no operation reaches the library before all members have agreed on it.
#include <random>

#include "shm/agreed_lane.hpp"
#include "test_lane.hpp"
#include "thread_job.hpp"
#include "tier.hpp"

namespace {

using namespace hocket;

constexpr size_t kForeign = 1;  // index of the backend; shm has index 0

// A library that counts, per sequence number, how many members have posted the operation, and checks that all posted
// the same one.
struct Library {
  std::atomic<int> posted[256]{};
  std::atomic<uint64_t> nbytes[256]{};
};

class CountingLane final : public Lane {
 public:
  CountingLane(Library& library, int size, size_t depth) : library_(library), size_(size), depth_(depth) {}
  const char* backend() const override { return "counting"; }
  size_t depth() const override { return depth_; }
  Progress post(Operation& op) override {
    if (op.seq == fails_at) throw Failure(ErrorCode::aborted, "the library lost a connection");
    CHECK(op.seq > last_);  // in issue order
    last_ = op.seq;
    uint64_t nothing = 0;
    library_.nbytes[op.seq].compare_exchange_strong(nothing, op.nbytes + 1);
    CHECK(library_.nbytes[op.seq] == op.nbytes + 1);
    ++library_.posted[op.seq];
    op.token = this;
    return Progress::moved;
  }
  Progress test(Operation& op) override {
    CHECK(op.token == this);
    return library_.posted[op.seq] == size_ ? Progress::done : Progress::waiting;
  }
  std::vector<int> missing(const Operation&) const override { return {}; }
  bool cancel(Operation& op) noexcept override {
    op.token = nullptr;
    return false;
  }
  uint64_t fails_at = 0;

 private:
  Library& library_;
  int size_;
  size_t depth_;
  uint64_t last_ = 0;
};

struct Foreign {
  Foreign(Rank& rank, Library& library, size_t depth = 8) : rank(rank) {
    auto counting = std::make_unique<CountingLane>(library, rank.size, depth);
    counter = counting.get();
    lane = std::make_unique<AgreedLane>(rank.shared_region(), kForeign, std::move(counting));
  }
  Operation make(uint64_t seq, uint64_t nbytes) {
    return {.kind = OpKind::all_reduce,
            .dtype = DType::uint8,
            .backend = kForeign,
            .seq = seq,
            .nbytes = nbytes,
            .site = "test.py:7"};
  }
  void finish(Operation& op) {
    const int64_t deadline = now_ns() + timeout_ns(60);
    while (lane->test(op) != Progress::done) {
      lane->health();
      sched_yield();
      CHECK(now_ns() < deadline);
    }
  }
  Rank& rank;
  CountingLane* counter;
  std::unique_ptr<AgreedLane> lane;
};

// Several operations in flight, posted at random times on each rank; all reach the library in issue order.
void test_many_in_flight(int size) {
  ThreadJob job(size, {"shm", "counting"});
  Library library;
  job.run([&](Rank& rank) {
    Foreign foreign(rank, library);
    std::mt19937 random(static_cast<unsigned>(rank.rank));
    uint64_t seq = 0;
    while (seq < 200) {
      std::vector<Operation> batch;
      for (size_t i = 0, n = 1 + random() % 6; i < n && seq < 200; ++i) {
        ++seq;
        batch.push_back(foreign.make(seq, seq * 3));
        foreign.lane->post(batch.back());
        if (random() % 3 == 0) sched_yield();
        for (Operation& op : batch)
          if (op.token) foreign.lane->test(op) == Progress::done ? void(op.token = nullptr) : void();
      }
      for (Operation& op : batch)
        if (op.token) foreign.finish(op);
    }
    for (uint64_t each = 1; each <= 200; ++each) CHECK(library.posted[each] == size);
  });
}

void test_mismatch_does_not_reach_the_library() {
  ThreadJob job(3, {"shm", "counting"});
  Library library;
  job.run([&](Rank& rank) {
    Foreign foreign(rank, library);
    for (uint64_t seq = 1; seq <= 20; ++seq) {
      const bool differs = seq % 4 == 0;
      Operation op = foreign.make(seq, differs && rank.rank == 1 ? 8 : 16);
      foreign.lane->post(op);
      if (!differs) {
        foreign.finish(op);
        continue;
      }
      const Error error = error_of([&] { foreign.finish(op); });
      CHECK(error.code == ErrorCode::collective_mismatch);
      CHECK(error.message.find("ranks 0 and 2") != std::string::npos);
      CHECK(library.posted[seq] == 0);
    }
  });
}

// Rank 1 puts operation 2 on another lane. All members get an error, and the lane continues with the next operation.
void test_operation_on_another_lane() {
  ThreadJob job(3, {"shm", "counting"});
  Library library;
  std::atomic<int> num_over{0};
  job.run([&](Rank& rank) {
    Foreign foreign(rank, library);
    for (uint64_t seq = 1; seq <= 9; ++seq) {
      Operation op = foreign.make(seq, 16);
      if (rank.rank == 1 && seq % 3 == 2) op.backend = 0;
      rank.region().note_issued(op);
      if (op.backend == 0) {
        CHECK(rank.region().issued(0, 77) == std::nullopt);
        const int64_t deadline = now_ns() + timeout_ns(60);
        while (num_over < 2 * static_cast<int>(seq / 3 + 1)) {
          sched_yield();
          CHECK(now_ns() < deadline);
        }
        continue;
      }
      foreign.lane->post(op);
      if (seq % 3 != 2) {
        foreign.finish(op);
        continue;
      }
      const Error error = error_of([&] { foreign.finish(op); });
      CHECK(error.code == ErrorCode::collective_mismatch);
      CHECK(error.message.find("on shm") != std::string::npos);
      ++num_over;
    }
    CHECK(library.posted[9] == 3 && library.posted[8] == 0);
  });
}

void test_failure_of_the_library_and_cancelling() {
  ThreadJob job(2, {"shm", "counting"});
  Library library;
  job.run([&](Rank& rank) {
    Foreign foreign(rank, library);
    foreign.counter->fails_at = 1;
    Operation op = foreign.make(1, 4);
    foreign.lane->post(op);
    // The error is delayed, because its reason, a death, may become known in a moment.
    const int64_t begin = now_ns();
    const Error error = error_of([&] { foreign.finish(op); });
    CHECK(error.code == ErrorCode::aborted && now_ns() - begin > 100'000'000);
    CHECK(error.message.find("lost a connection") != std::string::npos && !op.token);
    // Queued behind an open round: no other member can have noticed it.
    Operation first = foreign.make(2, 4), second = foreign.make(3, 4);
    foreign.lane->post(first);
    foreign.lane->post(second);
    CHECK(foreign.lane->cancel(second));
    foreign.finish(first);
    CHECK(library.posted[2] > 0 && library.posted[3] == 0);
  });
}

// Work that accesses the same bytes waits, even if its lane has room; explicit dependencies have the same effect.
void test_dependencies() {
  TestCommunicator comm;
  auto other = std::make_unique<TestLane>(4);
  TestLane* foreign = other.get();
  comm.core->add_backend(std::move(other), std::make_unique<TestLane>(SIZE_MAX));
  std::byte array[64];
  const auto work_on = [&](uint8_t backend, size_t begin, size_t end, bool writes) {
    WorkPtr work = comm.make(OpKind::barrier);
    work->op.backend = backend;
    (writes ? work->writes : work->reads) = {array + begin, array + end};
    return work;
  };
  const auto issue = [&](const WorkPtr& work) {
    comm.locked([&] { comm.core->issue(work, 0); });
    return work;
  };
  comm.collective->plans[1].num_tests = 1000;
  const WorkPtr writer = issue(work_on(0, 0, 32, true));
  const WorkPtr apart = issue(work_on(1, 32, 64, true));
  const WorkPtr reader = issue(work_on(1, 31, 32, false));
  CHECK(foreign->posted == (std::vector<uint64_t>{2}));  // the reader waits for the writer
  CHECK(wait(reader) == WaitResult::finished && is_done(writer) && is_done(apart));
  CHECK(foreign->posted == (std::vector<uint64_t>{2, 3}));
  // Two readers do not wait for each other; a writer waits for both, which are on its own lane.
  foreign->plans[4].num_tests = foreign->plans[5].num_tests = 1000;
  issue(work_on(1, 0, 8, false));
  issue(work_on(1, 0, 8, false));
  const WorkPtr overwriter = issue(work_on(1, 4, 5, true));
  CHECK(foreign->posted.size() == 4);
  CHECK(wait(overwriter) == WaitResult::finished && foreign->posted.size() == 5);
  // A failed operation counts as finished, because the other members post the dependent operation too.
  comm.collective->plans[7] = {.num_tests = 50, .error = Error{ErrorCode::collective_mismatch, "mismatch", {}}};
  const WorkPtr failed = issue(work_on(0, 0, 8, true));
  WorkPtr after = work_on(1, 16, 17, false);
  after->deps.push_back(failed);
  issue(after);
  CHECK(!is_done(after));
  CHECK(wait(after) == WaitResult::finished && is_done(after));
  CHECK(has_failed(failed, ErrorCode::collective_mismatch) && after->deps.empty());
}

// A member arrives and leaves at once while another one checks: it must never count as gone before its arrival.
void test_arriving_and_leaving() {
  const int kRounds = sampled_rounds(20'000);
  ThreadJob job(2);
  RankFlags& flags = job.ranks[1]->region().flags(1);
  std::atomic<int> round{0};
  const auto reset = [&] {
    flags.left.value.store(0);
    flags.staged.value.store(0);
    ++round;
  };
  std::thread member([&] {
    for (int each = 1; each <= kRounds; ++each) {
      while (round < each) sched_yield();
      flags.staged.value.store(1, std::memory_order_release);
      flags.left.value.store(1, std::memory_order_release);
    }
  });
  int num_gone = 0;
  std::vector<int> missing;
  for (int each = 1; each <= kRounds; ++each) {
    reset();
    do num_gone += !job.ranks[0]->region().gone_before_arriving(missing).empty();
    while (!missing.empty() || !flags.left.value.load(std::memory_order_acquire));
  }
  member.join();
  CHECK(num_gone == 0);
}

void test_choice() {
  TestCommunicator comm;
  comm.core->add_backend(std::make_unique<TestLane>(4), std::make_unique<TestLane>(SIZE_MAX));
  Operation op{.kind = OpKind::all_reduce, .dtype = DType::float32, .nbytes = 100};
  CHECK(comm.core->choose(op).backend == 0);
  comm.core->choices().set(OpKind::all_reduce, DTypeClass::full, {{64, {{0}, {1}}}, {UINT64_MAX, {{1}, {0}}}});
  CHECK(comm.core->choose(op).backend == 1);
  op.nbytes = 64;
  CHECK(comm.core->choose(op).backend == 0);
  op.nbytes = 65;
  op.dtype = DType::bfloat16;  // another class
  CHECK(comm.core->choose(op).backend == 0);
  op.dtype = DType::float64;
  CHECK(comm.core->choose(op).backend == 1);
  comm.core->set_allowed(1);
  CHECK(comm.core->choose(op).backend == 0 && !comm.core->allows(1));
}

}  // namespace

int main() {
  for (int size : {1, 2, 3}) test_many_in_flight(size);
  test_mismatch_does_not_reach_the_library();
  test_operation_on_another_lane();
  test_failure_of_the_library_and_cancelling();
  test_dependencies();
  test_arriving_and_leaving();
  test_choice();
  std::puts("agreement: ok");
}
