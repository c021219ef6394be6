#include "core/engine.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <chrono>

#include "core/backoff.hpp"
#include "core/clock.hpp"
#include "core/doorbell.hpp"
#include "core/process.hpp"

namespace hocket {

namespace {

constexpr int64_t kNapNs = 4'000'000;  // short, because a waiting thread may be waiting for the GIL
// Limits of one blocking call, which returns early only if its own operation completes. The time grows with the wait,
// so that long waits cost almost nothing.
constexpr int64_t kShortestBlockNs = 1'000'000;
constexpr int64_t kLongestBlockNs = 4'000'000;

thread_local bool t_is_progress_thread = false;

}  // namespace

bool Engine::is_idle() const {
  return std::all_of(communicators_.begin(), communicators_.end(), [](const auto& c) { return c->idle(); });
}

void ProgressLock::lock() {
  for (int i = 0; !try_lock(); ++i) {
    if (i < 100)
      cpu_pause();
    else
      sched_yield();
  }
}

Engine& Engine::instance() {
  static auto* engine = new Engine;  // NOLINT
  return *engine;
}

void Engine::attach(const std::shared_ptr<Communicator>& communicator) { communicators().push_back(communicator); }

void Engine::detach(const Communicator& communicator) {
  std::erase_if(communicators(), [&](const auto& held) { return held.get() == &communicator; });
}

bool Engine::progress() {
  bool moved = false;
  // By index, which stays valid if the vector is reallocated (although finishing an operation must not attach or
  // detach).
  auto& own = communicators();
  for (size_t i = 0; i < own.size(); ++i)
    if (!own[i]->idle()) moved |= own[i]->progress();
  return moved;
}

InFlight Engine::in_flight() const {
  InFlight all;
  for (const auto& communicator : communicators_) communicator->add_in_flight(all);
  return all;
}

// Returns false if no blocking call is set or the time is too short.
bool Engine::block(int64_t idle_ns, int64_t longest_ns) {
  const BlockingCall call = block_.load(std::memory_order_acquire);
  if (!call || longest_ns < kShortestBlockNs) return false;
  num_blocking_.fetch_add(1, std::memory_order_relaxed);
  const bool has_blocked = call(std::min(longest_ns, std::clamp(idle_ns / 16, kShortestBlockNs, kLongestBlockNs)));
  num_blocking_.fetch_sub(1, std::memory_order_relaxed);
  return has_blocked;
}

bool Engine::run_pump(bool all) {
  if (!all && pump_requests_.load(std::memory_order_relaxed) == 0) return false;
  const Pump pump = pump_.load(std::memory_order_acquire);
  return pump && pump(all);
}

void Engine::poll() {
  progress();
  const int64_t now = now_ns();
  check_periodically(now);
  drive_due_libraries(now);
}

void Engine::note_library_due(int64_t time_ns) {
  int64_t next = next_library_due_ns_.load(std::memory_order_relaxed);
  while (time_ns < next && !next_library_due_ns_.compare_exchange_weak(next, time_ns, std::memory_order_acq_rel)) {
  }
}

void Engine::drive_due_libraries(int64_t now) {
  if (!is_library_due(now) || g_forked_child.load(std::memory_order_relaxed)) return;
  // Reset first, so that no library is forgotten: a use noted after this line calls note_library_due() after it, too; a
  // use noted before is read below.
  next_library_due_ns_.exchange(DrivenLibrary::kNever, std::memory_order_acq_rel);
  std::erase_if(libraries_, [&](const std::weak_ptr<DrivenLibrary>& held) {
    const std::shared_ptr<DrivenLibrary> library = held.lock();
    if (!library) return true;
    if (now >= library->due_ns()) library->drive(now);
    note_library_due(library->due_ns());
    return false;
  });
}

void Engine::check_periodically(int64_t now) {
  if (now < next_check_ns_) return;
  next_check_ns_ = now + kTickNs;
  check_health();
  for (size_t i = 0; i < communicators_.size(); ++i) communicators_[i]->expire(now);
}

void Engine::check_health() {
  auto& own = communicators();
  for (size_t i = 0; i < own.size(); ++i) own[i]->check_health();
}

// No other thread runs, so the thread only waits until it is scheduled again.
WaitResult Engine::wait_virtual(Work& work, double timeout_s, VirtualThread& thread) {
  const double begin_s = thread.now_s();
  while (!drive_virtual(work, begin_s, timeout_s, thread)) thread.sleep_until(begin_s + timeout_s);
  return WaitResult::finished;
}

bool Engine::drive_virtual(Work& work, double begin_s, double timeout_s, VirtualThread& thread) {
  const std::lock_guard guard(lock_);
  while (progress()) {
  }
  if (!work.finished()) check_health();
  if (work.finished()) return true;
  if (const std::optional<Error> stopped = thread.stopped())
    work.communicator->fail(*stopped);
  else if (thread.now_s() >= begin_s + timeout_s)
    work.communicator->time_out(work, timeout_s);
  return work.finished();
}

bool Engine::test_virtual(Work& work, VirtualThread& thread) {
  constexpr double kLookS = 1e-6;  // so that a loop of tests advances the clock
  const double issued_s = static_cast<double>(work.issued_ns) * 1e-9;
  if (drive_virtual(work, issued_s, work.timeout_s, thread)) return true;
  thread.sleep_until(thread.now_s() + kLookS);
  return drive_virtual(work, issued_s, work.timeout_s, thread);
}

void Engine::wait_until(double time_s, VirtualThread& thread) {
  while (thread.now_s() < time_s) {
    {
      const std::lock_guard guard(lock_);
      while (progress()) {
      }
      check_health();
    }
    if (const std::optional<Error> stopped = thread.stopped()) throw Failure(*stopped);
    thread.sleep_until(time_s);
  }
}

bool Engine::wait_for_virtual(const std::function<bool()>& ready, double timeout_s, VirtualThread& thread) {
  const double until_s = thread.now_s() + timeout_s;
  while (true) {
    {
      const std::lock_guard guard(lock_);
      while (progress()) {
      }
      if (ready()) return true;
      if (thread.now_s() >= until_s || thread.stopped()) return false;
    }
    thread.sleep_until(until_s);
  }
}

void Engine::wake_own_process() {
  if (sleepers_.load(std::memory_order_seq_cst) > 0) detail::ring_slow(Doorbell::mine().page());
  end_nap();
}

void Engine::wake_thread() {
  is_thread_needed_.store(true, std::memory_order_seq_cst);
  wake_own_process();
}

void Engine::note_finished(const Work&) { wake_own_process(); }

void Engine::on_finished(const WorkPtr& work, std::function<void()> callback) {
  lock_.lock();
  callbacks_.push_back({work, std::move(callback)});
  has_callbacks_.store(true, std::memory_order_seq_cst);
  lock_.unlock();
  start_thread();
  wake_own_process();
}

void Engine::wait_for_callbacks(const Communicator& communicator, double timeout_s) {
  constexpr timespec kPause = {0, 50'000};
  const int64_t deadline_ns = now_ns() + static_cast<int64_t>(timeout_s * 1e9);
  while (!t_is_progress_thread && has_thread() && now_ns() < deadline_ns) {
    lock_.lock();
    const bool any =
        std::any_of(callbacks_.begin(), callbacks_.end(),
                    [&](const Callback& callback) {
                      return callback.work->communicator.get() == &communicator && callback.work->finished();
                    }) ||
        std::find(called_.begin(), called_.end(), &communicator) != called_.end();
    lock_.unlock();
    if (!any) return;
    wake_own_process();
    nanosleep(&kPause, nullptr);
  }
}

void Engine::start_thread() {
  if (t_is_progress_thread) return;
  std::lock_guard guard(thread_mutex_);
  if (thread_.joinable() || no_more_threads_) return;
  thread_stop_.store(false);
  thread_ = std::thread([this] { run_thread(); });
  thread_running_.store(true);
}

void Engine::stop_thread() { stop_thread(false); }

void Engine::stop_thread_for_good() { stop_thread(true); }

void Engine::stop_thread(bool for_good) {
  if (t_is_progress_thread) return;
  std::lock_guard guard(thread_mutex_);
  no_more_threads_ |= for_good;
  if (!thread_.joinable()) return;
  thread_stop_.store(true, std::memory_order_seq_cst);
  detail::ring_slow(Doorbell::mine().page());
  end_nap();
  thread_.join();
  thread_running_.store(false);
}

// Sleeps while another thread waits and drives all lanes. Otherwise every ring would wake both threads.
void Engine::nap() {
  if (!is_to_nap()) return;
  std::unique_lock guard(nap_mutex_);
  is_napping_.store(true, std::memory_order_seq_cst);
  nap_end_.wait_for(guard, std::chrono::nanoseconds(kNapNs), [&] { return !is_to_nap(); });
  is_napping_.store(false, std::memory_order_relaxed);
}

bool Engine::is_to_nap() const {
  return num_driving_.load(std::memory_order_seq_cst) > 0 && !has_callbacks_.load(std::memory_order_seq_cst) &&
         !is_thread_needed_.load(std::memory_order_seq_cst) && !thread_stop_.load(std::memory_order_seq_cst);
}

void Engine::end_nap() {
  if (!is_napping_.load(std::memory_order_seq_cst) || is_to_nap()) return;
  const std::lock_guard guard(nap_mutex_);
  nap_end_.notify_one();
}

void Engine::run_thread() {
  t_is_progress_thread = true;
  Doorbell& doorbell = Doorbell::mine();
  int64_t idle_since_ns = now_ns();
  int64_t nap_from_ns = 0;
  uint32_t word = 0;  // odd after an idle pass; then one more pass while the doorbell's word is odd, then sleep
  while (true) {
    // Read before the pass: callbacks of work that was finished before the stop still run.
    const bool stop = thread_stop_.load(std::memory_order_seq_cst);
    if (now_ns() >= nap_from_ns) nap();
    // A thread that blocks in a library does not drive an operation that was just issued, so do not nap.
    if (is_thread_needed_.exchange(false, std::memory_order_seq_cst) &&
        num_blocking_.load(std::memory_order_relaxed) > 0)
      nap_from_ns = now_ns() + kLongestBlockNs;
    lock_.lock();
    bool moved = progress();
    const int64_t now = now_ns();
    check_periodically(now);
    drive_due_libraries(now);
    const InFlight in_flight = this->in_flight();
    const bool idle = is_idle();
    std::vector<std::function<void()>> calls;
    std::erase_if(callbacks_, [&](Callback& callback) {
      if (!callback.work->finished()) return false;
      calls.push_back(std::move(callback.call));
      called_.push_back(callback.work->communicator.get());
      return true;
    });
    has_callbacks_.store(!callbacks_.empty(), std::memory_order_seq_cst);
    lock_.unlock();
    moved |= run_pump();
    for (const auto& call : calls) call();
    if (!calls.empty()) {
      lock_.lock();
      called_.clear();
      lock_.unlock();
    }
    // One more pass after callbacks: they may have added further callbacks.
    if (stop && calls.empty()) break;
    if (moved) idle_since_ns = now_ns();
    if (stop || moved || !calls.empty()) continue;
    if (in_flight.most != Polling::none) {
      // Block for the shortest time: an operation issued meanwhile needs this thread, and does not end the call.
      if (!in_flight.is_to_block() || !block(0, until_library_due_ns(now)))
        Backoff::pause_after(now_ns() - idle_since_ns, in_flight.most);
      continue;
    }
    if (!word) {
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      word = doorbell.prepare_sleep();
      continue;
    }
    // If nothing is in flight, only an issue, a callback or stop_thread() brings work, and all of them ring.
    // Sleep at least kLongestPatientPauseNs even if a library is due: other threads need the processor and the GIL.
    const int64_t until_library_due = std::max(until_library_due_ns(now_ns()), Backoff::kLongestPatientPauseNs);
    doorbell.sleep(word, std::min(until_library_due, idle ? 20 * kSleepNs : kSleepNs));
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    word = 0;
    if (!idle) run_pump(true);
  }
  if (word) sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace hocket
