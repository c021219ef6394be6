#include "core/split_lane.hpp"

#include <algorithm>

#include "core/units.hpp"

namespace hocket {

namespace {

// Operations that move or reduce one array as a whole. Others have blocks of several ranks, which would be cut each.
constexpr uint32_t kSplittable = kinds(OpKind::all_reduce, OpKind::reduce, OpKind::scan, OpKind::broadcast);

bool is_splittable(OpKind kind) { return is_in(kind, kSplittable); }

}  // namespace

uint64_t Shares::first_nbytes(const Operation& op) const {
  constexpr double kHalf = 0.5;
  double share = kHalf;
  if (op.shares) {
    const auto& ranges = versions_[op.shares - 1];
    if (const auto found = ranges.find(is_point_to_point(op.kind) ? OpKind::send : op.kind); found != ranges.end())
      for (const auto& [most_nbytes, each] : found->second) {
        share = each;
        if (op.nbytes <= most_nbytes) break;
      }
  }
  const uint64_t unit = std::max<uint64_t>(kLineBytes, itemsize(op.dtype));
  const auto first = static_cast<uint64_t>(static_cast<double>(op.nbytes) * share + 0.5);
  return first >= op.nbytes ? op.nbytes : first / unit * unit;
}

Progress SplitLane::post(Operation& op) {
  const uint64_t first = shares_->first_nbytes(op);
  Flight& flight = flights_.emplace_back();
  op.token = &flight;
  log_.start(op, comm_);
  const uint64_t offsets[] = {0, first}, sizes[] = {first, op.nbytes - first};
  for (size_t i = 0; i < 2; ++i) {
    Part& part = flight.parts[i];
    part.op = op;
    part.op.token = nullptr;
    part.op.nbytes = sizes[i];
    if (op.in) part.op.in = op.in + offsets[i];
    if (op.out) part.op.out = op.out + offsets[i];
    part.is_done = !sizes[i] && (i == 1 || op.nbytes);  // the first library carries empty operations
    if (part.is_done) continue;
    part.lane = lanes_[i].get();
    part.transfer = log_.begin(TransferKind::part, static_cast<uint32_t>(i), op.root, sizes[i]);
  }
  Progress state = Progress::waiting;
  for (Part& part : flight.parts)
    if (part.lane) state = std::max(state, call(op, part, &Lane::post));
  if (!flight.is_done()) return Progress::moved;
  forget(op);
  return Progress::done;
}

Progress SplitLane::test(Operation& op) {
  Flight& flight = flight_of(op);
  Progress state = Progress::waiting;
  for (Part& part : flight.parts)
    if (!part.is_done) state = std::max(state, call(op, part, &Lane::test));
  if (!flight.is_done()) return std::min(state, Progress::moved);
  forget(op);
  return Progress::done;
}

Progress SplitLane::call(Operation& op, Part& part, Progress (Lane::*call)(Operation&)) {
  try {
    const Progress state = (part.lane->*call)(part.op);
    part.is_done = state == Progress::done;
    if (part.is_done) log_.end(part.transfer);
    return state;
  } catch (const Failure& failure) {
    part.lane = nullptr;
    part.is_done = true;
    log_.end(part.transfer, EventState::failed);
    cancel_parts(flight_of(op));
    forget(op);
    Error error = failure.error();
    // Other members may have completed the part that is cancelled here: the ranks' libraries would stay out of step.
    if (error.code != ErrorCode::peer_failure && error.code != ErrorCode::comm_timeout) error.code = ErrorCode::aborted;
    throw Failure(error);
  }
}

bool SplitLane::cancel_parts(Flight& flight) noexcept {
  bool is_unnoticed = true;
  for (Part& part : flight.parts) {
    log_.end(part.transfer, EventState::failed);
    if (part.lane && !part.is_done && part.op.token)
      is_unnoticed &= part.lane->cancel(part.op);
    else if (part.is_done)
      is_unnoticed = false;
  }
  return is_unnoticed;
}

void SplitLane::forget(Operation& op) {
  flights_.remove_if([&](const Flight& each) { return &each == op.token; });
  op.token = nullptr;
}

std::vector<int> SplitLane::missing(const Operation& op) const {
  for (const Part& part : flight_of(op).parts)
    if (!part.is_done) return part.lane->missing(part.op);
  return {};
}

bool SplitLane::cancel(Operation& op) noexcept {
  const bool is_unnoticed = cancel_parts(flight_of(op));
  forget(op);
  return is_unnoticed;
}

std::optional<Error> SplitLane::health() {
  for (const auto& lane : lanes_)
    if (std::optional<Error> error = lane->health()) return error;
  return std::nullopt;
}

void SplitLane::abandon(const Error& error) noexcept {
  for (const auto& lane : lanes_) lane->abandon(error);
}

std::optional<std::string> SplitLane::refuses(const Operation& op) const {
  if (!is_splittable(op.kind)) return std::string(name(op.kind)) + " cannot be split";
  for (const auto& lane : lanes_)
    if (std::optional<std::string> reason = lane->refuses(op)) return std::string(lane->backend()) + ": " + *reason;
  return std::nullopt;
}

}  // namespace hocket
