// The 64-byte event that every operation records, and the ring buffer of a communicator's latest events.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/clock.hpp"
#include "core/operation.hpp"

namespace hocket {

enum class EventState : uint8_t { issued, started, waited, completed, failed };

struct Event {
  uint64_t t_begin;  // raw ticks, or nanoseconds of a virtual clock
  uint64_t t_end;
  uint32_t seq;
  uint32_t comm;
  uint64_t nbytes;
  int32_t peer;  // rank; -1 for a collective without root
  uint32_t weight;
  uint64_t aux;  // tag of a point-to-point operation; with a schedule: bytes that this rank sent
  uint16_t kind;
  uint16_t algorithm;  // number of the program; 0: the library's own algorithm
  uint8_t backend;
  uint8_t dtype;
  EventState state;
  uint8_t flags;
  uint32_t blocked_ns;  // time that callers waited for an asynchronous operation, at most 4.29 s
  uint32_t reduce;
};
static_assert(sizeof(Event) == 64);

inline constexpr uint8_t kEventAsync = 1;
inline constexpr uint8_t kEventNamed = 2;    // Operation.is_named
inline constexpr uint8_t kEventInPlace = 4;  // Operation.is_in_place

// A new event overwrites the oldest one. Written only under the progress lock; readers copy it under the same lock.
class EventRing {
 public:
  static constexpr uint64_t kCapacity = 4096;
  // Pages of events that were never written take no memory.
  explicit EventRing(uint32_t comm) : comm_(comm), events_(std::make_unique_for_overwrite<Event[]>(kCapacity)) {}

  // From now on, events have nanoseconds of this clock instead of ticks.
  void set_clock(std::shared_ptr<const std::atomic<uint64_t>> clock_ns) { clock_ns_ = std::move(clock_ns); }

  bool has_clock() const { return clock_ns_ != nullptr; }

  uint64_t begin(const Operation& op, uint8_t flags) {
    const uint64_t index = issued_++;
    Event& event = events_[index % kCapacity];
    event.t_begin = now();
    event.t_end = 0;
    event.seq = static_cast<uint32_t>(op.seq);
    event.comm = comm_;
    event.nbytes = op.nbytes;
    event.peer = op.root;
    event.weight = 1;
    event.aux = static_cast<uint64_t>(static_cast<uint32_t>(op.tag));
    event.kind = static_cast<uint16_t>(op.kind);
    event.algorithm = op.program ? op.program->number : 0;
    event.backend = op.backend;
    event.dtype = static_cast<uint8_t>(op.dtype);
    event.state = EventState::issued;
    event.flags = flags | (op.is_named ? kEventNamed : 0);
    event.blocked_ns = 0;
    event.reduce = reduces(op.kind) ? static_cast<uint32_t>(op.reduce) : 0xff;
    return index;
  }

  // Does nothing if the event was overwritten meanwhile (more than kCapacity operations in flight).
  void end(uint64_t index, EventState state) {
    if (issued_ - index > kCapacity) return;
    Event& event = events_[index % kCapacity];
    event.t_end = now();
    event.state = state;
  }

  void set_in_place(uint64_t index) {
    if (issued_ - index <= kCapacity) events_[index % kCapacity].flags |= kEventInPlace;
  }

  void set_aux(uint64_t index, uint64_t aux) {
    if (issued_ - index <= kCapacity) events_[index % kCapacity].aux = aux;
  }

  void add_blocked(uint64_t index, int64_t ns) {
    if (issued_ - index > kCapacity) return;
    uint32_t& blocked_ns = events_[index % kCapacity].blocked_ns;
    blocked_ns = static_cast<uint32_t>(std::min<int64_t>(blocked_ns + std::max<int64_t>(ns, 0), UINT32_MAX));
  }

  void mark(uint64_t index, EventState state) {
    if (issued_ - index <= kCapacity) events_[index % kCapacity].state = state;
  }

  uint64_t issued() const { return issued_; }

  // The latest events, oldest first.
  std::vector<Event> snapshot(uint64_t most = kCapacity) const {
    const uint64_t held = std::min({issued_, kCapacity, most});
    std::vector<Event> copy;
    copy.reserve(held);
    for (uint64_t i = issued_ - held; i < issued_; ++i) copy.push_back(events_[i % kCapacity]);
    return copy;
  }

 private:
  uint64_t now() const { return clock_ns_ ? clock_ns_->load(std::memory_order_relaxed) : ticks(); }

  uint32_t comm_;
  uint64_t issued_ = 0;
  std::unique_ptr<Event[]> events_;
  std::shared_ptr<const std::atomic<uint64_t>> clock_ns_;
};

}  // namespace hocket
