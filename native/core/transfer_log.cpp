#include "core/transfer_log.hpp"

#include "core/clock.hpp"

namespace hocket {

void TransferLog::start(const Operation& op, uint32_t comm) {
  ring_ = {};
  if (comm == 0) return;
  Recorder& recorder = Recorder::instance();
  ring_ = recorder.ring(RingId::transfers);
  totals_ = recorder.histograms();
  reduction_ = reduces(op.kind) ? static_cast<uint8_t>(op.reduce) : kNoReduction;
  event_ = {};
  event_.seq = static_cast<uint32_t>(op.seq);
  event_.comm = comm;
  event_.algorithm = op.program ? op.program->number : 0;
  event_.backend = op.backend;
  event_.dtype = static_cast<uint8_t>(op.dtype);
  event_.state = EventState::started;
  event_.layer = Layer::transfer;
}

Transfer TransferLog::add(TransferKind kind, uint32_t number, int32_t peer, uint64_t nbytes) {
  Event event = event_;
  event.nbytes = nbytes;
  event.aux = number;
  event.peer = peer;
  event.kind = static_cast<uint8_t>(kind);
  event.reduce = kind == TransferKind::reduce ? reduction_ : kNoReduction;
  event.t_begin = ticks();
  const HistogramKey key{event.comm,    peer,        event.algorithm,      event.kind,
                         event.backend, event.layer, size_class_of(nbytes)};
  return {true, key, nbytes, event.t_begin, ring_.add(event)};
}

void TransferLog::finish(Transfer& transfer, EventState state) {
  const uint64_t now = ticks();
  transfer.is_recorded = false;
  ring_.update(transfer.event, [now, state](Event& event) {
    event.t_end = now;
    event.state = state;
  });
  totals_.add_transfer(transfer.key, now - transfer.t_begin, transfer.nbytes, state == EventState::failed);
}

}  // namespace hocket
