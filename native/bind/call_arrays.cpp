#include "bind/call_arrays.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "bind/pointer_cache.hpp"
#include "core/copy.hpp"
#include "core/process.hpp"

namespace hocket {

namespace {

ByteRange range_of(const Array& array) {
  ByteRange range;
  if (array.nbytes()) array.extent(&range.begin, &range.end);
  return range;
}

// The range from the first byte of any part to the last. It may contain unused bytes; exact ranges would save little.
ByteRange range_of(const std::vector<std::unique_ptr<Array>>& parts) {
  ByteRange all;
  for (const auto& part : parts) {
    const ByteRange range = range_of(*part);
    if (!range.begin) continue;
    all = {all.begin ? std::min(all.begin, range.begin) : range.begin, std::max(all.end, range.end)};
  }
  return all;
}

thread_local bool t_may_release = false;

// A Work may be destroyed on a thread without the GIL, but its arrays need the GIL: they wait here for the next call.
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

// Used with the GIL only. Never destroyed: at exit the interpreter is gone, so references cannot be released.
ArraysPool& arrays_pool() {
  static auto* pool = new ArraysPool;  // NOLINT
  return *pool;
}

void Arrays::set_device(Operation& op) {
  const Array& result = out.is_given() ? out : in;
  const DeviceMemory* const places[] = {in.device(), result.device()};
  const DeviceMemory* const any = places[0] ? places[0] : places[1];
  const bool is_one_device = std::all_of(std::begin(places), std::end(places), [&](const DeviceMemory* place) {
    return !place || (place->driver == any->driver && place->buffer.device == any->buffer.device);
  });
  if (!in.is_on_device() || !result.is_on_device() || !is_one_device) return stage(op);
  std::string reason;
  device.driver = any ? any->driver : find_memory_driver(&reason);
  if (!device.driver) return stage(op);  // the arrays are empty, on all members
  device.device = any ? any->buffer.device : DeviceArrays::kAny;
  device.is_written = written != nullptr;
  note_buffers();
  op.device = &device;
}

void Arrays::note_buffers() {
  const Array& result = out.is_given() ? out : in;
  if (in.device()) device.in = in.device()->buffer;
  if (result.device()) device.out = result.device()->buffer;
}

void Arrays::stage(Operation& op) {
  in.stage();
  out.stage();
  if (op.in) op.in = in.data();
  if (op.out) op.out = out.is_given() ? out.data() : in.data();
  op.device = nullptr;
}

void Arrays::read_in() const {
  if (in.is_copy()) in.read_in();
  std::byte* to = buffer.get();
  for (const auto& part : parts) {
    if (part->is_copy()) part->read_in();
    copy_bytes(to, part->data(), part->nbytes());
    to += part->nbytes();
  }
}

void Arrays::refresh_device() {
  in.refresh_device();
  out.refresh_device();
  for (const auto& part : parts) part->refresh_device();
  if (device.driver) note_buffers();
}

void Arrays::hold_memory() {
  in.hold_memory();
  out.hold_memory();
  for (const auto& part : parts) part->hold_memory();
}

bool Arrays::have_changed() const {
  return in.has_changed() || out.has_changed() ||
         std::any_of(parts.begin(), parts.end(), [](const auto& part) { return part->has_changed(); });
}

void Arrays::write_back() const {
  if (written && written->is_copy()) written->write_back();
  if (!writes_parts) return;
  const std::byte* from = buffer.get();
  for (const auto& part : parts) {
    copy_bytes(part->data(), from, part->nbytes());
    if (part->is_copy()) part->write_back();
    from += part->nbytes();
  }
}

ByteRange Arrays::reads() const { return buffer ? range_of(parts) : range_of(in); }
ByteRange Arrays::writes() const {
  if (buffer) return writes_parts ? range_of(parts) : ByteRange{};
  return written ? range_of(*written) : ByteRange{};
}

std::shared_ptr<void> pin(std::unique_ptr<Arrays> arrays, PyObject* communicator) {
  arrays->communicator = nb::borrow(nb::handle(communicator));
  arrays->hold_memory();
  return {arrays.release(), [](Arrays* held) {
            std::unique_ptr<Arrays> owner(held);
            if (g_forked_child.load(std::memory_order_relaxed)) {
              (void)owner.release();  // the mutex may be held forever by a thread that exists only in the parent
            } else if (!t_may_release) {
              arrays_of_finished().add(std::move(owner));
            }
          }};
}

void release_pins(std::shared_ptr<void>& pins) {
  t_may_release = true;
  pins.reset();
  t_may_release = false;
}

void release_finished_arrays() { arrays_of_finished().release(); }

}  // namespace hocket
