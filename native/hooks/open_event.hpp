// An operation of another library: its event while it is in flight, and exact totals when it ends.
#pragma once

#include <cstdint>

#include "core/clock.hpp"
#include "recorder/recorder.hpp"

namespace hocket::hooks {

inline constexpr uint8_t kNoReduction = 0xff;  // of an event whose operation does not reduce, or by an unknown function

struct OpenEvent {
  RingId ring = RingId::foreign;
  bool is_begun = false;  // totals count it, also if its ring had no place for it
  uint64_t index = SharedRing::kNone;
  Event event{};
};

// Adds the event to a ring as it is.
OpenEvent begin_event(const Event& event, RingId ring = RingId::foreign);
// It has ended, with what the event's other fields say now.
void end_event(const OpenEvent& open, EventState state, uint64_t now = ticks());

}  // namespace hocket::hooks
