// Threads in the engine: the progress thread, its callbacks, and several threads that wait at the same time.
#include <condition_variable>
#include <cstdio>
#include <random>
#include <thread>

#include "core/doorbell.hpp"
#include "test_lane.hpp"

namespace {

using namespace hocket;

Engine& engine() { return Engine::instance(); }

// An event that another thread waits for, with a deadline.
class Signal {
 public:
  void set() {
    const std::lock_guard guard(mutex_);
    is_set_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock guard(mutex_);
    CHECK(changed_.wait_for(guard, std::chrono::seconds(60), [&] { return is_set_; }));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_set_ = false;
};

// Callbacks run on the progress thread, without the lock, also for work that has finished before or failed; a callback
// may use the engine.
void test_callbacks() {
  TestCommunicator comm;
  comm.collective->plans[1].num_tests = 10;  // few, because the thread pauses in between
  comm.collective->plans[2].error = Error{ErrorCode::collective_mismatch, "mismatch", {}};
  const std::thread::id here = std::this_thread::get_id();
  for (int i = 0; i < 3; ++i) {
    const WorkPtr work = comm.issue();
    if (i == 2) CHECK(wait(work) == WaitResult::finished);
    Signal called, called_again;
    engine().on_finished(work, [&] {
      CHECK(work->finished() && std::this_thread::get_id() != here);
      engine().lock().lock();
      engine().lock().unlock();
      engine().on_finished(work, [&] { called_again.set(); });
      called.set();
    });
    called.wait();
    called_again.wait();
  }
  CHECK(engine().has_thread());
  engine().stop_thread();
  CHECK(!engine().has_thread());
}

// Callbacks of work that is finished when the thread is stopped still run.
void test_stop_runs_callbacks() {
  TestCommunicator comm;
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> calls{0};
    for (int i = 0; i < 5; ++i) engine().on_finished(comm.issue(), [&] { ++calls; });
    engine().stop_thread();
    CHECK(calls.load() == 5);
  }
}

void test_progress_thread_expires() {
  TestCommunicator a("a"), b("b");
  engine().start_thread();
  a.locked([&] { a.collective->plans[1].num_tests = -1; });
  const WorkPtr forgotten = a.issue(OpKind::barrier, 0.1);
  const WorkPtr of_b = b.issue(OpKind::barrier, 0.1);
  Signal over;
  engine().on_finished(forgotten, [&] { over.set(); });
  over.wait();
  CHECK(has_failed(forgotten, ErrorCode::comm_timeout) && a.is_broken());
  CHECK(wait(of_b) == WaitResult::finished && is_done(of_b) && !b.is_broken());
  // A thread that waits for an operation checks the deadline of its own wait instead.
  TestCommunicator c("c");
  std::atomic<bool> open{false};
  c.locked([&] { c.collective->plans[1].ready = [&] { return open.load(); }; });
  const WorkPtr awaited = c.issue(OpKind::barrier, 0.05);
  std::thread waiter([&] { CHECK(wait(awaited, 60) == WaitResult::finished && is_done(awaited)); });
  while (awaited->waiters.load() == 0) sched_yield();
  const int64_t until = now_ns() + timeout_ns(0.2);
  while (now_ns() < until) sched_yield();
  open.store(true);
  ring(Doorbell::mine().page());
  waiter.join();
  engine().stop_thread();
}

// Dead peers are detected even if nothing is in flight.
void test_progress_thread_checks_health() {
  TestCommunicator comm;
  engine().start_thread();
  comm.locked([&] { comm.collective->health_error = Error{ErrorCode::peer_failure, "rank 1 died", {1}}; });
  const int64_t deadline = now_ns() + timeout_ns(60);
  while (!comm.is_broken()) {
    CHECK(now_ns() < deadline);
    sched_yield();
  }
  engine().stop_thread();
}

void test_many_waiters_of_one_work() {
  for (bool with_thread : {false, true}) {
    TestCommunicator comm;
    std::atomic<bool> open{false};
    comm.collective->plans[1].ready = [&] { return open.load(); };
    const WorkPtr work = comm.issue();
    if (with_thread) engine().start_thread();
    std::vector<std::thread> waiters;
    for (int i = 0; i < 4; ++i)
      waiters.emplace_back([&] { CHECK(wait(work) == WaitResult::finished && is_done(work)); });
    while (work->waiters.load() < 4) sched_yield();
    open.store(true);
    ring(Doorbell::mine().page());
    for (std::thread& waiter : waiters) waiter.join();
    CHECK(work->waiters.load() == 0);
    engine().stop_thread();
  }
}

// A wait that is blocked in a signal handler of the program does not stop the progress thread.
void test_progress_beside_a_blocked_wait() {
  TestCommunicator blocked;
  TestCommunicator comm;
  std::atomic<bool> is_over{false};
  std::atomic<bool> is_blocked{false};
  blocked.collective->plans[1].ready = [&] { return is_over.load(); };
  comm.collective->plans[1].num_tests = 20'000;  // more than a thread with one test every 4 ms makes in a minute
  engine().start_thread();
  struct BlockingHooks : WaitHooks {
    BlockingHooks(std::atomic<bool>& is_over, std::atomic<bool>& is_blocked)
        : is_over(is_over), is_blocked(is_blocked) {}
    bool interrupted() override {
      is_blocked.store(true);
      while (!is_over.load()) sched_yield();
      return false;
    }
    std::atomic<bool>& is_over;
    std::atomic<bool>& is_blocked;
  };
  const WorkPtr awaited = blocked.issue();
  std::thread waiter([&] {
    BlockingHooks hooks(is_over, is_blocked);
    CHECK(engine().wait(*awaited, 120, hooks) == WaitResult::finished);
  });
  while (!is_blocked.load()) sched_yield();
  const WorkPtr work = comm.issue();
  const int64_t deadline = now_ns() + timeout_ns(60);
  while (!work->finished()) {
    CHECK(now_ns() < deadline);
    ring(Doorbell::mine().page());
    sched_yield();
  }
  is_over.store(true);
  ring(Doorbell::mine().page());
  waiter.join();
  engine().stop_thread();
}

// Each thread has a communicator of its own, issues operations and waits; a peer thread publishes and rings. Other
// threads may drive a thread's lanes at any time.
void test_many_threads(bool with_progress_thread) {
  constexpr int kThreads = 4;
  constexpr uint64_t kOperations = 200;
  if (with_progress_thread) engine().start_thread();
  std::atomic<uint64_t> published[kThreads]{};
  std::atomic<int> num_running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      {
        TestCommunicator comm;
        std::mt19937 random(static_cast<unsigned>(t));
        comm.locked([&] {
          for (uint64_t seq = 1; seq <= kOperations; ++seq) {
            TestLane::Plan& plan = comm.collective->plans[seq];
            plan.num_tests = static_cast<int>(random() % 5 + 1);
            if (seq % 3 == 0) plan.ready = [&published, t, seq] { return published[t].load() >= seq; };
            if (seq % 50 == 7) plan.error = Error{ErrorCode::collective_mismatch, "mismatch", {}};
          }
        });
        std::vector<WorkPtr> works;
        for (uint64_t seq = 1; seq <= kOperations; ++seq) {
          works.push_back(comm.issue());
          if (random() % 3 == 0) CHECK(wait(works[random() % works.size()]) == WaitResult::finished);
        }
        for (const WorkPtr& work : works) CHECK(wait(work) == WaitResult::finished);
        for (uint64_t i = 0; i < kOperations; ++i) CHECK(is_done(works[i]) == ((i + 1) % 50 != 7));
        CHECK(!comm.is_broken() && comm.core->idle());
      }
      --num_running;
    });
  std::thread peer([&] {
    std::mt19937 random(99);
    while (num_running.load() > 0) {
      published[random() % kThreads].fetch_add(3, std::memory_order_release);
      ring(Doorbell::mine().page());
      for (unsigned i = random() % 2000; i > 0; --i) cpu_pause();
    }
  });
  for (std::thread& thread : threads) thread.join();
  peer.join();
  engine().stop_thread();
}

