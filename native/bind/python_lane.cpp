#include "bind/python_lane.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <vector>

#include "bind/driven_in_python.hpp"
#include "bind/errors.hpp"
#include "bind/interruption.hpp"
#include "bind/lanes.hpp"
#include "core/engine.hpp"
#include "core/process.hpp"
#include "memory/driver.hpp"
#include "reduce/reduce.hpp"

namespace hocket {

namespace {

// The adapter's view of an operation.
struct LaneOperation {
  Operation op;
  int size;
};

// Sizes in bytes, by rank; empty if all are equal.
std::vector<uint64_t> block_sizes(const Operation& op, BlockOffsets Blocks::* side) {
  std::vector<uint64_t> sizes;
  if (!op.blocks) return sizes;
  const BlockOffsets& offsets = (*op.blocks).*side;
  for (size_t r = 0; r + 1 < offsets.size(); ++r) sizes.push_back(offsets[r + 1] - offsets[r]);
  return sizes;
}

uint32_t key_of(const Operation& op) {
  return static_cast<uint32_t>(op.kind) << 16 | static_cast<uint32_t>(op.dtype) << 8 |
         (reduces(op.kind) ? static_cast<uint32_t>(op.reduce) : 0);
}

}  // namespace

static Polling read_polling(const std::string& text) {
  if (text == "eager") return Polling::eager;
  if (text == "patient") return Polling::patient;
  if (text == "blocking") return Polling::blocking;
  if (text == "none") return Polling::none;
  throw Failure(ErrorCode::invalid_argument, "polling must be none, blocking, patient or eager, not " + text);
}

// State: queued -> posted -> over; it can be dropped at any time. `error` is written before the state is over.
struct PythonLane::Slot {
  enum class State : uint8_t { queued, posted, over };
  LaneOperation view;
  std::atomic<State> state{State::queued};
  std::atomic<bool> dropped{false};
  std::atomic<bool> woken{false};
  std::optional<Error> error;
  nb::object token;          // with the GIL only
  bool is_given_up = false;  // used by the pump only
};

// The pump's part of a lane; it outlives the lane until the pump has released the Python objects.
struct PythonLane::Adapter {
  nb::object object;  // this and the tokens: with the GIL only
  std::string backend;
  int size = 1;
  Polling polling = Polling::none;
  std::shared_ptr<DrivenLibrary> library;  // set if it must be driven
  std::atomic<bool> wants_attention{false};
  std::atomic<bool> is_closed{false};
  std::atomic<int> num_in_flight{0};
  std::mutex mutex;  // guards to_post; held briefly, never while Python runs
  std::deque<std::shared_ptr<Slot>> to_post;
  std::vector<std::shared_ptr<Slot>> posted;  // used by the pump only

  void request_attention() {
    if (!wants_attention.exchange(true, std::memory_order_acq_rel)) Engine::instance().request_pump(1);
  }
  bool drive(const std::shared_ptr<Adapter>& self, bool all);
  bool post_next(const std::shared_ptr<Adapter>& self);
  bool test(Slot& slot);
  bool give_up(Slot& slot);
  Error error_of(const Slot& slot, const nb::python_error& error) const;
  void finish(Slot& slot) {
    slot.token.reset();
    slot.state.store(Slot::State::over, std::memory_order_release);
    num_in_flight.fetch_sub(1, std::memory_order_relaxed);
    if (library) library->note_use();
  }
};

namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::shared_ptr<PythonLane::Adapter>> adapters;
  // Adapters of destroyed lanes: the pump releases their Python objects, because it has the GIL.
  std::vector<std::shared_ptr<PythonLane::Adapter>> orphans;
};

}  // namespace

static Registry& registry() {
  static auto* instance = new Registry;  // NOLINT: never destroyed, as threads may be inside at exit
  return *instance;
}

bool PythonLane::Adapter::post_next(const std::shared_ptr<Adapter>& self) {
  std::shared_ptr<Slot> slot;
  {
    const std::lock_guard guard(mutex);
    if (to_post.empty()) return false;
    slot = to_post.front();
    to_post.pop_front();
  }
  if (slot->dropped.load(std::memory_order_acquire)) {
    finish(*slot);
    return true;
  }
  nb::object wake = nb::cpp_function([weak = std::weak_ptr<Slot>(slot), owner = std::weak_ptr<Adapter>(self)] {
    const std::shared_ptr<Slot> woken = weak.lock();
    const std::shared_ptr<Adapter> adapter = owner.lock();
    if (!woken || !adapter) return;
    woken->woken.store(true, std::memory_order_release);
    adapter->request_attention();
    Engine::instance().wake_own_process();
  });
  try {
    slot->token = object.attr("post")(nb::cast(slot->view), wake);
    slot->state.store(Slot::State::posted, std::memory_order_release);
    posted.push_back(slot);
  } catch (nb::python_error& error) {
    slot->error = error_of(*slot, error);  // also if interrupted, because it is not known whether it was posted
    take_interruption(error);
    finish(*slot);
  }
  return true;
}

