#include "frames/carrier.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <iterator>
#include <system_error>
#include <thread>
#include <utility>

#include "core/clock.hpp"
#include "core/engine.hpp"
#include "core/error.hpp"
#include "frames/background.hpp"

namespace hocket {

namespace {

// Larger frames are carried in several messages: some MPI libraries count bytes with 31 bits.
constexpr uint64_t kMostBytes = 1 << 30;
constexpr int64_t kSpinNs = 20'000;
constexpr int64_t kShortestPauseNs = 5'000, kLongestPauseNs = 200'000;
// The peer of a connection that has ended may still send what it was told to send.
constexpr int64_t kAbandonedNs = 10'000'000'000;

}  // namespace

// The one thread of a process that drives lanes of carriers.
class CarrierThread {
 public:
  static CarrierThread& mine();

  // Throws Failure if there is no thread, or it was stopped.
  void add(const std::shared_ptr<Carriage>& carriage) {
    {
      const std::lock_guard lock(mutex_);
      if (is_stopped_) throw Failure(ErrorCode::aborted, "this process ends: nothing is carried any more");
      if (!is_running_) begin();
      added_.push_back(carriage);
    }
    wakes_.notify_one();
  }
  void expect_receipts(int64_t count) { num_unconfirmed_.fetch_add(count, std::memory_order_relaxed); }
  void stop(int64_t timeout_ns);

 private:
  void begin();
  void serve();
  bool drive(Carriage& carriage);
  void give_up(Carriage& carriage);
  void end(Carriage& carriage, std::string error);

  std::mutex mutex_;
  std::condition_variable wakes_, stopped_;
  std::vector<std::shared_ptr<Carriage>> added_;
  std::vector<std::shared_ptr<Carriage>> active_;  // used by the thread only
  std::vector<std::shared_ptr<FrameBlock>> lost_;  // that a library may write to until the process ends
  std::atomic<int64_t> num_unconfirmed_{0};        // relaxed: a number that decides only how long the thread looks
  int64_t stop_at_ns_ = DrivenLibrary::kNever;
  bool is_running_ = false, is_stopped_ = false;
};

CarrierThread& CarrierThread::mine() {
  // Never destroyed: the thread may be inside when the process ends. A forked child has none of its parent's threads.
  static std::atomic<CarrierThread*> thread{new CarrierThread};  // NOLINT
  static const int watched = pthread_atfork(nullptr, nullptr, [] {
    thread.store(new CarrierThread, std::memory_order_relaxed);  // NOLINT: the child has one thread, which sees it
  });
  (void)watched;
  return *thread.load(std::memory_order_relaxed);
}

void CarrierThread::begin() {
  const SignalsBlocked blocked;
  try {
    std::thread([this] { serve(); }).detach();
  } catch (const std::system_error& error) {
    throw Failure(ErrorCode::resource_exhausted, std::string("cannot start a thread: ") + error.what());
  }
  is_running_ = true;
}

void CarrierThread::serve() {
  pthread_setname_np(pthread_self(), "hocket-carrier");
  Engine& engine = Engine::instance();
  int64_t moved_ns = now_ns(), pause_ns = kShortestPauseNs;
  for (;;) {
    bool moved = false;
    {
      std::unique_lock lock(mutex_);
      wakes_.wait(lock, [this] {
        return !added_.empty() || !active_.empty() || stop_at_ns_ != DrivenLibrary::kNever ||
               num_unconfirmed_.load(std::memory_order_relaxed) > 0;
      });
      if (now_ns() > stop_at_ns_ || (stop_at_ns_ != DrivenLibrary::kNever && added_.empty() && active_.empty())) {
        is_stopped_ = true;
        stopped_.notify_all();
        return;
      }
      moved = !added_.empty();
      std::move(added_.begin(), added_.end(), std::back_inserter(active_));
      added_.clear();
    }
    {
      const std::lock_guard lock(engine.lock());
      for (const auto& each : active_) moved |= drive(*each);
      engine.drive_due_libraries(now_ns());
    }
    engine.run_pump();
    for (const auto& each : active_)
      if (each->has_ended() && each->at_end_) each->at_end_();
    std::erase_if(active_, [](const auto& each) { return each->has_ended(); });
    if (moved) {
      moved_ns = now_ns();
      pause_ns = kShortestPauseNs;
    } else if (now_ns() - moved_ns > kSpinNs) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(pause_ns));
      pause_ns = std::min(2 * pause_ns, kLongestPauseNs);
    }
  }
}

