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

// Any number of writers. A slot belongs to the writer that made its version odd; a writer that finds it odd drops its
// event, because another one was interrupted inside for a whole lap of the ring.
class SharedRing {
 public:
  static constexpr uint64_t kNone = ~0ull;

  SharedRing() = default;
  SharedRing(RingHeader* header, Event* events) : header_(header), events_(events), mask_(header->capacity - 1) {}

  explicit operator bool() const { return header_ != nullptr; }

  // Records an event, whose version is set here; kNone if it is sampled out or dropped.
  uint64_t add(Event event) {
    const uint64_t number = std::atomic_ref(header_->issued).fetch_add(1, std::memory_order_relaxed);
    const uint64_t sampling = std::atomic_ref(header_->sampling_log2).load(std::memory_order_relaxed);
    if (sampling != 0 && (number & ((1ull << sampling) - 1)) != 0) {
      std::atomic_ref(header_->sampled_out).fetch_add(1, std::memory_order_relaxed);
      return kNone;
    }
    const bool measures_cost = number % kCostInterval == 0 && number != 0;  // the first ones find cold memory
    const uint64_t cost_begin = measures_cost ? ticks() : 0;
    const uint64_t index = std::atomic_ref(header_->next).fetch_add(1, std::memory_order_relaxed);
    Event& slot = events_[index & mask_];
    if (!enter(slot, std::atomic_ref(slot.version).load(std::memory_order_relaxed), index)) {
      std::atomic_ref(header_->dropped).fetch_add(1, std::memory_order_relaxed);
      return kNone;
    }
    event.weight_log2 = static_cast<uint8_t>(sampling);
    std::memcpy(&slot, &event, offsetof(Event, version));
    leave(slot, index);
    std::atomic_ref(header_->recorded).fetch_add(1, std::memory_order_relaxed);
    if (measures_cost) govern(cost_begin, sampling);
    return index;
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
  // Adds the cost of the last kCostInterval events, and records more or fewer of the next ones by their cost.
  void govern(uint64_t cost_begin, uint64_t sampling) {
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
    std::atomic_ref wanted(header_->sampling_log2);
    if (ppm > budget_ppm && sampling < kMostSamplingLog2) wanted.store(sampling + 1, std::memory_order_relaxed);
    if (ppm < budget_ppm / 4 && sampling > 0) wanted.store(sampling - 1, std::memory_order_relaxed);
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
};

}  // namespace hocket
