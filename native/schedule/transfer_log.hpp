// The transfers of the operation that a schedule executes: an event each, of which the recorder may leave some out, and
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
  TransferKind kind = TransferKind::copy;
  int32_t peer = -1;
  uint64_t nbytes = 0;
  uint64_t t_begin = 0;
  uint64_t event = SharedRing::kNone;
};

class TransferLog {
 public:
  // The transfers that follow are of `op`, which has a program.
  void start(const Operation& op);
  bool is_on() const { return static_cast<bool>(ring_); }

  // step: its number in the rank's program. The event is in flight until end().
  Transfer begin_message(TransferKind kind, uint32_t step, int32_t peer, uint64_t nbytes) {
    return is_on() ? add(kind, step, peer, nbytes) : Transfer{};
  }
  // Work on this rank's memory; without bytes it is none.
  Transfer begin_work(TransferKind kind, uint32_t step, uint64_t nbytes) {
    return is_on() && nbytes != 0 ? add(kind, step, -1, nbytes) : Transfer{};
  }
  void end(const Transfer& transfer, EventState state = EventState::completed) {
    if (transfer.is_recorded) finish(transfer, state);
  }

 private:
  Transfer add(TransferKind kind, uint32_t step, int32_t peer, uint64_t nbytes);
  void finish(const Transfer& transfer, EventState state);

  static constexpr uint8_t kNoReduction = 0xff;

  SharedRing ring_;
  uint8_t reduction_ = kNoReduction;
  SerialHistograms totals_;
  Event event_ = {};  // what all transfers of the operation have in common
};

}  // namespace hocket
