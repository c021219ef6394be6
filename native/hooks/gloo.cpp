// Operations of torch's gloo, also of programs that never import hocket: those that DistributedDataParallel sends from
// C++, too. torch runs a collective of gloo as an AsyncWork, and a message as a SendWork or RecvWork. These functions
// take the place of torch's own, by LD_PRELOAD; see hooks/gloo_interface.hpp for a torch that does not have them.
#include <cstdint>
#include <cstring>
#include <optional>

#include "core/clock.hpp"
#include "core/types.hpp"
#include "hooks/gloo_interface.hpp"
#include "hooks/gloo_recorder.hpp"
#include "hooks/hooks.hpp"
#include "hooks/of_this_process.hpp"

using hocket::Event;
using hocket::EventState;
using hocket::OpKind;
using hocket::hooks::GlooRecorder;
using hocket::hooks::Inside;
using hocket::hooks::next_of_caller;
using hocket::hooks::OpenEvent;
using hocket::hooks::Torch;
using hocket::hooks::torch_of;
using hocket::hooks::TorchTensors;

namespace {

GlooRecorder& recorder() { return hocket::hooks::of_this_process<GlooRecorder>(); }

// The work that this thread has made and not yet handed to its group.
struct MadeWork {
  const void* work = nullptr;
  Event event{};
};
thread_local MadeWork t_made;

constexpr int32_t kNoRoot = -1;
// Of the collective that this thread is making a work for.
thread_local int32_t t_root = kNoRoot;

// The root of a collective while torch makes its work, read from its options; see gloo_interface.hpp. One that is no
// rank is taken as unknown where the size of the group is known.
class RootOfCall {
 public:
  RootOfCall(const void* options, size_t place) {
    int64_t root = 0;
    std::memcpy(&root, static_cast<const char*>(options) + place, sizeof root);
    t_root = root >= 0 && root <= INT32_MAX ? static_cast<int32_t>(root) : kNoRoot;
  }
  ~RootOfCall() { t_root = kNoRoot; }
  RootOfCall(const RootOfCall&) = delete;
  RootOfCall& operator=(const RootOfCall&) = delete;
};

Event message(OpKind kind, const TorchTensors& tensors, int32_t peer, int32_t tag, const Torch& torch) {
  Event event{};
  event.kind = static_cast<uint8_t>(kind);
  event.peer = peer;
  event.aux = static_cast<uint32_t>(tag);
  set_tensors(event, &tensors, torch);
  return event;
}

// Runs at the end of a call of torch that may throw: this library has a C++ runtime of its own, which must not catch
// exceptions of another one.
template <typename End>
class AtEnd {
 public:
  explicit AtEnd(End end) : end_(end) {}
  ~AtEnd() { end_(has_returned_); }
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;
  void returned() { has_returned_ = true; }

 private:
  End end_;
  bool has_returned_ = false;
};

}  // namespace

// Arguments passed by value that are not trivially copyable are pointers in the calling convention.
#define HOCKET_GLOO_HOOK(result, name, parameters, symbol) \
  HOCKET_HOOK result name parameters asm(symbol);          \
  result name parameters

HOCKET_GLOO_HOOK(void, hocket_gloo_make_group, (void* group, void* store, int rank, int size, void* options),
                 HOCKET_GLOO_MAKE_GROUP) {
  static auto* const original =
      next_of_caller<void(void*, void*, int, int, void*)>(HOCKET_GLOO_MAKE_GROUP, __builtin_return_address(0));
  recorder().make_group(group, rank, size, hocket::hooks::t_makes_groups_of_hocket);
  original(group, store, rank, size, options);
}

HOCKET_GLOO_HOOK(void, hocket_gloo_make_work,
                 (void* work, void* context, void* outputs, uint8_t type, uint64_t seq, int64_t timeout_ms,
                  const char* title, const std::optional<TorchTensors>* inputs),
                 HOCKET_GLOO_MAKE_WORK) {
  const void* caller = __builtin_return_address(0);
  static auto* const original = next_of_caller<void(void*, void*, void*, uint8_t, uint64_t, int64_t, const char*,
                                                    const std::optional<TorchTensors>*)>(HOCKET_GLOO_MAKE_WORK, caller);
  if (recorder().is_on()) {
    Event event{};
    event.t_begin = hocket::ticks();
    event.kind = hocket::hooks::kind_of_op_type(type);
    event.peer = t_root;
    set_tensors(event, inputs->has_value() ? &**inputs : nullptr, torch_of(caller));
    t_made = {work, event};
  }
  original(work, context, outputs, type, seq, timeout_ms, title, inputs);
}

