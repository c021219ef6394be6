// The unified progress loop (rules R2 and R3): every wait drives all lanes of all communicators of the process.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/clock.hpp"
#include "core/communicator.hpp"
#include "core/driven_library.hpp"
#include "core/virtual_thread.hpp"

namespace hocket {

// Held for one pass over the lanes; its holder never blocks. A thread that holds the GIL uses only try_lock().
class ProgressLock {
 public:
  bool try_lock() { return !held_.exchange(true, std::memory_order_acquire); }
  void lock();
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

// Callbacks of a waiting thread to the code outside the core; called without the progress lock.
class WaitHooks {
 public:
  virtual ~WaitHooks() = default;
  // True if the wait must end now (a signal handler raised).
  virtual bool interrupted() { return false; }
  virtual void stalled(const std::string&) {}
};

enum class WaitResult : uint8_t { finished, interrupted };

// Drives the lanes that need the Python interpreter; true if anything moved. `all`: also lanes that did not request it.
using Pump = bool (*)(bool all);
// Blocks in the interpreter until an operation that is in flight there may be complete, at most timeout_ns; returns
// false at once if no operation can be waited for in this way.
using BlockingCall = bool (*)(int64_t timeout_ns);

class Engine {
 public:
  // Never destroyed: when the process ends, threads may still be inside, and a forked child owns no part of it.
  static Engine& instance();

  ProgressLock& lock() { return lock_; }

  // Call the following three under the lock.
  void attach(const std::shared_ptr<Communicator>& communicator);
  void detach(const Communicator& communicator);
  bool progress();
  // Call after an operation of the fast path (Communicator::try_short), which requires only its own communicator to be
  // idle.
  void progress_others() {
    if (communicators().size() > 1) progress();
    if (++num_fast_paths_ % kFastPathsPerClockRead == 0) drive_due_libraries(now_ns());
  }
  // progress(), and now and then the other duties of the progress thread; for callers that poll.
  void poll();

  // Keeps the first failure that the program has not seen, of a communicator that it has dropped; under the lock.
  void keep_unseen(Error error) {
    if (!unseen_) unseen_ = std::move(error);
  }
  std::optional<Error> take_unseen() { return std::exchange(unseen_, std::nullopt); }

  // Adds a library; waits and calls drive it from time to time, as long as it lives. Under the lock.
  void add(const std::shared_ptr<DrivenLibrary>& library) { libraries_.push_back(library); }
  // Drives the libraries that are due; under the lock.
  void drive_due_libraries(int64_t now);
  // A library is due at time_ns. From any thread.
  void note_library_due(int64_t time_ns);

  // Waits until the work is finished (then see work.error) or a signal. After timeout_s the wait times out, which fails
  // the work.
  WaitResult wait(Work& work, double timeout_s, WaitHooks& hooks);
  // Waits for a condition that is not an operation; false after the timeout. `waiting_text` gives the stall report; no
  // report if it is empty. Both functions are called under the lock.
  bool wait_for(const std::function<bool()>& ready, double timeout_s, WaitHooks& hooks,
                const std::function<std::string()>& waiting_text = {});

  // Waits until a virtual clock reaches time_s; drives the lanes whenever an operation of this rank completes. Throws
  // the error that stopped the job.
  void wait_until(double time_s, VirtualThread& thread);
  // Tests whether the work is finished, which takes a moment of the virtual clock; the work fails after its timeout.
  bool test_virtual(Work& work, VirtualThread& thread);

  // Lanes that are driven by calls into Python cannot be driven under the lock: they request the pump, and waiting
  // threads call it without the lock. Set once, before the first such lane.
  void set_pump(Pump pump, BlockingCall block) {
    block_.store(block, std::memory_order_release);
    pump_.store(pump, std::memory_order_release);
  }
  // A signal handler raised while the pump was in Python: the main thread's wait must end.
  void note_interruption(bool is_pending) { is_interrupted_.store(is_pending, std::memory_order_release); }
  void request_pump(int count) { pump_requests_.fetch_add(count, std::memory_order_seq_cst); }
  // Runs the pump if a lane requested it. Call without the lock.
  bool run_pump(bool all = false);

  // How many ranks of this host share its processors: then a spinning rank takes processor time from the rank that it
  // waits for. 0: each rank has a processor of its own.
  void set_num_sharing(int num_ranks) { num_sharing_.store(num_ranks, std::memory_order_relaxed); }
  void set_stall_report_s(double seconds) { stall_report_s_ = seconds; }

