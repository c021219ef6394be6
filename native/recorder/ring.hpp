// Writers of rings of events. They allocate nothing, take no lock and make no system call.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/clock.hpp"
#include "recorder/layout.hpp"
#include "recorder/store_order.hpp"

namespace hocket {

// Every kCostInterval-th event measures what recording it costs.
inline constexpr uint64_t kCostInterval = 256;

inline constexpr uint64_t kMostSamplingLog2 = 8;            // one of 256
inline constexpr uint64_t kLeastWindowTicks = 100'000'000;  // 25 to 100 ms

// A new event overwrites the oldest one. `index` counts the events of a ring from 0.
inline uint32_t version_of(uint64_t index, uint64_t capacity) {
  return static_cast<uint32_t>(index / capacity + 1) << 1;
}

// One writer at a time.
class SerialRing {
 public:
  SerialRing() = default;
  SerialRing(RingHeader* header, Event* events) : header_(header), events_(events), mask_(header->capacity - 1) {}

  explicit operator bool() const { return header_ != nullptr; }
  uint64_t capacity() const { return mask_ + 1; }
  uint64_t next() const { return header_->next; }

  // The slot of the next event, unreadable until publish().
  Event& claim() {
    const uint64_t index = header_->next;
    header_->issued = index + 1;
    Event& event = events_[index & mask_];
    std::atomic_ref(event.version).store(version_of(index, capacity()) | 1, std::memory_order_relaxed);
    keep_store_order();
    return event;
  }
  uint64_t publish(Event& event) {
    const uint64_t index = header_->next;
    std::atomic_ref(event.version).store(version_of(index, capacity()), std::memory_order_release);
    std::atomic_ref(header_->next).store(index + 1, std::memory_order_release);
    header_->recorded = index + 1;
    return index;
  }

  // Null if the event was overwritten meanwhile.
  Event* find(uint64_t index) const { return header_->next - index > capacity() ? nullptr : &events_[index & mask_]; }
  static void set_state(Event& event, EventState state) {
    std::atomic_ref(event.state).store(state, std::memory_order_release);
  }
  void add_cost(uint64_t ticks) { header_->cost_ticks += ticks * kCostInterval; }

 private:
  RingHeader* header_ = nullptr;
  Event* events_ = nullptr;
  uint64_t mask_ = 0;
};

// Where a ring notes that it records more or fewer events: the ring of events of the process.
struct SamplingLog {
  RingHeader* header = nullptr;  // null: nowhere
  Event* events = nullptr;
  RingId of = RingId::process;  // the ring that notes it
};

// Any number of writers. A slot belongs to the writer that made its version odd; a writer that finds it odd drops its
// event, because another one was interrupted inside for a whole lap of the ring.
class SharedRing {
 public:
  static constexpr uint64_t kNone = ~0ull;

  SharedRing() = default;
  explicit SharedRing(RingHeader* header, Event* events, SamplingLog log = {})
      : header_(header), events_(events), mask_(header->capacity - 1), log_(log) {}

  explicit operator bool() const { return header_ != nullptr; }

  // Records an event, whose version is set here; kNone if it is sampled out or dropped.
  uint64_t add(Event event) {
    const uint64_t number = std::atomic_ref(header_->issued).fetch_add(1, std::memory_order_relaxed);
    const uint64_t sampling = std::atomic_ref(header_->sampling_log2).load(std::memory_order_relaxed);
    if (sampling != 0 && !is_chosen(number, sampling)) {
      std::atomic_ref(header_->sampled_out).fetch_add(1, std::memory_order_relaxed);
      return kNone;
    }
    const uint64_t block = number >> sampling;  // the first ones find cold memory
    const bool measures_cost = block % (kCostInterval >> sampling) == 0 && block != 0;
    const uint64_t cost_begin = measures_cost ? ticks() : 0;
    event.weight_log2 = static_cast<uint8_t>(sampling);
    const uint64_t index = write(event);
    if (measures_cost && index != kNone) govern(cost_begin, sampling, event.thread);
    return index;
  }

  // Records an event that must not be left out.
  uint64_t add_always(const Event& event) {
    std::atomic_ref(header_->issued).fetch_add(1, std::memory_order_relaxed);
    return write(event);
  }

