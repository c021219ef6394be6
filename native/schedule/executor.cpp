#include "schedule/executor.hpp"

#include <algorithm>

#include "core/copy.hpp"

namespace hocket {

namespace {
// Two sends and two receives keep a pipeline full; with more, ranks that are out of step can continue.
constexpr size_t kLeastWindow = 4;
// Limit of one drive(), so that other lanes run too.
constexpr int kMostPasses = 8;
constexpr uint64_t kMostSpareBytes = 4 << 20;

TransferKind kind_of(std::span<const Segment> segments) {
  const bool reduces = std::any_of(segments.begin(), segments.end(), [](const Segment& each) { return each.reduces; });
  return reduces ? TransferKind::reduce : TransferKind::copy;
}

}  // namespace

void Executor::start(const Operation& op) {
  op_ = op;
  root_ = has_root(op.kind) ? op.root : 0;
  const Program& program = *op.program;
  program_ = &program.of(program.place_of(rank_, root_));
  window_ = std::max(kLeastWindow, static_cast<size_t>(program.ports));
  // An average is a sum that is divided at the end.
  kernel_ =
      reduces(op.kind) ? reduce_kernel(op.dtype, op.reduce == ReduceOp::avg ? ReduceOp::sum : op.reduce) : nullptr;
  for (std::vector<uint32_t>* list : {&sends_, &receives_, &moves_}) list->clear();
  for (uint32_t number = 0; number < program_->steps.size(); ++number) {
    const Step::Kind kind = program_->steps[number].kind;
    (kind == Step::Kind::send ? sends_ : kind == Step::Kind::receive ? receives_ : moves_).push_back(number);
  }
  next_send_ = next_receive_ = next_move_ = 0;
  done_.assign(program_->steps.size(), false);
  num_done_ = 0;
  sent_nbytes_ = 0;
  log_.start(op_, program.comm);
  slots_.emplace(op_, program, rank_);
  slots_->copy_own_input();
}

Progress Executor::drive() {
  bool moved = false;
  try {
    for (int pass = 0; pass < kMostPasses; ++pass) {
      bool any = test(sending_);
      any |= test(receiving_);
      any |= write_arrived();
      any |= make_moves();
      any |= post_sends();
      any |= post_receives();
      if (!any) break;
      moved = true;
    }
  } catch (...) {
    cancel();
    throw;
  }
  if (num_done_ < program_->steps.size()) return moved ? Progress::moved : Progress::waiting;
  finish();
  return Progress::done;
}

bool Executor::may_run(const Step& step) const {
  for (uint32_t i = 0; i < step.num_waits; ++i)
    if (!done_[program_->waits[step.first_wait + i]]) return false;
  return true;
}

uint64_t Executor::nbytes_of(const Step& step) const {
  uint64_t nbytes = 0;
  for (const Segment& segment : segments_of(step)) nbytes += slots_->nbytes(segment.block);
  return nbytes;
}

uint64_t Executor::moved_nbytes(const Step& move) const {
  uint64_t nbytes = 0;
  const std::span<const Segment> pairs = segments_of(move);
  for (size_t i = 0; i < pairs.size(); i += 2) nbytes += slots_->nbytes(pairs[i].block);
  return nbytes;
}

void Executor::set_done(uint32_t step) {
  done_[step] = true;
  ++num_done_;
}

bool Executor::test(Flights& flights) {
  bool moved = false;
  for (size_t i = 0; i < flights.size();) {
    Flight& flight = flights[i];
    if (flight.has_arrived) {
      ++i;
      continue;
    }
    const Progress progress = messages_->test(flight.op);
    moved |= progress != Progress::waiting;
    if (progress != Progress::done) {
      ++i;
      continue;
    }
    log_.end(flight.transfer);
    if (flight.op.kind == OpKind::recv && flight.buffer) {
      flight.has_arrived = true;
      ++i;
      continue;
    }
    set_done(flight.step);
    return_buffer(flight.buffer);
    flights.erase(flights.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return moved;
}

bool Executor::write_arrived() {
  bool moved = false;
  for (size_t i = 0; i < receiving_.size();) {
    Flight& flight = receiving_[i];
    if (!flight.has_arrived || !may_run(program_->steps[flight.step])) {
      ++i;
      continue;
    }
    write(flight.step, flight.buffer->memory.get(), flight.op.nbytes);
    set_done(flight.step);
    return_buffer(flight.buffer);
    receiving_.erase(receiving_.begin() + static_cast<std::ptrdiff_t>(i));
    moved = true;
  }
  return moved;
}

// Copies the blocks that a step sends to contiguous memory.
void Executor::pack(uint32_t number, std::byte* to, uint64_t nbytes) {
  Transfer transfer = log_.begin_work(TransferKind::copy, number, nbytes);
  for (const Segment& segment : segments_of(program_->steps[number])) {
    copy_bytes(to, slots_->content(segment), slots_->nbytes(segment.block));
    to += slots_->nbytes(segment.block);
  }
  log_.end(transfer);
}

// Writes the blocks that a step received to their slots.
void Executor::write(uint32_t number, const std::byte* from, uint64_t nbytes) {
  const Step& step = program_->steps[number];
  const bool is_from_lower = peer_of(step) < rank_;
  Transfer transfer = log_.begin_work(kind_of(segments_of(step)), number, nbytes);
  for (const Segment& segment : segments_of(step)) {
    write_segment(segment, from, is_from_lower);
    from += slots_->nbytes(segment.block);
  }
  log_.end(transfer);
}

void Executor::write_segment(const Segment& segment, const std::byte* from, bool is_from_lower) {
  const uint64_t nbytes = slots_->nbytes(segment.block);
  std::byte* const home = slots_->home(segment);
  if (!nbytes) return;
  if (!segment.reduces) {
    copy_into_array(home, from, nbytes, op_.nbytes);
    return;
  }
  // Reduce in rank order, which matters for values that are equal but not identical (+0.0 and -0.0).
  const std::byte* sources[] = {slots_->content(segment), from};
  if (is_from_lower) std::swap(sources[0], sources[1]);
  kernel_(home, nullptr, sources, 2, nbytes / itemsize(op_.dtype));
}

const std::byte* Executor::contiguous(const Step& step) const {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  for (const Segment& segment : segments_of(step)) {
    const uint64_t nbytes = slots_->nbytes(segment.block);
    if (!nbytes) continue;
    const std::byte* place = step.kind == Step::Kind::send ? slots_->content(segment) : slots_->home(segment);
    if (begin && place != end) return nullptr;
    if (!begin) begin = place;
    end = place + nbytes;
  }
  return begin;
}

bool Executor::post_sends() {
  bool moved = false;
  while (next_send_ < sends_.size() && sending_.size() < window_) {
    const uint32_t number = sends_[next_send_];
    const Step& step = program_->steps[number];
    if (!may_run(step)) break;
    ++next_send_;
    moved = true;
    const uint64_t nbytes = nbytes_of(step);
    if (!nbytes && op_.kind != OpKind::barrier) {
      set_done(number);
      continue;
    }
    if (const std::byte* place = contiguous(step); place || !nbytes) {
      post(sending_, number, OpKind::send, const_cast<std::byte*>(place), std::nullopt, nbytes);  // NOLINT: only read
      continue;
    }
    Buffer buffer = take_buffer(nbytes);
    std::byte* const memory = buffer.memory.get();
    pack(number, memory, nbytes);
    post(sending_, number, OpKind::send, memory, std::move(buffer), nbytes);
  }
  return moved;
}

bool Executor::post_receives() {
  bool moved = false;
  while (next_receive_ < receives_.size() && receiving_.size() < window_) {
    const uint32_t number = receives_[next_receive_];
    const Step& step = program_->steps[number];
    const uint64_t nbytes = nbytes_of(step);
    const bool is_empty = !nbytes && op_.kind != OpKind::barrier;
    const std::byte* place = step.is_direct ? contiguous(step) : nullptr;
    if ((place || is_empty) && !may_run(step)) break;
    ++next_receive_;
    moved = true;
    if (is_empty) {
      set_done(number);
    } else if (place) {
      std::byte* const home = const_cast<std::byte*>(place);  // NOLINT: it is this rank's memory
      post(receiving_, number, OpKind::recv, home, std::nullopt, nbytes);
    } else {
      Buffer buffer = take_buffer(nbytes);
      std::byte* const memory = buffer.memory.get();
      post(receiving_, number, OpKind::recv, memory, std::move(buffer), nbytes);
    }
  }
  return moved;
}

bool Executor::make_moves() {
  bool moved = false;
  for (; next_move_ < moves_.size(); ++next_move_) {
    const Step& step = program_->steps[moves_[next_move_]];
    if (!may_run(step)) break;
    const std::span<const Segment> pairs = segments_of(step);
    const uint64_t nbytes = log_.is_on() ? moved_nbytes(step) : 0;
    Transfer transfer = log_.begin_work(kind_of(pairs), moves_[next_move_], nbytes);
    Buffer buffer;
    if (!step.is_direct) {
      buffer = take_buffer(nbytes_of(step));
      std::byte* to = buffer.memory.get();
      for (size_t i = 0; i < pairs.size(); i += 2) {
        copy_bytes(to, slots_->content(pairs[i]), slots_->nbytes(pairs[i].block));
        to += slots_->nbytes(pairs[i].block);
      }
    }
    const std::byte* from = buffer.memory.get();
    for (size_t i = 0; i < pairs.size(); i += 2) {
      write_segment(pairs[i + 1], step.is_direct ? slots_->content(pairs[i]) : from, false);
      if (from) from += slots_->nbytes(pairs[i].block);
    }
    log_.end(transfer);
    set_done(moves_[next_move_]);
    moved = true;
  }
  return moved;
}

void Executor::post(Flights& flights, uint32_t number, OpKind kind, std::byte* memory, std::optional<Buffer> buffer,
                    uint64_t nbytes) {
  const Step& step = program_->steps[number];
  Flight& flight = flights.emplace_back();
  flight.step = number;
  flight.buffer = std::move(buffer);
  flight.op = {.kind = kind,
               .dtype = DType::uint8,
               .root = peer_of(step),
               .tag = tag_,
               .seq = op_.seq,
               .nbytes = nbytes,
               .in = kind == OpKind::send ? memory : nullptr,
               .out = kind == OpKind::recv ? memory : nullptr,
               .site = op_.site,
               .shares = op_.shares};
  if (kind == OpKind::send) sent_nbytes_ += nbytes;
  const TransferKind as = kind == OpKind::send ? TransferKind::send : TransferKind::receive;
  flight.transfer = log_.begin(as, number, flight.op.root, nbytes);
  try {
    messages_->post(flight.op);
  } catch (...) {
    log_.end(flight.transfer, EventState::failed);
    flights.pop_back();
    throw;
  }
}

void Executor::finish() {
  const bool has_result = op_.kind != OpKind::reduce || op_.root == rank_;
  if (reduces(op_.kind) && op_.reduce == ReduceOp::avg && has_result)
    divide(op_.dtype, op_.out, op_.blocks ? op_.blocks->out_nbytes : op_.nbytes, size_);
  slots_.reset();
}

std::vector<int> Executor::missing() const {
  std::vector<int> ranks;
  for (const Flights* flights : {&receiving_, &sending_})
    for (const Flight& flight : *flights)
      if (!flight.has_arrived && std::find(ranks.begin(), ranks.end(), flight.op.root) == ranks.end())
        ranks.push_back(flight.op.root);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

void Executor::cancel() noexcept {
  bool is_in_use = false;  // whether a library that cannot cancel still uses the arrays
  for (Flights* flights : {&sending_, &receiving_}) {
    for (Flight& flight : *flights) {
      log_.end(flight.transfer, EventState::failed);
      if (flight.has_arrived || !flight.op.token) continue;
      if (messages_->cancel(flight.op) || !messages_->keeps_arrays()) continue;
      is_in_use = true;
      if (flight.buffer) static_cast<void>(flight.buffer->memory.release());
    }
    flights->clear();
  }
  if (is_in_use) slots_->leak_scratch();
  slots_.reset();
}

Executor::Buffer Executor::take_buffer(uint64_t nbytes) {
  const auto found =
      std::find_if(spare_.begin(), spare_.end(), [&](const Buffer& buffer) { return buffer.nbytes >= nbytes; });
  if (found == spare_.end()) return {std::make_unique_for_overwrite<std::byte[]>(nbytes), nbytes};
  Buffer buffer = std::move(*found);
  spare_.erase(found);
  return buffer;
}

void Executor::return_buffer(std::optional<Buffer>& buffer) {
  if (!buffer) return;
  uint64_t held = buffer->nbytes;
  for (const Buffer& each : spare_) held += each.nbytes;
  if (held <= kMostSpareBytes) spare_.push_back(std::move(*buffer));
  buffer.reset();
}

}  // namespace hocket