  // The progress thread drives the lanes if no other thread does, and runs callbacks without the lock. Callbacks of
  // work that is finished when stop_thread() is called still run. Both methods do nothing on the progress thread
  // itself, because a callback may call them.
  void start_thread();
  void stop_thread();
  // The interpreter is about to end: no callback may run after this, and the thread never starts again.
  void stop_thread_for_good();
  bool has_thread() const { return thread_running_.load(std::memory_order_relaxed); }
  // Runs `callback` on the progress thread once the work is finished (soon if it is finished already).
  void on_finished(const WorkPtr& work, std::function<void()> callback);
  // Waits until the callbacks of a communicator's finished works have run, or the timeout. Call without the lock.
  void wait_for_callbacks(const Communicator& communicator, double timeout_s);
  void note_finished(const Work& work);
  void wake_own_process();
  // Call after an asynchronous issue if the progress thread runs.
  void wake_thread();

 private:
  Engine() = default;
  // The communicators that this thread drives.
  std::vector<std::shared_ptr<Communicator>>& communicators() {
    VirtualThread* thread = VirtualThread::current();
    return thread ? thread->communicators : communicators_;
  }
  WaitResult wait_virtual(Work& work, double timeout_s, VirtualThread& thread);
  bool wait_for_virtual(const std::function<bool()>& ready, double timeout_s, VirtualThread& thread);
  bool drive_virtual(Work& work, double begin_s, double timeout_s, VirtualThread& thread);
  void run_thread();
  void nap();
  bool is_to_nap() const;
  void end_nap();  // after a store that makes is_to_nap() false
  struct Driving;
  class Wait;
  bool is_idle() const;  // nothing is in flight; under the lock
  void stop_thread(bool for_good);
  void check_periodically(int64_t now);
  void check_health();
  InFlight in_flight() const;
  bool block(int64_t idle_ns, int64_t longest_ns);
  bool is_library_due(int64_t now) const { return now >= next_library_due_ns_.load(std::memory_order_relaxed); }
  // How long to sleep at most before a library is due.
  int64_t until_library_due_ns(int64_t now) const { return next_library_due_ns_.load(std::memory_order_relaxed) - now; }

  static constexpr int64_t kTickNs = 50'000'000;           // between checks for dead peers, deadlines and signals,
  static constexpr int64_t kSleepNs = kTickNs;             // for which no peer rings
  static constexpr uint32_t kFastPathsPerClockRead = 256;  // operations of the fast path between two reads of the clock

  ProgressLock lock_;
  std::vector<std::shared_ptr<Communicator>> communicators_;  // of ranks that are processes
  std::vector<std::weak_ptr<DrivenLibrary>> libraries_;
  std::atomic<int64_t> next_library_due_ns_{DrivenLibrary::kNever};
  uint32_t num_fast_paths_ = 0;
  std::optional<Error> unseen_;
  std::vector<const Communicator*> called_;  // of the works whose callbacks the progress thread is running
  std::atomic<int> num_driving_{0};          // threads within Driving
  std::atomic<int> num_blocking_{0};         // threads within block()
  std::mutex nap_mutex_;
  std::condition_variable nap_end_;
  std::atomic<bool> is_napping_{false};
  std::atomic<bool> is_thread_needed_{false};
  std::atomic<bool> has_callbacks_{false};
  std::atomic<int> num_sharing_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<Pump> pump_{nullptr};
  std::atomic<BlockingCall> block_{nullptr};
  std::atomic<bool> is_interrupted_{false};
  std::atomic<int> pump_requests_{0};       // number of lanes that request the pump
  std::atomic<int64_t> sleep_until_ns_{0};  // waits do not yield before that time
  double stall_report_s_ = 10.0;
  int64_t next_check_ns_ = 0;  // under the lock

  std::thread thread_;
  std::mutex thread_mutex_;  // start and stop only
  std::atomic<bool> thread_running_{false};
  std::atomic<bool> thread_stop_{false};
  bool no_more_threads_ = false;  // under thread_mutex_
  struct Callback {
    WorkPtr work;
    std::function<void()> call;
  };
  std::deque<Callback> callbacks_;  // under the lock
};

}  // namespace hocket
