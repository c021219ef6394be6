// The events of one communicator: in the recorder's ring of operations, or in a ring of its own with a virtual clock.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.hpp"
#include "core/operation.hpp"
#include "recorder/rank_text.hpp"
#include "recorder/recorder.hpp"

namespace hocket {

// Written only under the progress lock; readers of this process copy events under the same lock.
class EventRing {
 public:
  static constexpr uint64_t kMostEvents = 4096;  // that readers get

  EventRing(const std::string& communicator, int rank)
      : comm_(Recorder::instance().define(DefinitionKind::communicator, communicator, 0, 0, rank)),
        ring_(Recorder::instance().operations()),
        histograms_(ring_ ? &Recorder::instance().histograms() : nullptr) {}

  // The name of one of the communicator's backends or algorithms, which events refer to by number.
  void define(DefinitionKind kind, std::string_view name, size_t number) {
    if (!clock_ns_) Recorder::instance().define(kind, name, comm_, static_cast<uint16_t>(number));
  }

  // The ranks of its members in the job.
  void define_members(const std::vector<int>& ranks) {
    const std::string text = rank_text(ranks);
    if (!clock_ns_ && text.size() <= kMostRankText) define(DefinitionKind::members, text, 0);
  }

  // From now on, events have nanoseconds of this clock instead of ticks.
  void set_clock(std::shared_ptr<const std::atomic<uint64_t>> clock_ns) {
    clock_ns_ = std::move(clock_ns);
    own_ = std::make_unique<OwnRing>();
    ring_ = SerialRing(&own_->header, own_->events.get());
    histograms_ = nullptr;
  }

  bool has_clock() const { return clock_ns_ != nullptr; }

  // Id of the communicator's definition; 0 if the recorder does not get its operations.
  uint32_t recorded_comm() const { return histograms_ ? comm_ : 0; }

  uint64_t begin(const Operation& op, uint8_t flags) {
    ++issued_;
    if (!ring_) return 0;
    const bool measures_cost = issued_ % kCostInterval == 0 && !clock_ns_;
    const uint64_t cost_begin = measures_cost ? ticks() : 0;
    Event& event = ring_.claim();
    event.t_end = 0;
    event.nbytes = op.nbytes;
    event.aux = static_cast<uint64_t>(static_cast<uint32_t>(op.tag));
    event.seq = static_cast<uint32_t>(op.seq);
    event.comm = comm_;
    event.peer = op.root;
    event.blocked_ns = 0;
    event.thread = 0;
    event.algorithm = op.program ? op.program->number : 0;
    event.kind = static_cast<uint8_t>(op.kind);
    event.backend = op.backend;
    event.dtype = static_cast<uint8_t>(op.dtype);
    event.reduce = reduces(op.kind) ? static_cast<uint8_t>(op.reduce) : kNoReduction;
    event.state = EventState::issued;
    event.flags = flags | (op.is_named ? kEventNamed : 0);
    event.layer = Layer::communication;
    event.weight_log2 = 0;
    event.t_begin = now();
    if (measures_cost) ring_.add_cost(event.t_begin - cost_begin);
    return ring_.publish(event);
  }

  // Does nothing if the event was overwritten meanwhile, like the functions below.
  void end(uint64_t index, EventState state) {
    Event* event = find(index);
    if (!event) return;
    event->t_end = now();
    SerialRing::set_state(*event, state);
    if (!histograms_) return;
    const HistogramKey key{event->comm,
                           event->peer,
                           event->algorithm,
                           event->kind,
                           event->backend,
                           event->layer,
                           size_class_of(event->nbytes)};
    histograms_->add(key, event->t_end - event->t_begin, event->nbytes, state == EventState::failed);
  }

  void set_in_place(uint64_t index) {
    if (Event* event = find(index)) event->flags |= kEventInPlace;
  }

  void set_aux(uint64_t index, uint64_t aux) {
    if (Event* event = find(index)) event->aux = aux;
  }

  void add_blocked(uint64_t index, int64_t ns) {
    if (Event* event = find(index))
      event->blocked_ns =
          static_cast<uint32_t>(std::min<int64_t>(event->blocked_ns + std::max<int64_t>(ns, 0), UINT32_MAX));
  }

  void mark(uint64_t index, EventState state) {
    if (Event* event = find(index)) SerialRing::set_state(*event, state);
  }

  uint64_t issued() const { return issued_; }

  // The latest events of this communicator, oldest first.
  std::vector<Event> snapshot(uint64_t most = kMostEvents) const {
    const Recorder& recorder = Recorder::instance();
    if (clock_ns_ || num_forks_ == recorder.num_forks()) return latest(ring_, ring_ ? ring_.next() : 0, most);
    return latest(recorder.operations_of_parent(), recorder.next_at_fork(), most);  // in a forked child
  }

 private:
  static constexpr uint8_t kNoReduction = 0xff;
  static constexpr uint64_t kOwnCapacity = 4096;

  static RingHeader with_capacity(uint64_t capacity) {
    RingHeader header{};
    header.capacity = capacity;
    return header;
  }

  // Pages of events that were never written take no memory.
  struct OwnRing {
    RingHeader header = with_capacity(kOwnCapacity);
    std::unique_ptr<Event[]> events = std::make_unique_for_overwrite<Event[]>(kOwnCapacity);
  };

  std::vector<Event> latest(const SerialRing& ring, uint64_t next, uint64_t most) const {
    std::vector<Event> copy;
    const uint64_t wanted = std::min({issued_, kMostEvents, most});
    const uint64_t held = ring ? std::min(next, ring.capacity()) : 0;
    for (uint64_t back = 1; back <= held && copy.size() < wanted; ++back)
      if (const Event* event = ring.find(next - back); event && event->comm == comm_) copy.push_back(*event);
    std::reverse(copy.begin(), copy.end());
    return copy;
  }

  uint64_t now() const { return clock_ns_ ? clock_ns_->load(std::memory_order_relaxed) : ticks(); }
  Event* find(uint64_t index) const { return ring_ ? ring_.find(index) : nullptr; }

  uint32_t comm_;
  uint32_t num_forks_ = Recorder::instance().num_forks();
  uint64_t issued_ = 0;
  SerialRing ring_;
  SerialHistograms* histograms_;
  std::unique_ptr<OwnRing> own_;
  std::shared_ptr<const std::atomic<uint64_t>> clock_ns_;
};

}  // namespace hocket