  // Changes an event with `change(Event&)`; does nothing if it was overwritten meanwhile.
  template <typename Change>
  void update(uint64_t index, Change change) {
    if (index == kNone) return;
    Event& slot = events_[index & mask_];
    if (!enter(slot, version_of(index, mask_ + 1), index)) return;
    change(slot);
    leave(slot, index);
  }

 private:
  // One of each 2^sampling events that follow each other, each time at another place among them: programs repeat
  // themselves, and every second event may be a receive.
  static bool is_chosen(uint64_t number, uint64_t sampling) {
    const uint64_t place = (number >> sampling) * 0x9E3779B97F4A7C15ull >> (64 - sampling);
    return (number & ((1ull << sampling) - 1)) == place;
  }

  uint64_t write(const Event& event) {
    const uint64_t index = std::atomic_ref(header_->next).fetch_add(1, std::memory_order_relaxed);
    Event& slot = events_[index & mask_];
    if (!enter(slot, std::atomic_ref(slot.version).load(std::memory_order_relaxed), index)) {
      std::atomic_ref(header_->dropped).fetch_add(1, std::memory_order_relaxed);
      return kNone;
    }
    std::memcpy(&slot, &event, offsetof(Event, version));
    leave(slot, index);
    std::atomic_ref(header_->recorded).fetch_add(1, std::memory_order_relaxed);
    return index;
  }

  // Adds the cost of the last kCostInterval events, and records more or fewer of the next ones by their cost.
  void govern(uint64_t cost_begin, uint64_t sampling, uint16_t thread) {
    const uint64_t now = ticks();
    constexpr uint64_t kWithUpdate = 2;  // most events are changed once more when they end
    constexpr uint64_t kMostCost = 500;  // ticks; what takes longer was interrupted
    const uint64_t cost = std::min(now - cost_begin, kMostCost) * (kCostInterval >> sampling) * kWithUpdate;
    const uint64_t total = std::atomic_ref(header_->cost_ticks).fetch_add(cost, std::memory_order_relaxed) + cost;
    const uint64_t budget_ppm = header_->most_cost_ppm;
    std::atomic_ref window_begin(header_->window_begin);
    uint64_t begin = window_begin.load(std::memory_order_relaxed);
    const uint64_t passed = now - begin;
    if (budget_ppm == 0 || static_cast<int64_t>(passed) < static_cast<int64_t>(kLeastWindowTicks) ||
        !window_begin.compare_exchange_strong(begin, now, std::memory_order_relaxed))
      return;
    const uint64_t before = std::atomic_ref(header_->window_cost).exchange(total, std::memory_order_relaxed);
    const uint64_t ppm = (total - before) * 1'000'000 / passed;
    if (ppm > budget_ppm && sampling < kMostSamplingLog2) set_sampling(sampling + 1, now, thread);
    if (ppm < budget_ppm / 4 && sampling > 0) set_sampling(sampling - 1, now, thread);
  }

  void set_sampling(uint64_t sampling, uint64_t now, uint16_t thread) {
    std::atomic_ref(header_->sampling_log2).store(sampling, std::memory_order_relaxed);
    if (!log_.header) return;
    Event event{};
    event.t_begin = event.t_end = now;
    event.aux = sampling;
    event.comm = static_cast<uint32_t>(log_.of);
    event.peer = -1;
    event.thread = thread;
    event.kind = static_cast<uint8_t>(ProcessKind::sampling);
    event.reduce = 0xff;
    event.state = EventState::completed;
    event.layer = Layer::process;
    SharedRing(log_.header, log_.events).add_always(event);
  }

  bool enter(Event& slot, uint32_t found, uint64_t index) {
    if (found & 1) return false;
    const bool is_ours = std::atomic_ref(slot.version)
                             .compare_exchange_strong(found, version_of(index, mask_ + 1) | 1,
                                                      std::memory_order_acquire, std::memory_order_relaxed);
    keep_store_order();
    return is_ours;
  }
  void leave(Event& slot, uint64_t index) {
    std::atomic_ref(slot.version).store(version_of(index, mask_ + 1), std::memory_order_release);
  }

  RingHeader* header_ = nullptr;
  Event* events_ = nullptr;
  uint64_t mask_ = 0;
  SamplingLog log_;
};

}  // namespace hocket
