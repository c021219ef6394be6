#include "schedule/transfer_log.hpp"

#include "core/clock.hpp"

namespace hocket {

void TransferLog::start(const Operation& op) {
  ring_ = {};
  if (op.program->comm == 0) return;
  Recorder& recorder = Recorder::instance();
  ring_ = recorder.ring(RingId::transfers);
  totals_ = recorder.histograms();
  reduction_ = reduces(op.kind) ? static_cast<uint8_t>(op.reduce) : kNoReduction;
  event_ = {};
  event_.seq = static_cast<uint32_t>(op.seq);
  event_.comm = op.program->comm;
  event_.algorithm = op.program->number;
  event_.backend = op.backend;
  event_.dtype = static_cast<uint8_t>(op.dtype);
  event_.state = EventState::started;
  event_.layer = Layer::transfer;
}

Transfer TransferLog::add(TransferKind kind, uint32_t step, int32_t peer, uint64_t nbytes) {
  Transfer transfer{true, kind, peer, nbytes, ticks(), SharedRing::kNone};
  Event event = event_;
  event.t_begin = transfer.t_begin;
  event.nbytes = nbytes;
  event.aux = step;
  event.peer = peer;
  event.kind = static_cast<uint8_t>(kind);
  event.reduce = kind == TransferKind::reduce ? reduction_ : kNoReduction;
  transfer.event = ring_.add(event);
  return transfer;
}

void TransferLog::finish(const Transfer& transfer, EventState state) {
  const uint64_t now = ticks();
  ring_.update(transfer.event, [now, state](Event& event) {
    event.t_end = now;
    event.state = state;
  });
  const HistogramKey key{event_.comm,
                         transfer.peer,
                         event_.algorithm,
                         static_cast<uint8_t>(transfer.kind),
                         event_.backend,
                         Layer::transfer,
                         size_class_of(transfer.nbytes)};
  totals_.add_transfer(key, now - transfer.t_begin, transfer.nbytes, state == EventState::failed);
}

}  // namespace hocket
