// The transfers that carry one operation at a time out: an event each, of which the recorder may leave some out, and
// exact totals by peer. Used under the progress lock.
//
// Transfers between virtual ranks are not recorded: they have no ticks, and the simulator knows their times already.
#pragma once

#include <cstdint>

#include "core/operation.hpp"
#include "recorder/recorder.hpp"

namespace hocket {

struct Transfer {
  bool is_recorded = false;
  HistogramKey key = {};
  uint64_t nbytes = 0;
  uint64_t t_begin = 0;
  uint64_t event = SharedRing::kNone;
};

class TransferLog {
 public:
  // The transfers that begin from now on are of `op`. comm: id of its communicator's definition in the recorder; 0:
  // they are not recorded.
  void start(const Operation& op, uint32_t comm);
  bool is_on() const { return static_cast<bool>(ring_); }

  // number: of the step in the rank's program, or of the part. The event is in flight until end().
  Transfer begin(TransferKind kind, uint32_t number, int32_t peer, uint64_t nbytes) {
    return is_on() ? add(kind, number, peer, nbytes) : Transfer{};
  }
  // A copy or a reduction in this rank's memory. Nothing is recorded for 0 bytes.
  Transfer begin_work(TransferKind kind, uint32_t number, uint64_t nbytes) {
    return is_on() && nbytes != 0 ? add(kind, number, -1, nbytes) : Transfer{};
  }
  // Transfers of earlier operations may end, too, and those that have ended may again, without effect.
  void end(Transfer& transfer, EventState state = EventState::completed) {
    if (transfer.is_recorded) finish(transfer, state);
  }

 private:
  Transfer add(TransferKind kind, uint32_t number, int32_t peer, uint64_t nbytes);
  void finish(Transfer& transfer, EventState state);

  static constexpr uint8_t kNoReduction = 0xff;

  SharedRing ring_;
  uint8_t reduction_ = kNoReduction;
  SerialHistograms totals_;
  Event event_ = {};  // what all transfers of the operation have in common
};

}  // namespace hocket
