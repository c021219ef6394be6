// What completes or starts requests: MPI_Wait and its relatives.
#include "hooks/mpi_requests.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace hocket::hooks {

void OpenRequests::add(Handle request, OpenOperation operation) {
  const std::lock_guard guard(mutex_);
  operation.number = next_number_.fetch_add(1, std::memory_order_acq_rel);
  open_.emplace(request, std::move(operation));
  num_open_.fetch_add(1, std::memory_order_release);
}

bool OpenRequests::take(Handle request, uint64_t before, OpenOperation& taken) {
  const std::lock_guard guard(mutex_);
  const auto [first, last] = open_.equal_range(request);
  auto newest = last;
  for (auto each = first; each != last; ++each)
    if (each->second.number < before && (newest == last || each->second.number > newest->second.number)) newest = each;
  if (newest == last) return false;
  taken = std::move(newest->second);
  open_.erase(newest);
  num_open_.fetch_sub(1, std::memory_order_release);
  return true;
}

void OpenRequests::cancel(Handle request) {
  const std::lock_guard guard(mutex_);
  if (const auto found = open_.find(request); found != open_.end()) found->second.is_cancelled = true;
}

void OpenRequests::plan(Handle request, PlannedOperation planned) {
  const std::lock_guard guard(mutex_);
  plans_[request] = std::make_shared<PlannedOperation>(std::move(planned));
  num_plans_.store(plans_.size(), std::memory_order_release);
}

std::shared_ptr<PlannedOperation> OpenRequests::planned(Handle request) {
  const std::lock_guard guard(mutex_);
  const auto found = plans_.find(request);
  return found == plans_.end() ? nullptr : found->second;
}

void OpenRequests::forget_plan(Handle request) {
  const std::lock_guard guard(mutex_);
  plans_.erase(request);
  num_plans_.store(plans_.size(), std::memory_order_release);
}

void OpenRequests::move_plan(Handle from, Handle to) {
  const std::lock_guard guard(mutex_);
  if (auto plan = plans_.extract(from)) {
    plan.key() = to;
    plans_.erase(to);
    plans_.insert(std::move(plan));
  }
  num_plans_.store(plans_.size(), std::memory_order_release);
}

void finish_operation(const OpenOperation& operation, const HookedMpi& mpi, const void* status, int code) {
  if (!operation.event.is_begun && !operation.sent.is_begun) return;
  const uint64_t now = ticks();
  int is_cancelled = 0;
  if (operation.is_cancelled && status && code == 0) mpi.functions().test_cancelled(status, &is_cancelled);
  OpenEvent ended = operation.event;
  Event& event = ended.event;
  const bool is_of_file = ended.ring == RingId::io;
  const bool has_news = status && code == 0 && !is_cancelled && (operation.is_receive || is_of_file);
  if (has_news) event.nbytes = mpi.nbytes_of(status);
  if (has_news && !is_of_file) {
    const int source = HookedMpi::field(status, mpi.constants().source_at);
    event.peer = source == mpi.constants().proc_null ? kProcNull : source;
    event.aux = static_cast<uint32_t>(HookedMpi::field(status, mpi.constants().tag_at));
  }
  if (is_cancelled) event.nbytes = 0;
  if (is_of_file && code != 0) event.peer = EIO;
  end_event(ended, code == 0 && !is_cancelled ? EventState::completed : EventState::failed, now);
  end_event(operation.sent, code == 0 ? EventState::completed : EventState::failed, now);
}

namespace {

// Memory for one call: a few elements in place, more from the heap.
template <typename T, size_t N>
class Scratch {
 public:
  T* take(size_t count) {
    if (count <= N) return few_.data();
    many_.reset(new T[count]);
    return many_.get();
  }

 private:
  std::array<T, N> few_;
  std::unique_ptr<T[]> many_;
};

// A call that may complete some of several requests. It keeps their handles, which MPI overwrites, and has statuses of
// its own if the caller ignores them.
class Completion {
 public:
  Completion(MpiCall& call, int count, const void* requests, void* statuses)
      : call_(call), statuses_(statuses), open_(of_this_process<OpenRequests>()) {
    is_active_ = call.is_outermost() && count > 0 && !open_.is_empty();
    if (!is_active_) return;
    call.enter();
    before_ = open_.now();
    requests_ = requests;
    count_ = static_cast<size_t>(count);
    handles_ = handle_memory_.take(count_);
    for (size_t i = 0; i < count_; ++i) handles_[i] = call.mpi().handle_at(requests, i);
    if (call.mpi().is_ignored(statuses)) {
      const size_t nbytes = count_ * call.mpi().constants().status_nbytes;
      statuses_ = std::memset(status_memory_.take(nbytes), 0, nbytes);
    }
  }