// A message of a wrong size fails its operation only; any other error breaks the communicator.
Error PythonLane::Adapter::error_of(const Slot& slot, const nb::python_error& error) const {
  if (!error.matches(nb::module_::import_("hocket.errors").attr("CollectiveMismatch")))
    return {ErrorCode::aborted, backend + ": " + error.what(), {}};
  const Operation& op = slot.view.op;
  const std::string text = nb::cast<std::string>(nb::str(error.value()));
  return {ErrorCode::collective_mismatch, describe(op) + " at " + (op.site ? op.site : "?") + ": " + text, {op.root}};
}

bool PythonLane::Adapter::test(Slot& slot) {
  try {
    if (!nb::cast<bool>(object.attr("test")(slot.token))) return false;
  } catch (nb::python_error& error) {
    if (take_interruption(error)) return false;
    slot.error = error_of(slot, error);
  }
  finish(slot);
  return true;
}

// Gives up a dropped operation; true if it is finished by that.
bool PythonLane::Adapter::give_up(Slot& slot) {
  if (slot.is_given_up || !slot.dropped.load(std::memory_order_acquire)) return false;
  slot.is_given_up = true;
  try {
    if (!nb::cast<bool>(object.attr("give_up")(slot.token))) return false;
  } catch (nb::python_error& error) {
    if (take_interruption(error)) return false;
    slot.error = error_of(slot, error);
  }
  finish(slot);
  return true;
}

