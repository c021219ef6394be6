#include "bind/call_arrays.hpp"

#include <atomic>
#include <mutex>
#include <vector>

namespace hocket {

namespace {

// A Work may die on a thread without the GIL, its arrays must not: they wait here for the next call.
class ArraysOfFinished {
 public:
  void add(std::unique_ptr<Arrays> arrays) {
    const std::lock_guard guard(mutex_);
    arrays_.push_back(std::move(arrays));
    any_.store(true, std::memory_order_release);
  }
  void release() {
    if (!any_.load(std::memory_order_acquire)) [[likely]]
      return;
    std::vector<std::unique_ptr<Arrays>> freed;  // outlives the guard: releasing may run Python code
    const std::lock_guard guard(mutex_);
    freed.swap(arrays_);
    any_.store(false, std::memory_order_relaxed);
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> any_{false};
  std::vector<std::unique_ptr<Arrays>> arrays_;
};

ArraysOfFinished& arrays_of_finished() {
  static auto* finished = new ArraysOfFinished;  // NOLINT: as above
  return *finished;
}
}  // namespace

// Used with the GIL only. Never destroyed: at exit there is no interpreter to release references to.
ArraysPool& arrays_pool() {
  static auto* pool = new ArraysPool;  // NOLINT
  return *pool;
}
std::shared_ptr<void> pin(std::unique_ptr<Arrays> arrays) {
  return {arrays.release(), [](Arrays* held) {
            std::unique_ptr<Arrays> owner(held);
            if (!PyGILState_Check()) arrays_of_finished().add(std::move(owner));
          }};
}
void release_finished_arrays() { arrays_of_finished().release(); }

}  // namespace hocket
