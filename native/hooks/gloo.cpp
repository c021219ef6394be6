// Collectives of torch's gloo, also of programs that never import hocket: those that DistributedDataParallel sends from
// C++, too. torch records an operation of gloo as an AsyncWork. These functions take the place of three of its own, by
// LD_PRELOAD: their names hold the types of their parameters, so a torch in which these differ does not find them, and
// records nothing.
#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/clock.hpp"
#include "core/types.hpp"
#include "hooks/hooks.hpp"

namespace {

using hocket::DType;
using hocket::Event;
using hocket::EventState;
using hocket::OpKind;

struct Tensor {  // at::Tensor: one counted pointer
  void* pointer;
};
using Tensors = std::vector<Tensor>;

// The numbers of c10d::OpType and c10::ScalarType.
constexpr uint8_t kUnknown = 0xff;
std::optional<OpKind> kind_of(uint8_t type) {
  switch (type) {
    case 0:
      return OpKind::broadcast;
    case 1:
    case 2:
      return OpKind::all_reduce;
    case 3:
      return OpKind::reduce;
    case 4:
    case 5:
    case 6:
      return OpKind::all_gather;
    case 7:
      return OpKind::gather;
    case 8:
      return OpKind::scatter;
    case 9:
    case 14:
      return OpKind::reduce_scatter;
    case 10:
    case 11:
      return OpKind::all_to_all;
    case 15:
      return OpKind::barrier;
    default:
      return std::nullopt;
  }
}

std::optional<DType> dtype_of(int32_t type) {
  constexpr std::array<std::optional<DType>, 16> kTypes = {
      DType::uint8,   DType::int8,    DType::int16, DType::int32,     DType::int64,      DType::float16,
      DType::float32, DType::float64, std::nullopt, DType::complex64, DType::complex128, DType::boolean,
      std::nullopt,   std::nullopt,   std::nullopt, DType::bfloat16,
  };
  return type >= 0 && static_cast<size_t>(type) < kTypes.size() ? kTypes[static_cast<size_t>(type)] : std::nullopt;
}

// torch's functions, from the library that calls one of ours. They have C linkage and are kept stable for compiled
// programs (torch/csrc/inductor/aoti_torch/c/shim.h).
struct Torch {
  void* library = nullptr;
  int32_t (*numel)(void* tensor, int64_t* count) = nullptr;
  int32_t (*dtype)(void* tensor, int32_t* type) = nullptr;

  explicit Torch(const void* caller) {
    Dl_info info{};
    if (dladdr(caller, &info) == 0) return;
    library = dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_NOW);
    numel = reinterpret_cast<decltype(numel)>(dlsym(library, "aoti_torch_get_numel"));
    dtype = reinterpret_cast<decltype(dtype)>(dlsym(library, "aoti_torch_get_dtype"));
  }
};

// What is in flight, and the numbers of gloo's contexts; one for each process group.
class GlooRecorder {
 public:
  static GlooRecorder& instance() {
    static auto* recorder = new GlooRecorder;  // NOLINT: threads of gloo may outlive static objects
    return *recorder;
  }

  void issue_collective(const void* work, const void* context, uint8_t type, uint64_t seq, const Tensors* inputs,
                        const Torch& torch) {
    if (!is_on_) return;
    Event event = event_of(kind_of(type).value_or(OpKind::barrier), inputs, torch);
    event.seq = static_cast<uint32_t>(seq);
    event.peer = -1;
    issue(work, context, event);
  }

  void issue_message(const void* work, const void* group, OpKind kind, const Tensors& tensors, int32_t peer,
                     int32_t tag, uint64_t t_begin, const Torch& torch) {
    if (!is_on_) return;
    Event event = event_of(kind, &tensors, torch);
    event.t_begin = t_begin;
    event.peer = peer;
    event.aux = static_cast<uint32_t>(tag);
    issue(work, group, event);
  }

  void start(const void* work) {
    if (!is_on_) return;
    const std::lock_guard guard(mutex_);
    if (const auto found = in_flight_.find(work); found != in_flight_.end())
      ring_.update(found->second, [now = hocket::ticks()](Event& event) {
        event.aux = now;
        event.state = EventState::started;
      });
  }

  void finish(const void* work, EventState state) {
    if (!is_on_) return;
    const uint64_t now = hocket::ticks();
    const std::lock_guard guard(mutex_);
    const auto found = in_flight_.find(work);
    if (found == in_flight_.end()) return;
    ring_.update(found->second, [now, state](Event& event) {
      event.t_end = now;
      event.state = state;
    });
    in_flight_.erase(found);
  }

 private:
  GlooRecorder() : is_on_(hocket::hooks::observes("comm")) {
    if (is_on_) ring_ = hocket::Recorder::instance().ring(hocket::RingId::foreign);
    is_on_ = static_cast<bool>(ring_);
  }