HOCKET_GLOO_HOOK(void*, hocket_gloo_broadcast, (void** result, void* group, void* tensors, const void* options),
                 HOCKET_GLOO_BROADCAST) {
  static auto* const original =
      next_of_caller<void*(void**, void*, void*, const void*)>(HOCKET_GLOO_BROADCAST, __builtin_return_address(0));
  const RootOfCall root(options, HOCKET_GLOO_ROOT_OF_BROADCAST);
  return original(result, group, tensors, options);
}

HOCKET_GLOO_HOOK(void*, hocket_gloo_reduce, (void** result, void* group, void* tensors, const void* options),
                 HOCKET_GLOO_REDUCE) {
  static auto* const original =
      next_of_caller<void*(void**, void*, void*, const void*)>(HOCKET_GLOO_REDUCE, __builtin_return_address(0));
  const RootOfCall root(options, HOCKET_GLOO_ROOT_OF_REDUCE);
  return original(result, group, tensors, options);
}

HOCKET_GLOO_HOOK(void*, hocket_gloo_gather,
                 (void** result, void* group, void* outputs, void* inputs, const void* options), HOCKET_GLOO_GATHER) {
  static auto* const original =
      next_of_caller<void*(void**, void*, void*, void*, const void*)>(HOCKET_GLOO_GATHER, __builtin_return_address(0));
  const RootOfCall root(options, HOCKET_GLOO_ROOT_OF_GATHER);
  return original(result, group, outputs, inputs, options);
}

HOCKET_GLOO_HOOK(void*, hocket_gloo_scatter,
                 (void** result, void* group, void* outputs, void* inputs, const void* options), HOCKET_GLOO_SCATTER) {
  static auto* const original =
      next_of_caller<void*(void**, void*, void*, void*, const void*)>(HOCKET_GLOO_SCATTER, __builtin_return_address(0));
  const RootOfCall root(options, HOCKET_GLOO_ROOT_OF_SCATTER);
  return original(result, group, outputs, inputs, options);
}

HOCKET_GLOO_HOOK(void, hocket_gloo_enqueue, (void* group, void* const* work), HOCKET_GLOO_ENQUEUE) {
  const void* caller = __builtin_return_address(0);
  static auto* const original = next_of_caller<void(void*, void* const*)>(HOCKET_GLOO_ENQUEUE, caller);
  // Before the original: afterwards another thread may have completed it.
  if (t_made.work == *work) recorder().issue(*work, group, t_made.event, torch_of(caller));
  t_made.work = nullptr;
  original(group, work);
}

HOCKET_GLOO_HOOK(void, hocket_gloo_execute, (void* const* work), HOCKET_GLOO_EXECUTE) {
  static auto* const original = next_of_caller<void(void* const*)>(HOCKET_GLOO_EXECUTE, __builtin_return_address(0));
  recorder().start(*work);
  original(work);
}

HOCKET_GLOO_HOOK(void, hocket_gloo_finish, (void* work), HOCKET_GLOO_FINISH) {
  static auto* const original = next_of_caller<void(void*)>(HOCKET_GLOO_FINISH, __builtin_return_address(0));
  recorder().finish(work, EventState::completed);
  original(work);
}

HOCKET_GLOO_HOOK(void, hocket_gloo_fail, (void* work, const void* error), HOCKET_GLOO_FAIL) {
  static auto* const original = next_of_caller<void(void*, const void*)>(HOCKET_GLOO_FAIL, __builtin_return_address(0));
  recorder().finish(work, EventState::failed);
  original(work, error);
}

// The first parameter is the place of the result, a counted pointer to the Work. A message that is sent by a hooked
// call, as by the monitored barrier, is part of it.
HOCKET_GLOO_HOOK(void*, hocket_gloo_send, (void** result, void* group, TorchTensors* tensors, int peer, int tag),
                 HOCKET_GLOO_SEND) {
  const void* caller = __builtin_return_address(0);
  static auto* const original = next_of_caller<void*(void**, void*, TorchTensors*, int, int)>(HOCKET_GLOO_SEND, caller);
  const uint64_t begin = hocket::ticks();
  void* const returned = original(result, group, tensors, peer, tag);
  if (recorder().is_on() && !hocket::hooks::t_is_inside) {
    Event event = message(OpKind::send, *tensors, peer, tag, torch_of(caller));
    event.t_begin = begin;
    recorder().issue(*result, group, event, torch_of(caller));
  }
  return returned;
}