  void* statuses() { return statuses_; }
  bool is_active() const { return is_active_; }

  void complete(size_t request, size_t status, int code) {
    OpenOperation taken;
    if (!is_active_ || request >= count_ || !open_.take(handles_[request], before_, taken)) return;
    finish_operation(taken, call_.mpi(), status_at(status), code);
  }
  void complete_freed(int code) {
    OpenOperation taken;
    if (is_active_ && open_.take(handles_[0], before_, taken)) finish_operation(taken, call_.mpi(), nullptr, code);
  }
  // After an error each status says what became of its request, but MPI_STATUS_IGNORE was no place for it.
  void complete_after_error(size_t request, size_t status) {
    if (!is_active_ || request >= count_) return;
    const auto error = HookedMpi::field(status_at(status), call_.mpi().constants().error_at);
    const bool is_open = !call_.mpi().is_null(call_.mpi().handle_at(requests_, request));
    if (error == call_.mpi().constants().pending_error || (is_open && error == 0)) return;
    complete(request, status, error);
  }

 private:
  const void* status_at(size_t index) const {
    return static_cast<const std::byte*>(statuses_) + index * call_.mpi().constants().status_nbytes;
  }

  MpiCall& call_;
  void* statuses_;
  OpenRequests& open_;
  const void* requests_ = nullptr;
  bool is_active_ = false;
  uint64_t before_ = 0;
  size_t count_ = 0;
  Handle* handles_ = nullptr;
  Scratch<Handle, 16> handle_memory_;
  alignas(8) Scratch<std::byte, 16 * 32> status_memory_;
};

// A number that a call gives its caller. After an error it may not have: then what is there is the caller's.
class Answer {
 public:
  Answer(const Completion& completion, int* given)
      : given_(given), used_(completion.is_active() && given ? &own_ : given) {}
  ~Answer() {
    if (used_ == &own_ && own_ != kNone) *given_ = own_;
  }
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;
  int* used() { return used_; }
  // Of an active completion; negative: none, or MPI_UNDEFINED.
  int value() const { return own_; }

 private:
  static constexpr int kNone = std::numeric_limits<int>::min();
  int own_ = kNone;
  int* given_;
  int* used_;
};

// MPI_Waitsome and MPI_Testsome.
int complete_some(MpiCall& call, int count, void* requests, int* num_done, int* indices, void* statuses) {
  Completion completion(call, count, requests, statuses);
  Answer number(completion, num_done);
  const int code = call(count, requests, number.used(), indices, completion.statuses());
  if (!completion.is_active()) return code;
  for (int i = 0; i < std::min(number.value(), count); ++i) {
    const auto request = static_cast<size_t>(indices[i]);
    if (code == 0) {
      completion.complete(request, static_cast<size_t>(i), 0);
    } else {
      completion.complete_after_error(request, static_cast<size_t>(i));
    }
  }
  return code;
}

void complete_all(Completion& completion, int count, int code) {
  if (!completion.is_active()) return;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    if (code == 0) {
      completion.complete(i, i, 0);
    } else {
      completion.complete_after_error(i, i);
    }
  }
}

// Starts of persistent requests, each an operation of its own.
class Starts {
 public:
  Starts(MpiCall& call, int count, const void* requests)
      : call_(call), requests_(requests), open_(of_this_process<OpenRequests>()) {
    if (!call.is_outermost() || count <= 0 || !open_.has_plans()) return;
    call.enter();
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      const Handle request = call.mpi().handle_at(requests, i);
      const std::shared_ptr<PlannedOperation> planned = open_.planned(request);
      if (!planned) continue;
      OpenOperation operation;
      operation.is_receive = planned->is_receive;
      operation.arrays = planned->arrays;
      if (planned->is_recorded) {
        Event event = planned->event;
        number_operation(event, planned->group.get(), planned->is_message);
        event.thread = thread_number();
        event.t_begin = ticks();
        operation.event = begin_event(event);
      }
      started_.push_back({i, request, std::move(operation)});
    }
  }
  int end(int code) {
    for (Started& each : started_) {
      if (code != 0) {
        finish_operation(each.operation, call_.mpi(), nullptr, code);
        continue;
      }
      // Open MPI starts another request in place of a buffered send that it still has to deliver.
      const Handle now = call_.mpi().handle_at(requests_, each.place);
      if (now != each.request) open_.move_plan(each.request, now);
      open_.add(now, std::move(each.operation));
    }
    return code;
  }

 private:
  struct Started {
    size_t place;
    Handle request;
    OpenOperation operation;
  };
  MpiCall& call_;
  const void* requests_;
  OpenRequests& open_;
  std::vector<Started> started_;
};

}  // namespace

}  // namespace hocket::hooks

