// How a thread waits for an operation, or for any other condition.
//
// A wait for an operation repeats these steps until the operation is finished:
//
//          +---------------------------------------------------------------+
//          v                                                               |
//      drive_once: drive all lanes, unless another thread does; the pump   |
//          |                                                               |
//          | Backoff::step: what to do if nothing moved                    |
//          +-- again: it has spun or yielded --------------------------+   |
//          +-- check: find which threads carry the operations ---------+   |
//          +-- sleep: drive_before_sleep: drive once more, under lock  |   |
//                |      something moved -------------------------------+   |
//                |                                                     |   |
//                +-- poll: a library that does not ring has operations |   |
//                |         in flight: block in it, or pause -----------+   |
//                +-- pump: another thread runs the pump: yield --------+   |
//                +-- doorbell: make the word odd, drive again, sleep --+   |
//                                                                      v   |
//      after a sleep, a signal or 256 rounds: drive_due_libraries, tick  --+
//          |        (every 50 ms: health, stall report, signals), deadline
//          v
//      finished | interrupted
//
// Invariant of the doorbell (core/doorbell.hpp): a thread that finishes the operation after the word is odd rings; an
// operation that was finished before is seen by the pass under the lock that follows. So no wait sleeps through its own
// end. A sleep has a limit nevertheless, because no peer rings for deadlines, deaths and signals.
#include <sched.h>
#include <time.h>

#include <algorithm>

#include "core/backoff.hpp"
#include "core/doorbell.hpp"
#include "core/engine.hpp"
#include "core/stall_report.hpp"

namespace hocket {

namespace {

constexpr uint32_t kRoundsWithoutClock = 256;

struct WaiterCount {
  explicit WaiterCount(Work& work) : work(work) { work.waiters.fetch_add(1, std::memory_order_relaxed); }
  ~WaiterCount() { work.waiters.fetch_sub(1, std::memory_order_relaxed); }
  Work& work;
};

}  // namespace

// Marks a thread that drives all lanes because it waits; the progress thread naps meanwhile. When the last such thread
// ends its wait, the progress thread takes over the operations in flight and the libraries that must be driven.
struct Engine::Driving {
  explicit Driving(Engine& engine) : engine(engine) { begin(); }
  ~Driving() { end(); }
  void begin() { engine.num_driving_.fetch_add(1, std::memory_order_seq_cst); }
  void end() {
    if (engine.num_driving_.fetch_sub(1, std::memory_order_seq_cst) > 1 || !engine.has_thread()) return;
    engine.lock_.lock();
    const bool is_idle = engine.is_idle();
    engine.lock_.unlock();
    if (!is_idle)
      engine.wake_own_process();
    else if (engine.pump_requests_.load(std::memory_order_relaxed) > 0 ||
             engine.next_library_due_ns_.load(std::memory_order_relaxed) != DrivenLibrary::kNever)
      engine.end_nap();
  }
  Engine& engine;
};

class Engine::Wait {
 public:
  Wait(Engine& engine, Work& work, double timeout_s, WaitHooks& hooks)
      : engine_(engine),
        work_(work),
        timeout_s_(timeout_s),
        hooks_(hooks),
        begin_ns_(now_ns()),
        deadline_ns_(begin_ns_ + timeout_ns(timeout_s)),
        next_tick_ns_(begin_ns_ + kTickNs),
        count_(work),
        driving_(engine),
        stall_(begin_ns_, engine.stall_report_s_, timeout_s),
        backoff_(engine.num_sharing_.load(std::memory_order_relaxed), engine.sleep_until_ns_) {}

  WaitResult run() {
    for (uint32_t round = 1; !work_.finished(); ++round) {
      has_slept_ = is_signalled_ = false;
      const bool moved = drive_once();
      if (is_to_sleep(moved, round == 1)) sleep();
      is_signalled_ |= engine_.is_interrupted_.load(std::memory_order_relaxed);
      if (!has_slept_ && !is_signalled_ && round % kRoundsWithoutClock != 0) continue;
      const int64_t now = now_ns();
      if (engine_.is_library_due(now)) {
        const std::lock_guard guard(engine_.lock_);
        engine_.drive_due_libraries(now);
      }
      if (now >= next_tick_ns_ || is_signalled_) {
        next_tick_ns_ = now + kTickNs;
        if (work_.finished()) break;
        if (!tick(now)) return WaitResult::interrupted;
      }
      if (now >= deadline_ns_) time_out();
    }
    return WaitResult::finished;
  }

 private:
  bool has_pump() const { return engine_.pump_requests_.load(std::memory_order_relaxed) > 0; }

  bool drive_once() {
    bool moved = false;
    if (engine_.lock_.try_lock()) {
      const std::lock_guard guard(engine_.lock_, std::adopt_lock);
      moved = engine_.progress();
    }
    moved |= engine_.run_pump();
    if (moved) backoff_.reset();
    return moved;
  }

  bool is_to_sleep(bool moved, bool is_first) {
    const Backoff::Next next = moved ? Backoff::Next::again : backoff_.step();
    // Threads of a library that carry an operation need the processor: do not spin.
    if (next == Backoff::Next::check || ((moved || is_first) && has_pump())) {
      const std::lock_guard guard(engine_.lock_);
      if (engine_.in_flight().has_threads) backoff_.sleep_at_once();
    }
    return next == Backoff::Next::sleep && drive_before_sleep();
  }