bool PythonLane::Adapter::drive(const std::shared_ptr<Adapter>& self, bool all) {
  if (wants_attention.exchange(false, std::memory_order_acq_rel)) Engine::instance().request_pump(-1);
  bool moved = false;
  while (post_next(self)) moved = true;
  for (size_t i = 0; i < posted.size();) {
    Slot& slot = *posted[i];
    const bool is_tested = polling != Polling::none || all || slot.woken.exchange(false, std::memory_order_acq_rel);
    if (give_up(slot) || (is_tested && test(slot))) {
      moved = true;
      posted.erase(posted.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  if (polling != Polling::none && !posted.empty()) request_attention();
  return moved;
}

static std::atomic<bool> g_busy{false};  // a thread is in the pump, or reads data of the pump

static bool pump_python_lanes(bool all) {
  if (g_forked_child.load(std::memory_order_relaxed) || g_busy.exchange(true, std::memory_order_acquire)) return false;
  bool moved = false;
  {
    const nb::gil_scoped_acquire gil;
    // First, so that handlers do not run and raise within a library's calls.
    if (is_interrupted()) {
      g_busy.store(false, std::memory_order_release);
      return false;
    }
    drive_requested_libraries();
    std::vector<std::shared_ptr<PythonLane::Adapter>> adapters;
    {
      const std::lock_guard guard(registry().mutex);
      adapters = registry().adapters;
    }
    for (const auto& adapter : adapters) {
      if (all || adapter->wants_attention.load(std::memory_order_acquire)) moved |= adapter->drive(adapter, all);
      if (!adapter->is_closed.load(std::memory_order_acquire) || !adapter->posted.empty()) continue;
      const std::lock_guard guard(registry().mutex);
      std::erase(registry().adapters, adapter);
    }
    std::vector<std::shared_ptr<PythonLane::Adapter>> orphans;
    {
      const std::lock_guard guard(registry().mutex);
      orphans.swap(registry().orphans);
    }
    adapters.clear();  // both here, with the GIL
    orphans.clear();
  }
  g_busy.store(false, std::memory_order_release);
  if (moved) Engine::instance().wake_own_process();
  return moved;
}

// Chooses the first operation of the first blocking lane: within a lane it is the first to finish.
static nb::object blocking_call(int64_t timeout_ns) {
  if (g_busy.exchange(true, std::memory_order_acquire)) return {};
  std::shared_ptr<PythonLane::Adapter> adapter;
  nb::object token;
  {
    const std::lock_guard guard(registry().mutex);
    for (const auto& each : registry().adapters) {
      if (each->polling != Polling::blocking || each->posted.empty()) continue;
      adapter = each;
      token = each->posted.front()->token;
      break;
    }
  }
  g_busy.store(false, std::memory_order_release);
  if (!token.is_valid()) return {};
  try {
    return adapter->object.attr("blocking_call")(token, static_cast<double>(timeout_ns) * 1e-9);
  } catch (nb::python_error& error) {
    if (!take_interruption(error)) error.discard_as_unraisable("hocket waits for a library");
    return {};
  }
}

static bool block_in_python_lanes(int64_t timeout_ns) {
  if (g_forked_child.load(std::memory_order_relaxed)) return false;
  const nb::gil_scoped_acquire gil;
  if (is_interrupted()) return true;
  const nb::object call = blocking_call(timeout_ns);
  if (!call.is_valid()) return false;
  PyObject* result = PyObject_CallNoArgs(call.ptr());
  if (!result) PyErr_Clear();  // it timed out; test() will find an error of the operation
  Py_XDECREF(result);
  return true;
}

void set_python_pump() { Engine::instance().set_pump(&pump_python_lanes, &block_in_python_lanes); }

PythonLane::PythonLane(nb::object adapter, std::string backend, std::shared_ptr<DrivenLibrary> library)
    : backend_(std::move(backend)), adapter_(std::make_shared<Adapter>()) {
  depth_ = nb::cast<size_t>(adapter.attr("depth"));
  device_ = nb::cast<std::optional<int>>(adapter.attr("device"));
  adapter_->size = nb::cast<int>(adapter.attr("size"));
  adapter_->polling = read_polling(nb::cast<std::string>(adapter.attr("polling")));
  adapter_->backend = backend_;
  adapter_->library = std::move(library);
  nb::object refuses = adapter.attr("refuses");
  for (size_t kind = 0; kind < kOpNames.size(); ++kind)
    for (size_t dtype = 0; dtype < kNumDTypes; ++dtype)
      for (size_t reduce = 0; reduce < kNumReduceOps; ++reduce) {
        const Operation op{.kind = static_cast<OpKind>(kind),
                           .dtype = static_cast<DType>(dtype),
                           .reduce = static_cast<ReduceOp>(reduce)};
        if (!reduces(op.kind) && reduce > 0) break;
        nb::object reason = refuses(name(op.kind), name(op.dtype),
                                    reduces(op.kind) ? nb::cast(name(op.reduce)) : nb::object(nb::none()));
        if (!reason.is_none()) refusals_[key_of(op)] = nb::cast<std::string>(reason);
      }
  adapter_->object = std::move(adapter);
  set_python_pump();
  const std::lock_guard guard(registry().mutex);
  registry().adapters.push_back(adapter_);
}

// Runs without the GIL. The pump may be using this adapter on another thread, and may drop the registry's reference
// first; then this would be the last reference. So it is moved to the registry, under its mutex, so that a pump that
// takes the request for attention finds it.
PythonLane::~PythonLane() {
  const std::lock_guard guard(registry().mutex);
  adapter_->is_closed.store(true, std::memory_order_release);
  adapter_->request_attention();
  registry().orphans.push_back(std::move(adapter_));
}

Progress PythonLane::post(Operation& op) {
  auto slot = std::make_shared<Slot>();
  slot->view = {op, adapter_->size};
  op.token = new std::shared_ptr<Slot>(slot);  // NOLINT: freed when the operation is over
  adapter_->num_in_flight.fetch_add(1, std::memory_order_relaxed);
  {
    const std::lock_guard guard(adapter_->mutex);
    adapter_->to_post.push_back(std::move(slot));
  }
  adapter_->request_attention();
  return Progress::moved;
}

Progress PythonLane::test(Operation& op) {
  auto* held = static_cast<std::shared_ptr<Slot>*>(op.token);
  if ((*held)->state.load(std::memory_order_acquire) != Slot::State::over) return Progress::waiting;
  const std::optional<Error> error = (*held)->error;
  delete held;
  op.token = nullptr;
  if (error) throw Failure(*error);
  return Progress::done;
}

std::vector<int> PythonLane::missing(const Operation& op) const {
  if (is_point_to_point(op.kind)) return {op.root};
  return {};  // the library does not report it
}

bool PythonLane::cancel(Operation& op) noexcept {
  auto* held = static_cast<std::shared_ptr<Slot>*>(op.token);
  (*held)->dropped.store(true, std::memory_order_release);
  adapter_->request_attention();
  const bool unnoticed = (*held)->state.load(std::memory_order_acquire) == Slot::State::queued;
  delete held;
  op.token = nullptr;
  return unnoticed;
}

std::optional<std::string> PythonLane::refuses(const Operation& op) const {
  const auto found = refusals_.find(key_of(op));
  if (found == refusals_.end()) return std::nullopt;
  return found->second;
}

bool PythonLane::takes_memory(const Operation& op) const {
  if (!device_ || !op.device) return !device_ && !op.device;
  return op.device->device == *device_ || op.device->device == DeviceArrays::kAny;
}

Polling PythonLane::polling() const {
  const bool in_flight = adapter_->num_in_flight.load(std::memory_order_relaxed) > 0;
  return in_flight ? adapter_->polling : Polling::none;
}

bool PythonLane::has_threads() const {
  return adapter_->polling <= Polling::blocking && adapter_->num_in_flight.load(std::memory_order_relaxed) > 0;
}

void bind_python_lane(nb::module_& module) {
  const auto address = [](const std::byte* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
  nb::class_<LaneOperation>(module, "LaneOperation", "An operation in the form that a backend written in Python gets.")
      .def_prop_ro("kind", [](const LaneOperation& self) { return name(self.op.kind); })
      .def_prop_ro("dtype", [](const LaneOperation& self) { return name(self.op.dtype); })
      .def_prop_ro("reduction",
                   [](const LaneOperation& self) -> std::optional<std::string> {
                     if (!reduces(self.op.kind)) return std::nullopt;
                     return name(self.op.reduce);
                   })
      .def_prop_ro("root", [](const LaneOperation& self) { return self.op.root; })
      .def_prop_ro("tag", [](const LaneOperation& self) { return self.op.tag; })
      .def_prop_ro("nbytes", [](const LaneOperation& self) { return self.op.nbytes; })
      .def_prop_ro("in_blocks", [](const LaneOperation& self) { return block_sizes(self.op, &Blocks::in); })
      .def_prop_ro("out_blocks", [](const LaneOperation& self) { return block_sizes(self.op, &Blocks::out); })
      .def_prop_ro("in_address", [address](const LaneOperation& self) { return address(self.op.in); })
      .def_prop_ro("out_address", [address](const LaneOperation& self) { return address(self.op.out); })
      .def_prop_ro("in_nbytes", [](const LaneOperation& self) { return self.op.in_nbytes(self.size); })
      .def_prop_ro("out_nbytes", [](const LaneOperation& self) { return self.op.out_nbytes(self.size); });
  module.def(
      "reduce_memory",
      [](const std::string& dtype, const std::string& op, uintptr_t out, const std::vector<uintptr_t>& sources,
         size_t nbytes, uintptr_t second_out) {
        const auto type = std::find(kDTypeNames.begin(), kDTypeNames.end(), dtype) - kDTypeNames.begin();
        const auto reduction = std::find(kReduceNames.begin(), kReduceNames.end(), op) - kReduceNames.begin();
        std::vector<const std::byte*> from;
        for (const uintptr_t each : sources) from.push_back(reinterpret_cast<const std::byte*>(each));
        const nb::gil_scoped_release released;
        reduce_kernel(static_cast<DType>(type), static_cast<ReduceOp>(reduction))(
            reinterpret_cast<std::byte*>(out), reinterpret_cast<std::byte*>(second_out), from.data(),
            static_cast<int>(from.size()), nbytes / itemsize(static_cast<DType>(type)));
      },
      nb::arg("dtype"), nb::arg("op"), nb::arg("out_address"), nb::arg("source_addresses"), nb::arg("nbytes"),
      nb::arg("second_out_address") = 0,
      "Reduce memory like the shm backend, in the order of the sources; for reductions that a library does not have.");
  module.def(
      "python_lane",
      [](nb::object adapter, std::string backend, const PyDrivenLibrary* library) {
        std::shared_ptr<DrivenLibrary> driven = library ? library->library : nullptr;
        return PyLane{std::make_unique<PythonLane>(std::move(adapter), std::move(backend), std::move(driven))};
      },
      nb::arg("adapter"), nb::arg("backend"), nb::arg("library").none() = nb::none());
}

}  // namespace hocket