HOCKET_GLOO_HOOK(void*, hocket_gloo_recv, (void** result, void* group, TorchTensors* tensors, int peer, int tag),
                 HOCKET_GLOO_RECV) {
  const void* caller = __builtin_return_address(0);
  static auto* const original = next_of_caller<void*(void**, void*, TorchTensors*, int, int)>(HOCKET_GLOO_RECV, caller);
  const uint64_t begin = hocket::ticks();
  void* const returned = original(result, group, tensors, peer, tag);
  if (recorder().is_on() && !hocket::hooks::t_is_inside) {
    Event event = message(OpKind::recv, *tensors, peer, tag, torch_of(caller));
    event.t_begin = begin;
    recorder().issue(*result, group, event, torch_of(caller));
  }
  return returned;
}

HOCKET_GLOO_HOOK(void*, hocket_gloo_recv_any, (void** result, void* group, TorchTensors* tensors, int tag),
                 HOCKET_GLOO_RECV_ANY) {
  const void* caller = __builtin_return_address(0);
  static auto* const original = next_of_caller<void*(void**, void*, TorchTensors*, int)>(HOCKET_GLOO_RECV_ANY, caller);
  const uint64_t begin = hocket::ticks();
  void* const returned = original(result, group, tensors, tag);
  if (recorder().is_on() && !hocket::hooks::t_is_inside) {
    constexpr int kAnySource = -1;
    Event event = message(OpKind::recv, *tensors, kAnySource, tag, torch_of(caller));
    event.t_begin = begin;
    recorder().issue(*result, group, event, torch_of(caller));
  }
  return returned;
}

// A message ends when somebody has waited for it.
HOCKET_GLOO_HOOK(bool, hocket_gloo_wait_sent, (void* work, int64_t timeout_ms), HOCKET_GLOO_WAIT_SENT) {
  static auto* const original =
      next_of_caller<bool(void*, int64_t)>(HOCKET_GLOO_WAIT_SENT, __builtin_return_address(0));
  bool is_done = true;
  AtEnd end([&](bool has_returned) {
    if (is_done) recorder().finish(work, has_returned ? EventState::completed : EventState::failed);
  });
  is_done = original(work, timeout_ms);
  end.returned();
  return is_done;
}

HOCKET_GLOO_HOOK(bool, hocket_gloo_wait_received, (void* work, int64_t timeout_ms), HOCKET_GLOO_WAIT_RECEIVED) {
  const void* caller = __builtin_return_address(0);
  static auto* const original = next_of_caller<bool(void*, int64_t)>(HOCKET_GLOO_WAIT_RECEIVED, caller);
  bool is_done = true;
  int source = -1;
  AtEnd end([&](bool has_returned) {
    if (is_done) recorder().finish(work, has_returned ? EventState::completed : EventState::failed, source);
  });
  is_done = original(work, timeout_ms);
  if (const Torch& torch = torch_of(caller); is_done && torch.source_rank) source = torch.source_rank(work);
  end.returned();
  return is_done;
}

HOCKET_GLOO_HOOK(void, hocket_gloo_monitored_barrier, (void* group, const void* options, bool waits_for_all),
                 HOCKET_GLOO_MONITORED_BARRIER) {
  const void* caller = __builtin_return_address(0);
  static auto* const original = next_of_caller<void(void*, const void*, bool)>(HOCKET_GLOO_MONITORED_BARRIER, caller);
  Event event{};
  event.t_begin = hocket::ticks();
  event.kind = static_cast<uint8_t>(OpKind::barrier);
  event.peer = -1;
  set_tensors(event, nullptr, torch_of(caller));
  const OpenEvent open = recorder().begin_call(group, event, torch_of(caller));
  const Inside inside;
  AtEnd end([&](bool has_returned) { end_event(open, has_returned ? EventState::completed : EventState::failed); });
  original(group, options, waits_for_all);
  end.returned();
}

#define HOCKET_GLOO_REPLACED_LINE(symbol) "replaces " symbol "\n"
#define HOCKET_GLOO_CALLED_LINE(symbol) "calls " symbol "\n"
#define HOCKET_GLOO_OP_TYPE_LINE(name, number, kind) "operation " #name " " #number "\n"
#define HOCKET_TORCH_SCALAR_TYPE_LINE(name, number, dtype) "type " #name " " #number "\n"
extern "C" __attribute__((visibility("default"))) const char hocket_gloo_interface[];
const char hocket_gloo_interface[] =
    HOCKET_GLOO_REPLACED(HOCKET_GLOO_REPLACED_LINE) HOCKET_GLOO_CALLED(HOCKET_GLOO_CALLED_LINE)
        HOCKET_GLOO_OP_TYPES(HOCKET_GLOO_OP_TYPE_LINE) HOCKET_TORCH_SCALAR_TYPES(HOCKET_TORCH_SCALAR_TYPE_LINE);