using hocket::hooks::Answer;
using hocket::hooks::Completion;
using hocket::hooks::OpenRequests;
using hocket::hooks::Starts;

HOCKET_HOOK int MPI_Wait(void* request, void* status) {
  HOCKET_MPI_CALL(Wait, nullptr);
  Completion completion(call, 1, request, status);
  const int code = call(request, completion.statuses());
  completion.complete(0, 0, code);
  return code;
}

HOCKET_HOOK int MPI_Test(void* request, int* flag, void* status) {
  HOCKET_MPI_CALL(Test, nullptr);
  Completion completion(call, 1, request, status);
  Answer is_done(completion, flag);
  const int code = call(request, is_done.used(), completion.statuses());
  if (is_done.value() > 0) completion.complete(0, 0, code);
  return code;
}

HOCKET_HOOK int MPI_Waitall(int count, void* requests, void* statuses) {
  HOCKET_MPI_CALL(Waitall, nullptr);
  Completion completion(call, count, requests, statuses);
  const int code = call(count, requests, completion.statuses());
  complete_all(completion, count, code);
  return code;
}

HOCKET_HOOK int MPI_Testall(int count, void* requests, int* flag, void* statuses) {
  HOCKET_MPI_CALL(Testall, nullptr);
  Completion completion(call, count, requests, statuses);
  Answer is_done(completion, flag);
  const int code = call(count, requests, is_done.used(), completion.statuses());
  if (code != 0 || is_done.value() > 0) complete_all(completion, count, code);
  return code;
}

HOCKET_HOOK int MPI_Waitany(int count, void* requests, int* index, void* status) {
  HOCKET_MPI_CALL(Waitany, nullptr);
  Completion completion(call, count, requests, status);
  Answer done(completion, index);
  const int code = call(count, requests, done.used(), completion.statuses());
  if (done.value() >= 0) completion.complete(static_cast<size_t>(done.value()), 0, code);
  return code;
}

HOCKET_HOOK int MPI_Testany(int count, void* requests, int* index, int* flag, void* status) {
  HOCKET_MPI_CALL(Testany, nullptr);
  Completion completion(call, count, requests, status);
  Answer done(completion, index);
  Answer is_done(completion, flag);
  const int code = call(count, requests, done.used(), is_done.used(), completion.statuses());
  if (is_done.value() > 0 && done.value() >= 0) completion.complete(static_cast<size_t>(done.value()), 0, code);
  return code;
}

HOCKET_HOOK int MPI_Waitsome(int count, void* requests, int* num_done, int* indices, void* statuses) {
  HOCKET_MPI_CALL(Waitsome, nullptr);
  return hocket::hooks::complete_some(call, count, requests, num_done, indices, statuses);
}

HOCKET_HOOK int MPI_Testsome(int count, void* requests, int* num_done, int* indices, void* statuses) {
  HOCKET_MPI_CALL(Testsome, nullptr);
  return hocket::hooks::complete_some(call, count, requests, num_done, indices, statuses);
}

HOCKET_HOOK int MPI_Cancel(void* request) {
  HOCKET_MPI_CALL(Cancel, nullptr);
  if (call.is_outermost()) hocket::hooks::of_this_process<OpenRequests>().cancel(call.mpi().handle_at(request, 0));
  return call(request);
}

// The operation still ends, but nobody will know when.
HOCKET_HOOK int MPI_Request_free(void* request) {
  HOCKET_MPI_CALL(Request_free, nullptr);
  alignas(8) std::array<std::byte, hocket::hooks::kMostStatusNbytes> no_status{};
  Completion completion(call, 1, request, no_status.data());
  auto& open = hocket::hooks::of_this_process<OpenRequests>();
  const hocket::hooks::Handle handle = call.is_outermost() ? call.mpi().handle_at(request, 0) : 0;
  // Before the call: afterwards another thread may have been given the handle.
  if (call.is_outermost() && open.has_plans()) open.forget_plan(handle);
  const int code = call(request);
  completion.complete_freed(code);
  return code;
}

HOCKET_HOOK int MPI_Start(void* request) {
  HOCKET_MPI_CALL(Start, nullptr);
  Starts starts(call, 1, request);
  return starts.end(call(request));
}

HOCKET_HOOK int MPI_Startall(int count, void* requests) {
  HOCKET_MPI_CALL(Startall, nullptr);
  Starts starts(call, count, requests);
  return starts.end(call(count, requests));
}