  static Event event_of(OpKind kind, const Tensors* tensors, const Torch& torch) {
    Event event{};
    event.t_begin = hocket::ticks();
    event.thread = hocket::hooks::thread_number();
    event.flags = hocket::kEventAsync;
    event.layer = hocket::Layer::communication;
    event.state = EventState::issued;
    event.reduce = kUnknown;
    event.kind = static_cast<uint8_t>(kind);
    event.dtype = static_cast<uint8_t>(DType::uint8);
    if (!tensors || !torch.numel || !torch.dtype) return event;
    for (const Tensor& each : *tensors) {
      int64_t count = 0;
      int32_t type = -1;
      void* handle = const_cast<Tensor*>(&each);
      if (torch.numel(handle, &count) != 0 || torch.dtype(handle, &type) != 0) continue;
      const std::optional<DType> dtype = dtype_of(type);
      if (!dtype) continue;
      event.dtype = static_cast<uint8_t>(*dtype);
      event.nbytes += static_cast<uint64_t>(count) * itemsize(*dtype);
    }
    return event;
  }

  void issue(const void* work, const void* owner, Event& event) {
    const std::lock_guard guard(mutex_);
    event.comm = number_of(owner);
    in_flight_[work] = ring_.add(event);
  }

  uint32_t number_of(const void* context) {
    uint32_t& number = contexts_[context];
    if (number == 0) {
      auto& recorder = hocket::Recorder::instance();
      const std::string label = "gloo group " + std::to_string(contexts_.size());
      number = recorder.define(hocket::DefinitionKind::communicator, label, 0, 0, -1);
      recorder.define(hocket::DefinitionKind::backend, "gloo", number, 0);
    }
    return number;
  }

  bool is_on_;
  std::mutex mutex_;
  hocket::SharedRing ring_;
  std::unordered_map<const void*, uint64_t> in_flight_;
  std::unordered_map<const void*, uint32_t> contexts_;
};

// c10d::ProcessGroupGloo::AsyncWork::
constexpr const char* kConstructor =
    "_ZN4c10d16ProcessGroupGloo9AsyncWorkC2ESt10shared_ptrIN4gloo7ContextEESt6vectorIS6_IN2at6TensorESaIS8_EESaISA_"
    "EENS_"
    "6OpTypeEmNSt6chrono8durationIlSt5ratioILl1ELl1000EEEEPKcRKSt8optionalISA_E";
constexpr const char* kExecute =
    "_ZN4c10d16ProcessGroupGloo9AsyncWork7executeERKN3c1013intrusive_ptrIS1_NS2_6detail34intrusive_target_default_null_"
    "typeIS1_EEEE";
constexpr const char* kFinish = "_ZN4c10d16ProcessGroupGloo9AsyncWork14finishWorkGlooEv";
constexpr const char* kFinishWithError =
    "_ZN4c10d16ProcessGroupGloo9AsyncWork19finishWorkGlooErrorERKNSt15__exception_ptr13exception_ptrE";

constexpr const char* kSend = "_ZN4c10d16ProcessGroupGloo4sendERSt6vectorIN2at6TensorESaIS3_EEii";
constexpr const char* kRecv = "_ZN4c10d16ProcessGroupGloo4recvERSt6vectorIN2at6TensorESaIS3_EEii";
constexpr const char* kWaitSent =
    "_ZN4c10d16ProcessGroupGloo8SendWork4waitENSt6chrono8durationIlSt5ratioILl1ELl1000EEEE";
constexpr const char* kWaitReceived =
    "_ZN4c10d16ProcessGroupGloo8RecvWork4waitENSt6chrono8durationIlSt5ratioILl1ELl1000EEEE";

const Torch& torch_of(const void* caller) {
  static const Torch torch(caller);
  return torch;
}

// Marks a message as failed unless the original function returned: this library has a C++ runtime of its own, which
// must not catch exceptions of another one.
class Outcome {
 public:
  explicit Outcome(const void* work) : work_(work) {}
  ~Outcome() {
    if (is_open_) GlooRecorder::instance().finish(work_, EventState::failed);
  }
  Outcome(const Outcome&) = delete;
  Outcome& operator=(const Outcome&) = delete;
  void returned(bool is_done) {
    is_open_ = false;
    if (is_done) GlooRecorder::instance().finish(work_, EventState::completed);
  }

 private:
  const void* work_;
  bool is_open_ = true;
};

bool wait(bool (*original)(void*, int64_t), void* work, int64_t timeout_ms) {
  Outcome outcome(work);
  const bool is_done = original(work, timeout_ms);
  outcome.returned(is_done);
  return is_done;
}

}  // namespace

