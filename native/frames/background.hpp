// Work that would keep an event loop from its sockets, in threads of its own.
#pragma once

#include <signal.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace hocket {

// Blocks all signals of this thread, and so of those that it starts: signals are for Python's threads.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Runs work in one of two threads; what is given first begins first. The threads sleep while there is nothing to do.
// Where the system has no thread or no memory for it, the work is done before this returns. `work` must not throw.
void run_in_background(const std::function<void()>& work);

// Wakes one event loop, which watches the file descriptor. Thread-safe.
class LoopWaker {
 public:
  LoopWaker();
  ~LoopWaker();
  LoopWaker(const LoopWaker&) = delete;
  LoopWaker& operator=(const LoopWaker&) = delete;

  int fd() const { return fd_; }
  void wake(uint64_t stream);
  // The streams for which something has ended since the last call.
  std::vector<uint64_t> ended();

 private:
  int fd_;
  std::mutex mutex_;
  std::vector<uint64_t> ended_;
};

}  // namespace hocket
