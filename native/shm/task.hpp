// A coroutine that waits for flags in shared memory: the code of an algorithm looks as if it blocked, but the thread
// that drives the lane resumes it only when its flag has reached the target.
#pragma once

#include <atomic>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <utility>

#include "core/lane.hpp"

namespace hocket {

class Task {
 public:
  struct promise_type {
    const std::atomic<uint64_t>* flag = nullptr;
    uint64_t target = 0;
    int peer = -1;
    int steps_left = 0;
    std::exception_ptr error;

    Task get_return_object() { return Task(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }
  };
  using Handle = std::coroutine_handle<promise_type>;

  Task() = default;
  explicit Task(Handle handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  explicit operator bool() const { return handle_ != nullptr; }

  // Runs as far as the flags allow, at most kMostSteps steps, so that other lanes run too.
  Progress drive() {
    constexpr int kMostSteps = 8;
    if (is_waiting()) return Progress::waiting;
    promise_type& promise = handle_.promise();
    promise.steps_left = kMostSteps;
    handle_.resume();
    if (!handle_.done()) return Progress::moved;
    if (promise.error) std::rethrow_exception(promise.error);
    return Progress::done;
  }

  // Whether the awaited flag is still below its target.
  bool is_waiting() const {
    const promise_type& promise = handle_.promise();
    return promise.flag && promise.flag->load(std::memory_order_acquire) < promise.target;
  }
  int waits_for() const { return handle_.promise().peer; }

 private:
  Handle handle_;
};

// co_await Reached{flag, target, peer}: continues once flag >= target. Flags only grow, so once true it stays true.
// Every co_await is a step, even if the flag is already reached: otherwise, with fast peers, one drive() could process
// a whole long array.
struct Reached {
  const std::atomic<uint64_t>& flag;
  uint64_t target;
  int peer;

  bool await_ready() const noexcept { return false; }
  bool await_suspend(Task::Handle handle) const noexcept {
    Task::promise_type& promise = handle.promise();
    if (promise.steps_left-- > 0 && flag.load(std::memory_order_acquire) >= target) return false;
    promise.flag = &flag;
    promise.target = target;
    promise.peer = peer;
    return true;
  }
  void await_resume() const noexcept {}
};

}  // namespace hocket
