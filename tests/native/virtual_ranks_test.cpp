// Virtual ranks: threads that run one at a time on a virtual clock, each with a communicator of its own.
#include "sim/virtual_ranks.hpp"

#include <cstdio>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "check.hpp"
#include "core/engine.hpp"
#include "sim/virtual_lanes.hpp"

using namespace hocket;

namespace {

constexpr double kCollectiveS = 1.0, kMessageS = 0.25;

std::shared_ptr<sim::VirtualRanks> make_ranks(int num_ranks) {
  const sim::Costs costs{[](uint64_t, const Operation&, const std::vector<int>&) { return kCollectiveS; },
                         [](int, int, uint64_t) { return sim::MessageCost{0.0, kMessageS}; }};
  return std::make_shared<sim::VirtualRanks>(num_ranks, costs, true);
}

// The objects of a rank; they live as long as its thread.
class Rank {
 public:
  Rank(const std::shared_ptr<sim::VirtualRanks>& ranks, int rank) : rank(rank), size(ranks->num_ranks) {
    std::vector<int> members(static_cast<size_t>(size));
    std::iota(members.begin(), members.end(), 0);
    std::shared_ptr<sim::Group> group;
    {
      const std::lock_guard lock(ranks->mutex());
      group = ranks->group(2, members);
    }
    comm_ = std::make_shared<Communicator>(rank, size, 2, "world");
    const std::lock_guard guard(engine().lock());
    comm_->add_backend(std::make_unique<sim::VirtualCollectives>(ranks, group, rank),
                       std::make_unique<sim::VirtualMessages>(ranks, group, rank));
    engine().attach(comm_);
  }
  ~Rank() {
    const std::lock_guard guard(engine().lock());
    comm_->close();
    engine().detach(*comm_);
  }
  static Engine& engine() { return Engine::instance(); }
  static double now_s() { return VirtualThread::current()->now_s(); }

  WorkPtr issue(const Operation& op) {
    auto work = std::make_shared<Work>();
    work->op = op;
    work->op.site = "virtual_ranks_test";
    work->communicator = comm_;
    const std::lock_guard guard(engine().lock());
    comm_->issue(work, 0);
    return work;
  }
  std::optional<Error> wait(const WorkPtr& work, double timeout_s = 60.0) {
    WaitHooks hooks;
    engine().wait(*work, timeout_s, hooks);
    return work->error;
  }
  std::optional<Error> run(const Operation& op, double timeout_s = 60.0) { return wait(issue(op), timeout_s); }

  const int rank, size;

 private:
  std::shared_ptr<Communicator> comm_;
};

Operation message(OpKind kind, int peer, void* array, uint64_t nbytes) {
  auto* bytes = static_cast<std::byte*>(array);
  return {.kind = kind,
          .root = peer,
          .nbytes = nbytes,
          .in = kind == OpKind::send ? bytes : nullptr,
          .out = kind == OpKind::recv ? bytes : nullptr};
}

template <typename Body>
void run_ranks(int num_ranks, const Body& body) {
  const auto ranks = make_ranks(num_ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank)
    threads.emplace_back([&ranks, &body, rank] {
      ranks->begin(rank);
      {
        Rank own(ranks, rank);
        body(own);
      }
      ranks->end(rank);
    });
  ranks->start();
  for (std::thread& thread : threads) thread.join();
}

void results_and_clocks() {
  run_ranks(5, [](Rank& rank) {
    float x[2] = {static_cast<float>(rank.rank), 1.0f};
    auto* bytes = reinterpret_cast<std::byte*>(x);
    const Operation sum{
        .kind = OpKind::all_reduce, .dtype = DType::float32, .nbytes = sizeof x, .in = bytes, .out = bytes};
    Rank::engine().wait_until(0.1 * rank.rank, *VirtualThread::current());
    CHECK(!rank.run(sum));
    CHECK(x[0] == 10.0f && x[1] == 5.0f && Rank::now_s() == 0.1 * 4 + kCollectiveS);
    int32_t mine = rank.rank, left = -1;
    const WorkPtr receive = rank.issue(message(OpKind::recv, (rank.rank + 4) % 5, &left, sizeof left));
    CHECK(!rank.run(message(OpKind::send, (rank.rank + 1) % 5, &mine, sizeof mine)));
    CHECK(!rank.wait(receive));
    CHECK(left == (rank.rank + 4) % 5);
  });
}

void messages_share_a_connection() {
  run_ranks(4, [](Rank& rank) {
    uint8_t x[3] = {};
    if (rank.rank > 0) {
      x[0] = static_cast<uint8_t>(rank.rank);
      CHECK(!rank.run(message(OpKind::send, 0, x, 1)));
      return;
    }
    for (const int peer : {3, 1, 2}) CHECK(!rank.run(message(OpKind::recv, peer, x + peer - 1, 1)));
    CHECK(x[0] == 1 && x[1] == 2 && x[2] == 3 && Rank::now_s() == 3 * kMessageS);
  });
}

void errors_of_operations() {
  run_ranks(3, [](Rank& rank) {
    const Operation barrier{};
    Operation other{.kind = OpKind::broadcast, .root = 0};
    const std::optional<Error> mismatch = rank.run(rank.rank == 1 ? other : barrier);
    CHECK(mismatch && mismatch->code == ErrorCode::collective_mismatch);
    uint8_t x = 0;
    if (rank.rank == 0) {
      const std::optional<Error> late = rank.run(message(OpKind::recv, 1, &x, 1), 2.0);
      CHECK(late && late->code == ErrorCode::comm_timeout && late->ranks == std::vector<int>{1});
    }
    CHECK(!rank.run(barrier));  // the timeout of the receive does not break the communicator
    if (rank.rank == 2) return;
    const std::optional<Error> left = rank.run(barrier);
    CHECK(left && left->code == ErrorCode::peer_failure && left->ranks == std::vector<int>{2});
  });
}

void stop_fails_all_waits() {
  const auto ranks = make_ranks(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&ranks, rank] {
      ranks->begin(rank);
      {
        Rank own(ranks, rank);
        std::optional<Error> error;
        while (!error) error = own.run(Operation{});
        CHECK(error->code == ErrorCode::aborted && error->message == "enough");
      }
      ranks->end(rank);
    });
  ranks->start();
  ranks->stop({ErrorCode::aborted, "enough"});
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main() {
  results_and_clocks();
  messages_share_a_connection();
  errors_of_operations();
  stop_fails_all_waits();
  std::puts("virtual ranks: all passed");
}
