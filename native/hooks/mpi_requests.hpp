// Requests of MPI that are not complete: the events that end with them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "hooks/mpi_call.hpp"
#include "hooks/open_event.hpp"

namespace hocket::hooks {

struct OpenOperation {
  OpenEvent event;
  OpenEvent sent;           // the other half of an exchange
  bool is_receive = false;  // its status says how many bytes came, and from whom
  bool is_cancelled = false;
  uint64_t number = 0;
  std::shared_ptr<NarrowArrays> arrays;
};

// A persistent request.
struct PlannedOperation {
  Event event{};
  bool is_recorded = false;
  bool is_message = false;
  bool is_receive = false;
  std::shared_ptr<KnownGroup> group;
  std::shared_ptr<NarrowArrays> arrays;
};

// Writes the end of an operation; `status` may be null.
void finish_operation(const OpenOperation& operation, const HookedMpi& mpi, const void* status, int code);
void number_operation(Event& event, KnownGroup* group, bool is_message);

// By handle. MPICH gives all sends that were complete at once the same handle, and a handle that one thread's wait
// frees may be another thread's next request before the wait has returned. So there are several operations to a handle,
// and each wait ends the newest one that began before the wait.
class OpenRequests {
 public:
  bool is_empty() const { return num_open_.load(std::memory_order_acquire) == 0; }
  uint64_t now() const { return next_number_.load(std::memory_order_acquire); }
  void add(Handle request, OpenOperation operation);
  // False if none is known.
  bool take(Handle request, uint64_t before, OpenOperation& taken);
  void cancel(Handle request);

  void plan(Handle request, PlannedOperation planned);
  std::shared_ptr<PlannedOperation> planned(Handle request);
  void forget_plan(Handle request);
  void move_plan(Handle from, Handle to);
  bool has_plans() const { return num_plans_.load(std::memory_order_acquire) != 0; }

 private:
  std::atomic<uint64_t> num_open_{0};
  std::atomic<uint64_t> num_plans_{0};
  std::atomic<uint64_t> next_number_{1};
  std::mutex mutex_;
  std::unordered_multimap<Handle, OpenOperation> open_;
  std::unordered_map<Handle, std::shared_ptr<PlannedOperation>> plans_;
};

}  // namespace hocket::hooks