// True if something has moved.
bool CarrierThread::drive(Carriage& carriage) {
  using State = Carriage::Part::State;
  const size_t before = carriage.num_over_;
  try {
    if (const auto error = carriage.lane_->health()) throw Failure(*error);
    for (Carriage::Part& each : carriage.parts_) {
      if (each.state == State::over) continue;
      const State state = std::exchange(each.state, State::over);  // the lane has forgotten it if this throws
      const Progress progress =
          state == State::waiting ? carriage.lane_->post(each.operation) : carriage.lane_->test(each.operation);
      if (progress == Progress::done)
        ++carriage.num_over_;
      else
        each.state = State::posted;
    }
  } catch (const std::exception& error) {
    give_up(carriage);
    end(carriage, error.what());
    return true;
  }
  if (carriage.num_over_ == carriage.parts_.size()) {
    end(carriage, "");
    return true;
  }
  if (carriage.is_abandoned_.load(std::memory_order_relaxed)) {
    if (!carriage.abandoned_ns_) carriage.abandoned_ns_ = now_ns();
    if (now_ns() - *carriage.abandoned_ns_ > kAbandonedNs) {
      give_up(carriage);
      end(carriage, "the connection has ended");
    }
  }
  return carriage.num_over_ != before;
}

// Forgets what is in flight. Where the library may still write, the memory is kept.
void CarrierThread::give_up(Carriage& carriage) {
  bool is_certain = true;
  for (Carriage::Part& each : carriage.parts_)
    if (std::exchange(each.state, Carriage::Part::State::over) == Carriage::Part::State::posted)
      is_certain &= carriage.lane_->cancel(each.operation);
  carriage.may_be_read_ = !is_certain;
  if (!is_certain) std::move(carriage.blocks_.begin(), carriage.blocks_.end(), std::back_inserter(lost_));
}

void CarrierThread::end(Carriage& carriage, std::string error) {
  carriage.error_ = std::move(error);
  carriage.blocks_.clear();
  carriage.has_ended_.store(true, std::memory_order_release);
}

void CarrierThread::stop(int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  if (!is_running_) is_stopped_ = true;
  if (is_stopped_) return;
  stop_at_ns_ = now_ns() + timeout_ns;
  wakes_.notify_one();
  stopped_.wait_for(lock, std::chrono::nanoseconds(timeout_ns) + std::chrono::seconds(1),
                    [this] { return is_stopped_; });
}

std::string Carriage::error() const { return has_ended() ? error_ : ""; }

std::shared_ptr<Carriage> FrameCarrier::begin(OpKind kind, const std::vector<CarriedBytes>& frames,
                                              std::vector<std::shared_ptr<FrameBlock>> blocks,
                                              std::function<void()> at_end) {
  auto carriage = std::make_shared<Carriage>();
  carriage->lane_ = lane_;
  carriage->blocks_ = std::move(blocks);
  carriage->at_end_ = std::move(at_end);
  for (const CarriedBytes& each : frames)
    for (uint64_t at = 0; at < each.nbytes; at += kMostBytes) {
      Operation& operation = carriage->parts_.emplace_back().operation;
      operation.kind = kind;
      operation.root = peer_;
      operation.tag = kind == OpKind::send ? tag_out_ : tag_in_;
      operation.nbytes = std::min(kMostBytes, each.nbytes - at);
      operation.in = each.from ? each.from + at : nullptr;
      operation.out = each.to ? each.to + at : nullptr;
    }
  CarrierThread::mine().add(carriage);
  return carriage;
}

std::shared_ptr<Carriage> FrameCarrier::send(const std::vector<CarriedBytes>& frames, std::function<void()> at_end) {
  return begin(OpKind::send, frames, {}, std::move(at_end));
}

std::shared_ptr<Carriage> FrameCarrier::receive(const std::vector<CarriedBytes>& frames,
                                                std::vector<std::shared_ptr<FrameBlock>> blocks,
                                                std::function<void()> at_end) {
  return begin(OpKind::recv, frames, std::move(blocks), std::move(at_end));
}

void FrameCarrier::expect_receipt() { CarrierThread::mine().expect_receipts(1); }

void FrameCarrier::note_receipts(uint64_t count) {
  CarrierThread::mine().expect_receipts(-static_cast<int64_t>(count));
}

void FrameCarrier::begin_probe(const ProbeBytes& sent) {
  probe_sent_ = BlockPool::mine().take(kProbeBytes);
  probe_received_ = BlockPool::mine().take(kProbeBytes);
  std::memcpy(probe_sent_->data(), sent.data(), kProbeBytes);
  probe_in_ = receive({{nullptr, probe_received_->data(), kProbeBytes}}, {probe_received_}, nullptr);
  probe_out_ = begin(OpKind::send, {{probe_sent_->data(), nullptr, kProbeBytes}}, {probe_sent_}, nullptr);
}

std::optional<FrameCarrier::ProbeBytes> FrameCarrier::probe_found() const {
  if (!probe_in_ || !probe_in_->has_ended() || !probe_out_->has_ended()) return std::nullopt;
  ProbeBytes found{};
  if (probe_in_->error().empty() && probe_out_->error().empty())
    std::memcpy(found.data(), probe_received_->data(), kProbeBytes);
  return found;
}

void FrameCarrier::abandon_probe() {
  if (probe_in_) probe_in_->abandon();
  if (probe_out_) probe_out_->abandon();
}

void FrameCarrier::stop_all(int64_t timeout_ns) { CarrierThread::mine().stop(timeout_ns); }

}  // namespace hocket
