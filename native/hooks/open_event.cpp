#include "hooks/open_event.hpp"

#include <algorithm>

namespace hocket::hooks {

OpenEvent begin_event(const Event& event, RingId ring) {
  SharedRing events = Recorder::instance().ring(ring);
  if (!events) return {};
  return {.ring = ring, .is_begun = true, .index = events.add(event), .event = event};
}

void end_event(const OpenEvent& open, EventState state, uint64_t now) {
  if (!open.is_begun) return;
  const Event& event = open.event;
  Recorder& recorder = Recorder::instance();
  SharedRing events = recorder.ring(open.ring);
  events.update(open.index, [&](Event& slot) {
    slot.t_end = now;
    slot.nbytes = event.nbytes;
    slot.aux = event.aux;
    slot.peer = event.peer;
    slot.flags = event.flags;
    slot.state = state;
  });
  const HistogramKey key{
      .comm = event.comm,
      // Of failed I/O it is an error number.
      .peer = event.layer == Layer::io ? 0 : event.peer,
      .algorithm = event.algorithm,
      .kind = event.kind,
      .backend = event.backend,
      .layer = event.layer,
      .size_class = size_class_of(event.nbytes),
  };
  constexpr uint32_t kOthers = 0;
  recorder.shared_histograms().add(key, kOthers, now - std::min(now, event.t_begin), event.nbytes,
                                   state == EventState::failed);
}

}  // namespace hocket::hooks
