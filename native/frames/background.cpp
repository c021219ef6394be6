#include "frames/background.hpp"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "core/error.hpp"
#include "frames/block.hpp"

namespace hocket {

namespace {

// Blocks that nobody has used for so long go back to the system.
constexpr auto kKept = std::chrono::seconds(5);
// One thread does not use all of the memory's speed.
constexpr unsigned kMostThreads = 2;

class BackgroundThreads {
 public:
  // False if there is no thread for it.
  bool run(const std::function<void()>& work) {
    {
      const std::lock_guard lock(mutex_);
      if (!num_threads_) begin();
      if (!num_threads_) return false;
      queue_.push_back(work);
    }
    wakes_.notify_one();
    return true;
  }

 private:
  void begin() {
    const SignalsBlocked blocked;
    const unsigned wanted = std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads);
    try {
      for (; num_threads_ < wanted; ++num_threads_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {  // the system allows no more threads
    }
  }

  void serve() {
    pthread_setname_np(pthread_self(), "hocket-frames");
    for (;;) next()();
  }

  std::function<void()> next() {
    std::unique_lock lock(mutex_);
    const auto has_work = [this] { return !queue_.empty(); };
    while (queue_.empty()) {
      lock.unlock();
      const bool has_blocks = BlockPool::mine().trim(std::chrono::steady_clock::now() - kKept);
      lock.lock();
      if (has_blocks)
        wakes_.wait_for(lock, kKept, has_work);
      else
        wakes_.wait(lock, has_work);
    }
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    return work;
  }

  std::mutex mutex_;
  std::condition_variable wakes_;
  std::deque<std::function<void()>> queue_;
  unsigned num_threads_ = 0;
};

// The threads of this process; a forked child has none of its parent's.
BackgroundThreads& threads_of_this_process() {
  static std::atomic<BackgroundThreads*> threads{new BackgroundThreads};
  static const int watched = pthread_atfork(nullptr, nullptr, [] {
    threads.store(new BackgroundThreads, std::memory_order_relaxed);  // the child has one thread, which sees it
  });
  (void)watched;
  return *threads.load(std::memory_order_relaxed);
}

}  // namespace

SignalsBlocked::SignalsBlocked() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before_);
}

SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

void run_in_background(const std::function<void()>& work) {
  bool is_queued = false;
  try {
    is_queued = threads_of_this_process().run(work);
  } catch (const std::bad_alloc&) {
  }
  if (!is_queued) work();
}

LoopWaker::LoopWaker() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (fd_ < 0)
    throw Failure(ErrorCode::resource_exhausted, std::string("cannot create an eventfd: ") + std::strerror(errno));
}

LoopWaker::~LoopWaker() { close(fd_); }

void LoopWaker::wake(uint64_t stream) {
  {
    const std::lock_guard lock(mutex_);
    ended_.push_back(stream);
  }
  eventfd_write(fd_, 1);
}

std::vector<uint64_t> LoopWaker::ended() {
  eventfd_t count;
  eventfd_read(fd_, &count);
  const std::lock_guard lock(mutex_);
  return std::exchange(ended_, {});
}

}  // namespace hocket