// A library with data left to send, which is sent after `num_left` drives.
class LibraryWithDataLeft final : public DrivenLibrary {
 public:
  explicit LibraryWithDataLeft(int num_left = 1) : num_left_(num_left) {}
  bool is_empty() const { return num_driven_ >= num_left_; }
  Signal emptied;

 private:
  void drive() override {
    if (++num_driven_ == num_left_) emptied.set();
  }
  const int num_left_;
  int num_driven_ = 0;  // under the lock
};

std::shared_ptr<LibraryWithDataLeft> add_library_with_data_left(int num_left) {
  auto library = std::make_shared<LibraryWithDataLeft>(num_left);
  {
    const std::lock_guard guard(engine().lock());
    engine().add(library);
  }
  library->note_use();
  return library;
}

// Every kind of wait and poll drives a library that has data left to send.
void test_data_left_to_send() {
  TestCommunicator comm;
  for (int num_left : {1, 5}) {
    const auto library = add_library_with_data_left(num_left);
    comm.collective->plans[comm.locked([&] { return comm.core->collectives_issued(); }) + 1].ready = [&] {
      return library->is_empty();
    };
    CHECK(wait(comm.issue()) == WaitResult::finished);
  }
  const auto library = add_library_with_data_left(3);
  WaitHooks hooks;
  CHECK(engine().wait_for([&] { return library->is_empty(); }, 60, hooks));
  const auto polled = add_library_with_data_left(3);
  while (!comm.locked([&] { return polled->is_empty(); })) comm.locked([] { engine().poll(); });
  const auto passed = add_library_with_data_left(3);
  while (!comm.locked([&] { return passed->is_empty(); })) comm.locked([] { engine().progress_others(); });
  engine().start_thread();
  const auto by_thread = add_library_with_data_left(3);
  by_thread->emptied.wait();
  engine().stop_thread();
}

// A library that was never used is not driven; pauses grow with the time since the last use.
void test_pauses() {
  LibraryWithDataLeft library;
  CHECK(library.due_ns() == DrivenLibrary::kNever);
  const int64_t before = now_ns();
  library.note_use();
  const int64_t after = now_ns();
  CHECK(library.due_ns() > before && library.due_ns() < after + 1'000'000);
  const auto pause_at = [&](int64_t since_ns) {
    library.DrivenLibrary::drive(before + since_ns);
    return library.due_ns() - (before + since_ns);
  };
  const int64_t at_8_ms = pause_at(8'000'000);
  CHECK(at_8_ms <= 1'000'000 && at_8_ms >= 1'000'000 - (after - before));
  CHECK(pause_at(3'600'000'000'000) == 1'000'000'000);
}

}  // namespace

int main() {
  for (bool oversubscribed : {false, true}) {
    engine().set_num_sharing(oversubscribed ? 4 : 0);
    test_callbacks();
    test_stop_runs_callbacks();
    test_progress_thread_expires();
    test_many_waiters_of_one_work();
    test_progress_beside_a_blocked_wait();
    test_many_threads(false);
    test_many_threads(true);
    test_data_left_to_send();
  }
  test_pauses();
  test_progress_thread_checks_health();
  std::puts("engine: ok");
  return 0;
}
