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
#include "core/turns.hpp"

namespace hocket {

// Held for the time of one pass over the lanes; a holder never blocks. A thread that holds the GIL only tries it.
class ProgressLock {
 public:
  bool try_lock() { return !held_.exchange(true, std::memory_order_acquire); }
  void lock();
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

// What a waiting thread owes to the world outside the core; called without the progress lock.
class WaitHooks {
 public:
  virtual ~WaitHooks() = default;
  // True if the wait is to end now (a signal handler raised).
  virtual bool interrupted() { return false; }
  virtual void stalled(const std::string&) {}
};

enum class WaitResult : uint8_t { finished, interrupted };

// Drives what needs the interpreter; true if anything moved. `all`: also what asked for no attention.
using Pump = bool (*)(bool all);
// Waits in the interpreter until something that is in flight there may be over, and no longer; false at once if there
// is nothing to wait for in that way.
using BlockingCall = bool (*)(int64_t timeout_ns);

class Engine {
 public:
  // Never destroyed: at the end of the process threads may still be inside, and a forked child owns none of it.
  static Engine& instance();

  ProgressLock& lock() { return lock_; }

  // The following three are called under the lock.
  void attach(const std::shared_ptr<Communicator>& communicator);
  void detach(const Communicator& communicator);
  bool progress();
  // After what was done on the spot, for which its own communicator had to be idle.
  void progress_others() {
    if (communicators().size() > 1) progress();
    if (++num_on_the_spot_ % kLookPeriod == 0) drive_due_libraries(now_ns());
  }
  // progress(), and from time to time what the progress thread does besides; for callers that poll.
  void poll();

  // The first failure that the program was not told of, of a communicator that it has dropped; under the lock.
  void keep_unseen(Error error) {
    if (!unseen_) unseen_ = std::move(error);
  }
  std::optional<Error> take_unseen() { return std::exchange(unseen_, std::nullopt); }

  // A library that is looked at from time to time by whoever waits or calls, as long as it lives. Under the lock.
  void add(const std::shared_ptr<DrivenLibrary>& library) { libraries_.push_back(library); }
  // Drives those that are due; under the lock.
  void drive_due_libraries(int64_t now);
  // Some library is due then. From any thread.
  void look_by(int64_t time_ns);

  // Until the work is finished (then look at work.error), or a signal. After timeout_s the communicator gives up.
  WaitResult wait(Work& work, double timeout_s, WaitHooks& hooks);
  // The same for a condition that is not an operation; false when the time is over. `waiting_text` is for the report of
  // a stall, nothing if it is empty. Both are called under the lock.
  bool wait_for(const std::function<bool()>& ready, double timeout_s, WaitHooks& hooks,
                const std::function<std::string()>& waiting_text = {});

  // Until a virtual clock is there; drives the lanes whenever something of this rank is over. Throws what stopped it.
  void wait_until(double time_s, Turns& turns);
  // A look at whether the work is finished, which takes a moment of the virtual clock; it fails when its time is over.
  bool test_in_turn(Work& work, Turns& turns);

  // Lanes that are driven by calls into Python cannot be driven under the lock: they ask for attention, and who waits
  // calls the pump, without the lock. Set once, before the first such lane.
  void set_pump(Pump pump, BlockingCall block) {
    block_.store(block, std::memory_order_release);
    pump_.store(pump, std::memory_order_release);
  }
  // A signal handler has raised while the pump was in Python: the main thread's wait ends.
  void note_interruption(bool is_there) { is_interrupted_.store(is_there, std::memory_order_release); }
  void want_attention(int count) { attention_.fetch_add(count, std::memory_order_seq_cst); }
  // Without the lock; runs the pump if a lane asked for it.
  bool attend(bool all = false);

  // How many ranks of this host share its processors, where spinning would steal the time of whom they wait for; 0:
  // each has a processor of its own.
  void set_num_sharing(int num_ranks) { num_sharing_.store(num_ranks, std::memory_order_relaxed); }
  void set_stall_report_s(double seconds) { stall_report_s_ = seconds; }

  // The progress thread: drives the lanes when nobody else does, and runs callbacks, without the lock. What is finished
  // when it is stopped has its callbacks run. Both do nothing on the thread itself, where a callback may call them.
  void start_thread();
  void stop_thread();
  // The interpreter is about to end: no callback may run any more, and no thread starts again.
  void stop_thread_for_good();
  bool has_thread() const { return thread_running_.load(std::memory_order_relaxed); }
  // Runs on the progress thread once the work is finished (at once, there, if it is already).
  void on_finished(const WorkPtr& work, std::function<void()> callback);
  // Until those of a communicator's finished works have been called, or the time is over. Without the lock.
  void wait_for_callbacks(const Communicator& communicator, double timeout_s);
  void note_finished(const Work& work);
  void wake_own_process();
  // After an asynchronous issue, if there is a progress thread.
  void wake_thread();

 private:
  Engine() = default;
  // Those that this thread drives.
  std::vector<std::shared_ptr<Communicator>>& communicators() {
    Turns* turns = Turns::mine();
    return turns ? turns->communicators : communicators_;
  }
  WaitResult wait_in_turn(Work& work, double timeout_s, Turns& turns);
  bool wait_for_in_turn(const std::function<bool()>& ready, double timeout_s, Turns& turns);
  bool look_in_turn(Work& work, double begin_s, double timeout_s, Turns& turns);
  void run_thread();
  void nap();
  bool is_to_nap() const;
  void end_nap();  // after a store that makes is_to_nap() false
  struct Driving;
  class Wait;
  bool is_idle() const;  // nothing is in flight; under the lock
  void stop_thread(bool for_good);
  void tend(int64_t now);
  void check_health();
  InFlight in_flight() const;
  bool block(int64_t idle_ns, int64_t longest_ns);
  bool is_look_due(int64_t now) const { return now >= next_look_ns_.load(std::memory_order_relaxed); }
  // How long to sleep at most before a library is due.
  int64_t until_look_ns(int64_t now) const { return next_look_ns_.load(std::memory_order_relaxed) - now; }

  static constexpr int64_t kTickNs = 50'000'000;  // between looks at peers' lives, deadlines and signals,
  static constexpr int64_t kSleepNs = kTickNs;    // for which nobody rings
  static constexpr uint32_t kLookPeriod = 256;    // operations done on the spot, which need no clock

  ProgressLock lock_;
  std::vector<std::shared_ptr<Communicator>> communicators_;  // of ranks that are processes
  std::vector<std::weak_ptr<DrivenLibrary>> libraries_;
  std::atomic<int64_t> next_look_ns_{DrivenLibrary::kNever};
  uint32_t num_on_the_spot_ = 0;
  std::optional<Error> unseen_;
  std::vector<const Communicator*> called_;  // of the works whose callbacks the progress thread calls right now
  std::atomic<int> num_driving_{0};          // threads within Driving
  std::atomic<int> num_blocking_{0};         // threads within block()
  std::mutex nap_mutex_;
  std::condition_variable nap_end_;
  std::atomic<bool> is_napping_{false};
  std::atomic<bool> is_thread_wanted_{false};
  std::atomic<bool> has_callbacks_{false};
  std::atomic<int> num_sharing_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<Pump> pump_{nullptr};
  std::atomic<BlockingCall> block_{nullptr};
  std::atomic<bool> is_interrupted_{false};
  std::atomic<int> attention_{0};           // lanes that want the pump to be called
  std::atomic<int64_t> sleep_until_ns_{0};  // waits do not yield before that time
  double stall_report_s_ = 10.0;
  int64_t next_tend_ns_ = 0;  // under the lock

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