  // Drives once more: another thread held the lock in drive_once() and may have finished this work. Returns false if
  // the wait must not sleep.
  bool drive_before_sleep() {
    const std::lock_guard guard(engine_.lock_);
    const bool moved = engine_.progress();
    in_flight_ = engine_.in_flight();
    return !moved && !work_.finished();
  }

  void sleep() {
    if (in_flight_.most != Polling::none)
      sleep_polling();
    else if (has_pump())
      yield_to_pump();
    else
      sleep_at_doorbell();
  }

  // These libraries do not ring: avoid the doorbell, because its membarrier interrupts all ranks.
  void sleep_polling() {
    const int64_t longest = longest_sleep_ns(now_ns());
    if (!in_flight_.is_to_block() || !engine_.block(backoff_.idle_ns(), longest)) backoff_.pause(in_flight_.most);
    has_slept_ = true;
  }

  // Another thread is running the pump.
  void yield_to_pump() {
    sched_yield();
    has_slept_ = true;
  }

  void sleep_at_doorbell() {
    Doorbell& doorbell = Doorbell::mine();
    engine_.sleepers_.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t word = doorbell.prepare_sleep();
    // Not try_lock: the holder may have driven the lanes before the word was odd, and no thread would drive them again.
    engine_.lock_.lock();
    const bool moved = engine_.progress();
    const InFlight in_flight = engine_.in_flight();
    engine_.lock_.unlock();
    if (!moved && !work_.finished() && in_flight.most == Polling::none &&
        engine_.pump_requests_.load(std::memory_order_seq_cst) == 0) {
      is_signalled_ = !doorbell.sleep(word, std::clamp<int64_t>(longest_sleep_ns(now_ns()), 1, kSleepNs));
      if (doorbell.is_rung(word)) backoff_.note_ring(doorbell.ringer_processor());
      has_slept_ = true;
    }
    engine_.sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

  int64_t longest_sleep_ns(int64_t now) const {
    return std::min(deadline_ns_ - now, engine_.until_library_due_ns(now));
  }

  // The duties of every 50 ms; returns false if a signal must end the wait.
  bool tick(int64_t now) {
    std::string report;
    {
      const std::lock_guard guard(engine_.lock_);
      engine_.check_health();
      if (!work_.finished() && stall_.is_due(now) && !work_.stall_reported) {
        work_.stall_reported = true;
        report = stall_.text(work_.communicator->waiting_text(work_), now);
      }
    }
    driving_.end();  // user code may run here, or this thread may wait for the GIL
    if (!report.empty()) hooks_.stalled(report);
    const bool is_interrupted = hooks_.interrupted();
    if (!is_interrupted) engine_.run_pump(true);
    driving_.begin();
    return !is_interrupted;
  }

  void time_out() {
    const std::lock_guard guard(engine_.lock_);
    engine_.progress();
    engine_.check_health();
    if (!work_.finished()) work_.communicator->time_out(work_, timeout_s_);
  }

  Engine& engine_;
  Work& work_;
  const double timeout_s_;
  WaitHooks& hooks_;
  const int64_t begin_ns_;
  const int64_t deadline_ns_;
  int64_t next_tick_ns_;
  const WaiterCount count_;
  Driving driving_;
  const StallReport stall_;
  Backoff backoff_;
  InFlight in_flight_;
  bool has_slept_ = false;
  bool is_signalled_ = false;
};

WaitResult Engine::wait(Work& work, double timeout_s, WaitHooks& hooks) {
  if (VirtualThread* thread = VirtualThread::current()) return wait_virtual(work, timeout_s, *thread);
  return Wait(*this, work, timeout_s, hooks).run();
}

bool Engine::wait_for(const std::function<bool()>& ready, double timeout_s, WaitHooks& hooks,
                      const std::function<std::string()>& waiting_text) {
  if (VirtualThread* thread = VirtualThread::current()) return wait_for_virtual(ready, timeout_s, *thread);
  constexpr int64_t kYieldNs = 2'000'000;
  const int64_t begin = now_ns();
  const int64_t deadline = begin + timeout_ns(timeout_s);
  const StallReport stall(begin, stall_report_s_, timeout_s);
  bool is_reported = !waiting_text;
  int64_t next_tick = begin + kTickNs;
  while (true) {
    const int64_t now = now_ns();
    const bool is_tick = now >= next_tick;
    bool moved;
    std::string report;
    {
      const std::lock_guard guard(lock_);
      if (ready()) return true;
      moved = progress();
      drive_due_libraries(now);
      if (is_tick) check_health();
      if (now >= deadline) return ready();
      if (is_tick && !is_reported && stall.is_due(now)) {
        is_reported = true;
        report = stall.text(waiting_text(), now);
      }
    }
    moved |= run_pump(is_tick);
    if (!report.empty()) hooks.stalled(report);
    if (is_tick || is_interrupted_.load(std::memory_order_relaxed)) {
      next_tick = now + kTickNs;
      if (hooks.interrupted()) throw Failure(ErrorCode::interrupted, "interrupted by a signal");
    }
    if (moved) continue;
    if (now - begin < kYieldNs) {
      sched_yield();
    } else {
      // No peer rings for such a condition: test it again in a millisecond.
      timespec pause{0, 1'000'000};
      nanosleep(&pause, nullptr);
    }
  }
}

}  // namespace hocket
