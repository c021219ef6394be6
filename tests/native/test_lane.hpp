// A lane without a library: it delays, fails and reports bad health as planned, and records all calls.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "check.hpp"
#include "core/clock.hpp"
#include "core/engine.hpp"

namespace hocket {

class TestLane final : public Lane {
 public:
  // The planned course of the operation with a certain sequence number; by default it is done at its first test.
  struct Plan {
    int num_tests = 1;                 // done at this test; -1: never
    std::function<bool()> ready = {};  // and not before this returns true
    std::optional<Error> error = {};   // fails with this error instead of done
    bool fails_in_post = false;        // fails in post() with `error`
    bool throws_other = false;         // throws an exception that is not a Failure
    bool unnoticed = true;             // return value of cancel()
  };

  explicit TestLane(size_t depth) : depth_(depth) {}

  std::map<uint64_t, Plan> plans;
  std::optional<Error> health_error;
  int64_t num_health_checks = 0;
  bool all_short = false;
  std::vector<uint64_t> posted;
  std::vector<uint64_t> done;
  std::vector<uint64_t> cancelled;
  std::vector<Error> abandoned;
  size_t num_in_flight = 0;
  size_t most_in_flight = 0;
  int64_t num_tests = 0;

  const char* backend() const override { return "test"; }
  size_t depth() const override { return depth_; }
  bool is_short(const Operation&) const override { return all_short; }

  Progress post(Operation& op) override {
    const Plan& plan = plans[op.seq];
    posted.push_back(op.seq);
    if (plan.fails_in_post) throw Failure(*plan.error);
    most_in_flight = std::max(most_in_flight, ++num_in_flight);
    counts_.push_back(std::make_unique<int>(0));
    op.token = counts_.back().get();
    return Progress::moved;
  }

  Progress test(Operation& op) override {
    const Plan& plan = plans[op.seq];
    CHECK(op.token);
    int& count = *static_cast<int*>(op.token);
    ++num_tests;
    ++count;
    if (plan.num_tests < 0 || count < plan.num_tests || (plan.ready && !plan.ready())) return Progress::waiting;
    forget(op);
    if (plan.error) throw Failure(*plan.error);
    if (plan.throws_other) throw std::bad_alloc();
    done.push_back(op.seq);
    return Progress::done;
  }

  std::vector<int> missing(const Operation& op) const override {
    return {static_cast<int>(op.seq), static_cast<int>(op.seq) + 1};
  }

  bool cancel(Operation& op) noexcept override {
    CHECK(op.token);
    cancelled.push_back(op.seq);
    forget(op);
    return plans[op.seq].unnoticed;
  }

  std::optional<Error> health() override {
    ++num_health_checks;
    return health_error;
  }
  void abandon(const Error& error) noexcept override { abandoned.push_back(error); }

 private:
  void forget(Operation& op) {
    op.token = nullptr;
    --num_in_flight;
  }

  size_t depth_;
  std::vector<std::unique_ptr<int>> counts_;
};

// A communicator of 4 over two test lanes, attached to the engine while it lives.
class TestCommunicator {
 public:
  explicit TestCommunicator(const char* label = "world") {
    auto collective_lane = std::make_unique<TestLane>(1);
    auto point_to_point_lane = std::make_unique<TestLane>(SIZE_MAX);
    collective = collective_lane.get();
    point_to_point = point_to_point_lane.get();
    core = std::make_shared<Communicator>(0, 4, 1, label);
    core->add_backend(std::move(collective_lane), std::move(point_to_point_lane));
    const std::lock_guard guard(engine().lock());
    engine().attach(core);
  }
  ~TestCommunicator() {
    const std::lock_guard guard(engine().lock());
    if (!core->idle()) core->fail({ErrorCode::aborted, "the test is over", {}});
    engine().detach(*core);
  }
  TestCommunicator(const TestCommunicator&) = delete;
  TestCommunicator& operator=(const TestCommunicator&) = delete;

  static Engine& engine() { return Engine::instance(); }

  WorkPtr make(OpKind kind, double timeout_s = 60) const {
    auto work = std::make_shared<Work>();
    work->op = {.kind = kind, .root = kind == OpKind::barrier ? -1 : 1, .site = "test.py:3"};
    work->communicator = core;
    work->issued_ns = now_ns();
    work->timeout_s = timeout_s;
    return work;
  }

  WorkPtr issue(OpKind kind = OpKind::barrier, double timeout_s = 60) {
    WorkPtr work = make(kind, timeout_s);
    {
      const std::lock_guard guard(engine().lock());
      core->issue(work, 0);
    }
    engine().wake_own_process();
    return work;
  }

  // Calls a function under the progress lock.
  template <typename Function>
  auto locked(Function&& function) {
    const std::lock_guard guard(engine().lock());
    return function();
  }
  bool is_broken() {
    return locked([&] { return core->failure().has_value(); });
  }

  std::shared_ptr<Communicator> core;
  TestLane* collective;
  TestLane* point_to_point;
};

inline WaitResult wait(const WorkPtr& work, double timeout_s = 60) {
  WaitHooks hooks;
  return Engine::instance().wait(*work, timeout_s, hooks);
}

inline bool is_done(const WorkPtr& work) { return work->state.load() == Work::State::done; }
inline bool has_failed(const WorkPtr& work, ErrorCode code) {
  return work->state.load() == Work::State::failed && work->error && work->error->code == code;
}

}  // namespace hocket
