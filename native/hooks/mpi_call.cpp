#include "hooks/mpi_call.hpp"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "hooks/mpi_requests.hpp"

namespace hocket::hooks {

namespace {

char g_missing;  // its address stands for a function that a library has not

void* find_in(std::array<std::atomic<void*>, kMostLibraries>& found, const HookedMpi& mpi, const char* name) {
  std::atomic<void*>& place = found[mpi.number()];
  void* function = place.load(std::memory_order_acquire);
  if (!function) {
    function = mpi.find(name);
    if (!function) function = &g_missing;
    place.store(function, std::memory_order_release);
  }
  return function == &g_missing ? nullptr : function;
}

Event event_of(const HookedMpi& mpi, const MpiOperation& operation) {
  Event event{};
  event.nbytes = operation.nbytes;
  event.aux = operation.tag;
  event.peer = operation.peer;
  event.thread = thread_number();
  event.kind = operation.kind;
  event.dtype = static_cast<uint8_t>(mpi.dtype(operation.type).value_or(DType::uint8));
  event.reduce = operation.reduce;
  event.state = EventState::started;
  event.flags = operation.flags;
  event.layer = Layer::communication;
  if (operation.group) event.comm = operation.group->id;
  return event;
}

}  // namespace

bool observes(Layer layer) {
  static const bool has_comm = observes(std::string_view("comm"));
  static const bool has_io = observes(std::string_view("io"));
  return layer == Layer::io ? has_io : has_comm;
}

void number_operation(Event& event, KnownGroup* group, bool is_message) {
  if (group)
    event.seq = (is_message ? group->num_messages : group->num_collectives).fetch_add(1, std::memory_order_relaxed);
}

MpiCall::MpiCall(HookedFunction& function, const void* caller, Layer layer)
    : mpi_(HookedMpi::of_caller(caller)), was_inside_(t_is_inside) {
  if (mpi_) {
    original_ = find_in(function.found, *mpi_, function.name);
    if (!original_ && function.narrow_name)
      narrow_original_ = find_in(function.narrow_found, *mpi_, function.narrow_name);
  }
  is_recorded_ =
      mpi_ && !was_inside_ && observes(layer) && (original_ || narrow_original_) && Recorder::instance().is_on();
  if (is_recorded_) t_is_inside = true;
}

void MpiCall::begin(MpiOperation operation, uint8_t flags) {
  operation.flags |= flags;
  is_receive_ = operation.is_receive;
  is_to_nobody_ = operation.is_message && operation.peer == kProcNull;
  Event event = event_of(*mpi_, operation);
  number_operation(event, operation.group.get(), operation.is_message);
  event.t_begin = ticks();
  event_ = begin_event(event);
}

void MpiCall::begin_sent(const MpiOperation& sent, uint8_t flags) {
  const OpenEvent received = std::exchange(event_, {});
  const bool is_receive = is_receive_;
  begin(sent, flags);
  sent_ = std::exchange(event_, received);
  is_receive_ = is_receive;
  is_to_nobody_ = false;
}

OpenOperation MpiCall::opened() {
  OpenOperation operation;
  operation.event = event_;
  operation.sent = sent_;
  operation.is_receive = is_receive_;
  operation.arrays = std::move(arrays_);
  return operation;
}

int MpiCall::end(int code, const void* status) {
  if (is_recorded_) finish_operation(opened(), *mpi_, status, code);
  return code;
}

int MpiCall::follow(int code, const void* request) {
  if (code != 0 || is_to_nobody_) return end(code);
  if (!is_recorded_ && !arrays_) return code;
  of_this_process<OpenRequests>().add(mpi_->handle_at(request, 0), opened());
  return code;
}

int MpiCall::plan(int code, const void* request, MpiOperation operation) {
  if (code != 0 || (!is_recorded_ && !arrays_)) return code;
  PlannedOperation planned;
  planned.is_recorded = is_recorded_;
  planned.arrays = std::move(arrays_);
  planned.is_message = operation.is_message;
  planned.is_receive = operation.is_receive;
  planned.group = operation.group;
  operation.flags |= kEventAsync;
  if (is_recorded_) planned.event = event_of(*mpi_, operation);
  of_this_process<OpenRequests>().plan(mpi_->handle_at(request, 0), std::move(planned));
  return code;
}

}  // namespace hocket::hooks