extern "C" {

// Arguments passed by value that are not trivially copyable are pointers in the calling convention.
__attribute__((visibility("default"))) void
hocket_gloo_construct(void* work, void* const* context, void* outputs, uint8_t type, uint64_t seq, int64_t timeout_ms, const char* title, const std::optional<Tensors>* inputs) asm(
    "_ZN4c10d16ProcessGroupGloo9AsyncWorkC2ESt10shared_ptrIN4gloo7ContextEESt6vectorIS6_IN2at6TensorESaIS8_EESaISA_"
    "EENS_6OpTypeEmNSt6chrono8durationIlSt5ratioILl1ELl1000EEEEPKcRKSt8optionalISA_E");
void hocket_gloo_construct(void* work, void* const* context, void* outputs, uint8_t type, uint64_t seq,
                           int64_t timeout_ms, const char* title, const std::optional<Tensors>* inputs) {
  const void* caller = __builtin_return_address(0);
  static auto* const original =
      hocket::hooks::next_of_caller<void(void*, void* const*, void*, uint8_t, uint64_t, int64_t, const char*,
                                         const std::optional<Tensors>*)>(kConstructor, caller);
  GlooRecorder::instance().issue_collective(work, *context, type, seq, inputs->has_value() ? &**inputs : nullptr,
                                            torch_of(caller));
  original(work, context, outputs, type, seq, timeout_ms, title, inputs);
}

__attribute__((visibility("default"))) void hocket_gloo_execute(void* const* work) asm(
    "_ZN4c10d16ProcessGroupGloo9AsyncWork7executeERKN3c1013intrusive_ptrIS1_NS2_6detail34intrusive_target_default_null_"
    "typeIS1_EEEE");
void hocket_gloo_execute(void* const* work) {
  static auto* const original =
      hocket::hooks::next_of_caller<void(void* const*)>(kExecute, __builtin_return_address(0));
  GlooRecorder::instance().start(*work);
  original(work);
}

__attribute__((visibility("default"))) void hocket_gloo_finish(void* work) asm(
    "_ZN4c10d16ProcessGroupGloo9AsyncWork14finishWorkGlooEv");
void hocket_gloo_finish(void* work) {
  static auto* const original = hocket::hooks::next_of_caller<void(void*)>(kFinish, __builtin_return_address(0));
  GlooRecorder::instance().finish(work, EventState::completed);
  original(work);
}

__attribute__((visibility("default"))) void hocket_gloo_fail(void* work, const void* error) asm(
    "_ZN4c10d16ProcessGroupGloo9AsyncWork19finishWorkGlooErrorERKNSt15__exception_ptr13exception_ptrE");
void hocket_gloo_fail(void* work, const void* error) {
  static auto* const original =
      hocket::hooks::next_of_caller<void(void*, const void*)>(kFinishWithError, __builtin_return_address(0));
  GlooRecorder::instance().finish(work, EventState::failed);
  original(work, error);
}

// The first parameter is the place of the result, a counted pointer to the Work.
__attribute__((visibility("default"))) void* hocket_gloo_send(
    void** result, void* group, Tensors* tensors, int peer,
    int tag) asm("_ZN4c10d16ProcessGroupGloo4sendERSt6vectorIN2at6TensorESaIS3_EEii");
void* hocket_gloo_send(void** result, void* group, Tensors* tensors, int peer, int tag) {
  const void* caller = __builtin_return_address(0);
  static auto* const original = hocket::hooks::next_of_caller<void*(void**, void*, Tensors*, int, int)>(kSend, caller);
  const uint64_t begin = hocket::ticks();
  void* const returned = original(result, group, tensors, peer, tag);
  GlooRecorder::instance().issue_message(*result, group, OpKind::send, *tensors, peer, tag, begin, torch_of(caller));
  return returned;
}

__attribute__((visibility("default"))) void* hocket_gloo_recv(
    void** result, void* group, Tensors* tensors, int peer,
    int tag) asm("_ZN4c10d16ProcessGroupGloo4recvERSt6vectorIN2at6TensorESaIS3_EEii");
void* hocket_gloo_recv(void** result, void* group, Tensors* tensors, int peer, int tag) {
  const void* caller = __builtin_return_address(0);
  static auto* const original = hocket::hooks::next_of_caller<void*(void**, void*, Tensors*, int, int)>(kRecv, caller);
  const uint64_t begin = hocket::ticks();
  void* const returned = original(result, group, tensors, peer, tag);
  GlooRecorder::instance().issue_message(*result, group, OpKind::recv, *tensors, peer, tag, begin, torch_of(caller));
  return returned;
}

__attribute__((visibility("default"))) bool hocket_gloo_wait_sent(void* work, int64_t timeout_ms) asm(
    "_ZN4c10d16ProcessGroupGloo8SendWork4waitENSt6chrono8durationIlSt5ratioILl1ELl1000EEEE");
bool hocket_gloo_wait_sent(void* work, int64_t timeout_ms) {
  static auto* const original =
      hocket::hooks::next_of_caller<bool(void*, int64_t)>(kWaitSent, __builtin_return_address(0));
  return wait(original, work, timeout_ms);
}

__attribute__((visibility("default"))) bool hocket_gloo_wait_received(void* work, int64_t timeout_ms) asm(
    "_ZN4c10d16ProcessGroupGloo8RecvWork4waitENSt6chrono8durationIlSt5ratioILl1ELl1000EEEE");
bool hocket_gloo_wait_received(void* work, int64_t timeout_ms) {
  static auto* const original =
      hocket::hooks::next_of_caller<bool(void*, int64_t)>(kWaitReceived, __builtin_return_address(0));
  return wait(original, work, timeout_ms);
}
}
