#include "core/communicator.hpp"

#include <algorithm>
#include <cstdio>

#include "core/engine.hpp"

namespace hocket {

namespace {

std::string at_site(const Operation& op) { return op.site ? std::string(" at ") + op.site : ""; }

// A Failure concerns only its own operation, except these codes, which also break the communicator.
bool is_fatal(const Error& error) {
  return error.code == ErrorCode::peer_failure || error.code == ErrorCode::aborted ||
         error.code == ErrorCode::comm_timeout;
}

// A library that cannot cancel may still use the arrays of a cancelled operation: never release them.
void never_release(const Work& work) {
  static auto* kept = new std::vector<std::shared_ptr<void>>;  // NOLINT
  kept->push_back(work.pins);
}

}  // namespace

Communicator::Communicator(int rank_, int size_, uint32_t id_, std::string label_)
    : rank(rank_),
      size(size_),
      id(id_),
      label(std::move(label_)),
      events_(label, rank_),
      send_seq_(static_cast<size_t>(size_)),
      recv_seq_(static_cast<size_t>(size_)) {}

void Communicator::add_backend(std::unique_ptr<Lane> collective, std::unique_ptr<Lane> point_to_point) {
  events_.define(DefinitionKind::backend, collective->backend(), num_backends());
  if (const uint32_t comm = events_.recorded_comm())
    for (Lane* lane : {collective.get(), point_to_point.get()}) lane->record_as(comm);
  queues_.push_back({std::move(collective), {}, 0});
  queues_.push_back({std::move(point_to_point), {}, 0});
}

std::optional<Carrier> Communicator::find_carrier(const Operation& op, const CarrierRequest& request) const {
  const auto is_candidate = [&](size_t backend) {
    return request.backend ? *request.backend == backend : allows(backend);
  };
  // Backends for devices come first. If none fits, device arrays are carried like host arrays: so all members choose
  // the same carrier, even if only some of them have their arrays on a device.
  if (op.device)
    for (size_t backend = 0; backend < num_backends(); ++backend)
      if (is_candidate(backend) && is_for_devices(backend, op) && !refuses(backend, op))
        return Carrier{static_cast<uint8_t>(backend), op.program};
  const auto can = [&](size_t backend, const Program* program) {
    Operation asked = op;
    asked.program = program;
    asked.device = nullptr;
    return is_candidate(backend) && !refuses(backend, asked);
  };
  if (const std::vector<Carrier>* ranking = choices_.ranking(op))
    for (const Carrier& carrier : *ranking) {
      const Program* program = request.keeps_program ? op.program : carrier.program;
      if (can(carrier.backend, program)) return Carrier{carrier.backend, program};
    }
  for (size_t backend = 0; backend < num_backends(); ++backend)
    if (can(backend, op.program)) return Carrier{static_cast<uint8_t>(backend), op.program};
  return std::nullopt;
}

Carrier Communicator::choose(const Operation& op, const CarrierRequest& request) const {
  if (const std::optional<Carrier> carrier = find_carrier(op, request)) return *carrier;
  if (request.backend)
    throw Failure(ErrorCode::unsupported_dtype, std::string(backend_name(*request.backend)) + " cannot carry " +
                                                    describe(op) + ": " + *refuses(*request.backend, op));
  std::string reasons;
  for (size_t backend = 0; backend < num_backends(); ++backend)
    if (allows(backend)) reasons += std::string("; ") + backend_name(backend) + ": " + *refuses(backend, op);
  throw Failure(ErrorCode::unsupported_dtype, "no backend of " + label + " can carry " + describe(op) + reasons);
}

uint16_t Communicator::add_program(OpKind kind, std::string name, int num_blocks, int num_slots, int ports,
                                   int group_size, std::vector<Program::Row> rows) {
  if (programs_.size() == UINT16_MAX)
    throw Failure(ErrorCode::resource_exhausted, label + " has " + std::to_string(UINT16_MAX) + " schedules already");
  const auto number = static_cast<uint16_t>(programs_.size() + 1);
  events_.define(DefinitionKind::algorithm, name, number);
  programs_.push_back(std::make_unique<const Program>(kind, std::move(name), number, size, num_blocks, num_slots, ports,
                                                      group_size, std::move(rows), events_.recorded_comm()));
  return number;
}

std::vector<std::string> Communicator::program_names() const {
  std::vector<std::string> names;
  for (const auto& program : programs_) names.push_back(program->name);
  return names;
}

uint64_t Communicator::next_seq(const Operation& op) {
  if (op.kind == OpKind::send) return ++send_seq_[static_cast<size_t>(op.root)];
  if (op.kind == OpKind::recv) return ++recv_seq_[static_cast<size_t>(op.root)];
  return ++collective_seq_;
}

void Communicator::issue(const WorkPtr& work, uint8_t event_flags) {
  work->op.seq = next_seq(work->op);
  work->event = events_.begin(work->op, event_flags);
  if (issue_log_ && !is_point_to_point(work->op.kind)) issue_log_(work->op);
  find_dependencies(*work);
  LaneQueue& queue = queue_of(work->op);
  queue.lane->note_issue(work->op);
  queue.works.push_back(work);
  progress(queue);
}

// Collectives that touch the same bytes stay in issue order also where different lanes carry them, or one lane carries
// several at once. Messages are left out: they have no place in the issue order that is the same on all ranks, so an
// edge to one could close a cycle between ranks (rule R5).
void Communicator::find_dependencies(Work& work) const {
  if (is_point_to_point(work.op.kind)) return;
  for (size_t i = 0; i < queues_.size(); i += 2) {
    const LaneQueue& queue = queues_[i];
    // A lane of depth 1 keeps the order by itself, unless the array was copied at issue and must be read again.
    if (i == 2u * work.op.backend && queue.lane->depth() == 1 && !work.read_in) continue;
    for (const WorkPtr& earlier : queue.works)
      if (earlier->conflicts_with(work)) work.deps.push_back(earlier);
  }
}

bool Communicator::try_short(Operation& op, FastPathResult& fast) {
  // About a microsecond: longer waits go through the engine, which drives all lanes and yields the processor.
  constexpr int kSpins = 64;
  constexpr int kPasses = 1024;  // limit if test() keeps moving data of other operations
  if (failure_) return false;
  // Every call must drive the operations in flight, and a collective may depend on them.
  LaneQueue& queue = queue_of(op);
  if (!idle() || !queue.lane->is_short(op)) return false;
  op.seq = next_seq(op);
  fast.event = events_.begin(op, 0);
  if (issue_log_ && !is_point_to_point(op.kind)) issue_log_(op);
  fast.posted = true;
  try {
    Progress state = queue.lane->post(op);
    for (int spins = 0, passes = 0; state != Progress::done && spins < kSpins && passes < kPasses; ++passes) {
      state = queue.lane->test(op);
      spins += state == Progress::waiting;
    }
    if (state != Progress::done) return false;
  } catch (const Failure& failure) {
    fast.error = failure.error();
    return false;
  } catch (const std::exception& exception) {
    fast.error = fault_of(op, exception);
    return false;
  }
  events_.end(fast.event, EventState::completed);
  return true;
}

void Communicator::adopt(const WorkPtr& work, const FastPathResult& fast) {
  work->event = fast.event;
  if (fast.error) {
    finish(*work, *fast.error);
    if (is_fatal(*fast.error) && !failure_) fail(*fast.error);
    return;
  }
  if (failure_) {  // set since try_short(): another thread drove the lanes, or closed the communicator
    if (!closed) lane(work->op).cancel(work->op);
    finish(*work, *failure_);
    return;
  }
  LaneQueue& queue = queue_of(work->op);
  work->state.store(Work::State::posted, std::memory_order_relaxed);
  queue.works.push_back(work);
  queue.num_posted = 1;
}

bool Communicator::progress() {
  bool moved = false;
  for (LaneQueue& queue : queues_)
    if (!queue.works.empty()) moved |= progress(queue);
  return moved;
}

bool Communicator::progress(LaneQueue& queue) {
  bool moved = false;
  for (size_t i = 0; i < queue.works.size();) {
    Work& work = *queue.works[i];
    std::optional<Error> error;
    try {
      Progress state;
      if (i < queue.num_posted) {
        state = queue.lane->test(work.op);
      } else {
        if (queue.num_posted >= queue.lane->depth()) break;
        const bool had_deps = !work.deps.empty();
        if (had_deps) {
          if (!std::all_of(work.deps.begin(), work.deps.end(), [](const WorkPtr& dep) { return dep->finished(); }))
            break;
          work.deps.clear();
        }
        ++queue.num_posted;
        if (had_deps && work.read_in) work.read_in();
        moved = true;
        events_.mark(work.event, EventState::started);
        state = queue.lane->post(work.op);
        work.state.store(Work::State::posted, std::memory_order_relaxed);
        if (state != Progress::done) state = queue.lane->test(work.op);
      }
      moved |= state != Progress::waiting;
      if (state != Progress::done) {
        ++i;
        continue;
      }
    } catch (const Failure& failure) {
      error = failure.error();
    } catch (const std::exception& exception) {
      error = fault_of(work.op, exception);
    }
    const WorkPtr over = std::move(queue.works[i]);
    queue.works.erase(queue.works.begin() + static_cast<std::ptrdiff_t>(i));
    --queue.num_posted;
    moved = true;
    // A lane over several libraries may have failed in one library and cancelled the other library's part.
    if (error && is_fatal(*error) && queue.lane->keeps_arrays()) never_release(*over);
    if (!error) {
      finish(*over);
      continue;
    }
    finish(*over, *error);
    if (!is_fatal(*error)) continue;
    fail(*error);
    break;
  }
  return moved;
}

bool Communicator::idle() const {
  return std::all_of(queues_.begin(), queues_.end(), [](const LaneQueue& queue) { return queue.works.empty(); });
}

bool Communicator::idle_but_background() const {
  return std::all_of(queues_.begin(), queues_.end(), [](const LaneQueue& queue) {
    return std::all_of(queue.works.begin(), queue.works.end(), [](const WorkPtr& work) { return work->is_background; });
  });
}

void Communicator::add_in_flight(InFlight& all) const {
  for (const LaneQueue& queue : queues_)
    if (queue.num_posted > 0) all.add(queue.lane->polling(), queue.lane->has_threads());
}

void Communicator::finish(Work& work) {
  work.deps.clear();
  if (work.write_back) {
    try {
      work.write_back();
    } catch (const Failure& failure) {  // of a device; the operation itself is complete
      finish(work, failure.error());
      return;
    }
  }
  if (work.op.is_in_place) events_.set_in_place(work.event);
  if (work.op.program) events_.set_aux(work.event, work.op.sent_nbytes);
  events_.end(work.event, EventState::completed);
  num_finished_.fetch_add(1, std::memory_order_release);
  work.state.store(Work::State::done, std::memory_order_release);
  Engine::instance().note_finished(work);
}

void Communicator::finish(Work& work, Error error) {
  work.deps.clear();
  if (work.is_async && !work.is_background && !unseen_failure_) {
    unseen_failure_ = error;
    unseen_failure_->message = "the program did not wait for " + describe(work.op) + ", number " +
                               std::to_string(work.op.seq) + at_site(work.op) + ", which failed: " + error.message;
  }
  work.error = std::move(error);
  events_.end(work.event, EventState::failed);
  work.state.store(Work::State::failed, std::memory_order_release);
  Engine::instance().note_finished(work);
}

void Communicator::check_health() {
  if (failure_) return;
  for (LaneQueue& queue : queues_) {
    std::optional<Error> error = queue.lane->health();
    if (!error) continue;
    // All that the peers published before they died is visible now: complete the operations that need no more.
    while (progress()) {
    }
    // A member that left may have completed its part of all operations, which is visible only now.
    if (!failure_) error = queue.lane->health();
    if (!failure_ && error) fail(*error);
    return;
  }
}

void Communicator::fail(const Error& error) {
  if (!failure_) failure_ = error;
  if (failure_->code == ErrorCode::comm_timeout) failure_->code = ErrorCode::aborted;
  for (LaneQueue& queue : queues_) {
    cancel_all(queue, error);
    queue.lane->abandon(error);
  }
}

void Communicator::drop() {
  for (LaneQueue& queue : queues_) cancel_all(queue, closed_error());
}

void Communicator::cancel_all(LaneQueue& queue, const Error& error) {
  for (size_t i = 0; i < queue.works.size(); ++i) {
    if (i < queue.num_posted) {
      queue.lane->cancel(queue.works[i]->op);
      if (queue.lane->keeps_arrays()) never_release(*queue.works[i]);
    }
    finish(*queue.works[i], error);
  }
  queue.works.clear();
  queue.num_posted = 0;
}

void Communicator::close() {
  closed = true;
  failure_ = closed_error();
  queues_.clear();
  issue_log_ = nullptr;
}

Error Communicator::closed_error() const {
  return {ErrorCode::invalid_state, label + " is finalized: operations are no longer possible"};
}

Communicator::LaneQueue* Communicator::queue_of(const Work& work, size_t* position) {
  for (LaneQueue& queue : queues_)
    for (size_t i = 0; i < queue.works.size(); ++i)
      if (queue.works[i].get() == &work) {
        *position = i;
        return &queue;
      }
  return nullptr;
}

bool Communicator::expects_from_self(int tag) const {
  int expected = 0;
  for (const LaneQueue& queue : queues_)
    for (const WorkPtr& work : queue.works) {
      const Operation& op = work->op;
      if (!is_point_to_point(op.kind) || op.root != rank || op.tag != tag) continue;
      expected += op.kind == OpKind::recv ? 1 : -1;
    }
  return expected > 0;
}

// std::bad_alloc, or a fault of the lane.
Error Communicator::fault_of(const Operation& op, const std::exception& exception) const {
  return {ErrorCode::aborted,
          "rank " + std::to_string(rank) + " of " + label + " failed in " + describe(op) + ", number " +
              std::to_string(op.seq) + at_site(op) + ": " + exception.what(),
          {}};
}

std::vector<int> Communicator::missing(const Work& work) {
  size_t position;
  const LaneQueue* queue = queue_of(work, &position);
  if (!queue || queue->num_posted == 0) return {};
  // An operation that is still queued waits for the same ranks as the first operation of its lane.
  return queue->lane->missing(position < queue->num_posted ? work.op : queue->works.front()->op);
}

std::string Communicator::waiting_text(const Work& work) {
  const std::vector<int> ranks = missing(work);
  std::string text = "rank " + std::to_string(rank) + " of " + label + " waits in " + describe(work.op) + ", number " +
                     std::to_string(work.op.seq) + at_site(work.op);
  if (!ranks.empty()) text += ", for " + ranks_text(ranks);
  size_t position;
  if (LaneQueue* queue = queue_of(work, &position)) text += queue->lane->hint(work.op);
  if (work.op.kind == OpKind::recv && work.op.root == rank)
    text += "; to receive from itself, a rank must call isend first";
  return text;
}

void Communicator::time_out(Work& work, double timeout_s) {
  size_t position;
  LaneQueue* queue = queue_of(work, &position);
  if (!queue) return;  // it has finished meanwhile
  const Error error{ErrorCode::comm_timeout,
                    waiting_text(work) + ": timed out after its timeout of " + seconds_text(timeout_s), missing(work)};
  const bool posted = position < queue->num_posted;
  const bool independent = queue->lane->depth() > 1;
  if (independent && posted) {
    const bool unnoticed = queue->lane->cancel(work.op);
    const WorkPtr over = queue->works[position];
    if (queue->lane->keeps_arrays()) never_release(*over);
    queue->works.erase(queue->works.begin() + static_cast<std::ptrdiff_t>(position));
    --queue->num_posted;
    finish(*over, error);
    if (unnoticed) return;
  }
  fail(error);
}

void Communicator::expire(int64_t now) {
  if (events_.has_clock()) return;  // with a virtual clock, the waiting threads check the deadlines
  for (LaneQueue& queue : queues_)
    for (const WorkPtr& work : queue.works) {
      const double age_s = static_cast<double>(now - work->issued_ns) * 1e-9;
      if (work->waiters.load(std::memory_order_relaxed) > 0 || age_s < work->timeout_s) continue;
      time_out(*work, work->timeout_s);
      return;  // the queue has changed; the next tick checks the rest
    }
}

}  // namespace hocket
