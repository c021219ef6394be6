#include "shm/region.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "core/process.hpp"

namespace hocket {

// state: 0 no abort, 1 being written, 2 written (release).
struct Region::Abort {
  static constexpr int kMaxRanks = 64;
  std::atomic<uint32_t> state;
  int32_t code;
  int32_t num_ranks;
  int32_t ranks[kMaxRanks];
  char text[1024];
};

namespace {

// Hands out consecutive parts of a region.
class Layout {
 public:
  template <typename T>
  uint64_t take(size_t count, uint64_t alignment = alignof(T)) {
    const uint64_t begin = round_up(used_, alignment);
    used_ = begin + count * sizeof(T);
    return begin;
  }
  uint64_t used() const { return used_; }

 private:
  uint64_t used_ = 0;
};

struct Offsets {
  uint64_t lines, flags, details, issued, eager, controls, stages, schedule_controls, pipes, end;
  Offsets(size_t n, size_t num_lanes, uint64_t abort_bytes) {
    Layout layout;
    layout.take<std::byte>(abort_bytes);
    lines = layout.take<HeaderLine>(num_lanes * 2 * n);
    flags = layout.take<RankFlags>(n);
    details = layout.take<Detail>(num_lanes * n, kLineBytes);
    issued = layout.take<Issued>(num_lanes > 1 ? n : 0, kLineBytes);
    eager = layout.take<std::byte>(2 * n * kEagerBytes, kLineBytes);
    controls = layout.take<PipeControl>(n * n);
    stages = layout.take<std::byte>(n * 2 * area_bytes_for(static_cast<int>(n)), kPageBytes);
    schedule_controls = layout.take<PipeControl>(n * n, kPageBytes);
    pipes = layout.take<std::byte>(
        kNumChannels * n * n * (ring_bytes_for(static_cast<int>(n)) + bulk_slots_for(static_cast<int>(n)) * kBulkBytes),
        kPageBytes);
    end = layout.used();
  }
};

std::string peer_text(const Host& host, const std::vector<int>& members, int peer, bool left) {
  return "rank " + std::to_string(peer) + " (pid " + std::to_string(host.pid(members[static_cast<size_t>(peer)])) +
         ") " + (left ? "left the communicator before taking part" : "died");
}

}  // namespace

std::shared_ptr<Region> Region::open(std::shared_ptr<Host> host, std::vector<int> members, int rank, uint64_t key,
                                     std::vector<std::string> backends, double timeout_s, WaitHooks& hooks) {
  const int size = static_cast<int>(members.size());
  std::optional<Host::Range> range;
  std::vector<int> missing{0};  // of the new communicator; its rank 0 makes the range
  const auto waiting_text = [&] {
    return "rank " + std::to_string(rank) + " waits for " + ranks_text(missing) + " of a new communicator";
  };
  // Without a range, no member has arrived. If a member is gone, the members will never be complete, and rank 0, which
  // may have seen that already, makes no range for them.
  const auto find_gone = [&] {
    return std::find_if(members.begin(), members.end(),
                        [&](int each) { return host->life(each) != Host::Life::alive; });
  };
  auto gone_member = members.end();
  const auto find_range_or_gone = [&] {
    host->check_peers();  // before find_range(): if rank 0 has left, its range is visible by then
    gone_member = find_gone();
    range = host->find_range(key);
    return range || gone_member != members.end();
  };
  const double begin_s = static_cast<double>(now_ns()) * 1e-9;
  if (rank == 0) {
    const Offsets offsets(members.size(), backends.size(), sizeof(Abort));
    range = host->make_range(key, offsets.end, offsets.stages, size);
  } else if (!Engine::instance().wait_for(find_range_or_gone, timeout_s, hooks, waiting_text)) {
    throw Failure(ErrorCode::comm_timeout,
                  "rank " + std::to_string(rank) + " timed out waiting for a new communicator: its rank 0 (rank " +
                      std::to_string(members[0]) + " of the host) never arrived",
                  {0});
  }
  if (!range) {
    const auto peer = static_cast<int>(gone_member - members.begin());
    const bool has_left = host->life(*gone_member) == Host::Life::finalized;
    throw Failure(ErrorCode::peer_failure, peer_text(*host, members, peer, has_left), {peer});
  }
  auto mapping = std::make_shared<Mapping>(host->segment(), range->offset, range->nbytes);
  auto region =
      std::make_shared<Region>(host, std::move(members), rank, key, *range, std::move(mapping), std::move(backends));
  // Arrival: every member sets `staged` to 1 before any operation; epochs of staging start from there.
  region->flags(rank).staged.value.store(1, std::memory_order_release);
  std::vector<int> gone;
  const auto all_here_or_gone = [&] {
    host->check_peers();
    gone = region->gone_before_arriving(missing);
    return missing.empty() || !gone.empty();
  };
  const double left_s = std::max(0.0, timeout_s - (static_cast<double>(now_ns()) * 1e-9 - begin_s));
  if (!Engine::instance().wait_for(all_here_or_gone, left_s, hooks, waiting_text))
    throw Failure(ErrorCode::comm_timeout,
                  "rank " + std::to_string(rank) + " timed out waiting for a new communicator: " + ranks_text(missing) +
                      " of it never arrived",
                  missing);
  if (!missing.empty()) throw Failure(region->gone_error(gone));
  return region;
}

Region::Region(std::shared_ptr<Host> host, std::vector<int> members, int rank_, uint64_t key, Host::Range range,
               std::shared_ptr<Mapping> mapping, std::vector<std::string> backends)
    : rank(rank_),
      size(static_cast<int>(members.size())),
      num_lanes(backends.size()),
      area_bytes(area_bytes_for(size)),
      chunk_bytes(chunk_bytes_for(size)),
      num_bulk_slots(bulk_slots_for(size)),
      ring_bytes(ring_bytes_for(size)),
      ring_message_bytes(ring_message_bytes_for(size)),
      host_(std::move(host)),
      members_(std::move(members)),
      key_(key),
      offset_(range.offset),
      size_(members_.size()),
      backends_(std::move(backends)),
      mapping_(std::move(mapping)),
      has_pipe_(kNumChannels * size_) {
  const Offsets offsets(size_, num_lanes, sizeof(Abort));
  std::byte* base = mapping_->data();
  abort_ = reinterpret_cast<Abort*>(base);
  lines_ = reinterpret_cast<HeaderLine*>(base + offsets.lines);
  flags_ = reinterpret_cast<RankFlags*>(base + offsets.flags);
  details_ = reinterpret_cast<Detail*>(base + offsets.details);
  issued_ = reinterpret_cast<Issued*>(base + offsets.issued);
  eager_ = base + offsets.eager;
  controls_ = {reinterpret_cast<PipeControl*>(base + offsets.controls),
               reinterpret_cast<PipeControl*>(base + offsets.schedule_controls)};
  stages_ = base + offsets.stages;
  pipes_ = base + offsets.pipes;
  for (int member : members_) doorbells_.push_back(&host_->doorbell(member));
}

Region::~Region() {
  if (g_forked_child.load(std::memory_order_relaxed)) return;  // the parent has not left
  flags(rank).left.value.store(1, std::memory_order_release);
  ring_peers();
  host_->leave_range(key_);
}

void Region::allocate(const std::byte* begin, size_t nbytes) const {
  allocate_pages(host_->segment(), offset_ + static_cast<uint64_t>(begin - mapping_->data()), nbytes);
}

void Region::need_stage() {
  if (has_stage_) return;
  allocate(stage(rank), 2 * area_bytes);
  has_stage_ = true;
}

void Region::need_controls(Channel channel) {
  allocate(reinterpret_cast<const std::byte*>(&control(channel, 0, 0)), size_ * size_ * sizeof(PipeControl));
}

void Region::need_pipe(Channel channel, int receiver) {
  const size_t index = static_cast<size_t>(channel) * size_ + static_cast<size_t>(receiver);
  if (has_pipe_[index]) return;
  allocate(pipe(channel, rank, receiver), pipe_bytes());
  has_pipe_[index] = true;
}

std::vector<int> Region::dead() const {
  std::vector<int> ranks;
  for (int peer = 0; peer < size; ++peer)
    if (host_->life(members_[peer]) == Host::Life::dead) ranks.push_back(peer);
  return ranks;
}

std::vector<int> Region::gone_before_arriving(std::vector<int>& missing) const {
  const std::vector<int> have_left = left();
  std::vector<int> gone = dead();
  missing.clear();
  for (int peer = 0; peer < size; ++peer)
    if (flags(peer).staged.value.load(std::memory_order_acquire) == 0) missing.push_back(peer);
  std::set_intersection(have_left.begin(), have_left.end(), missing.begin(), missing.end(), std::back_inserter(gone));
  return gone;
}

bool Region::has_left(int peer) const {
  return flags(peer).left.value.load(std::memory_order_acquire) || host_->life(members_[peer]) == Host::Life::finalized;
}

Error Region::gone_error(const std::vector<int>& ranks) const {
  if (std::optional<Error> abort = find_abort()) return *abort;
  std::string text;
  for (int peer : ranks) {
    if (!text.empty()) text += "; ";
    text += peer_text(*host_, members_, peer, has_left(peer));
  }
  return {ErrorCode::peer_failure, text, ranks};
}

std::vector<int> Region::left() const {
  std::vector<int> ranks;
  for (int peer = 0; peer < size; ++peer)
    if (has_left(peer)) ranks.push_back(peer);
  return ranks;
}

std::optional<Error> Region::failure_of(const std::vector<int>& left, const std::vector<int>& awaited) const {
  std::vector<int> gone;
  std::set_intersection(left.begin(), left.end(), awaited.begin(), awaited.end(), std::back_inserter(gone));
  if (gone.empty()) return std::nullopt;
  return gone_error(gone);
}

void Region::note_issued(const Operation& op) const {
  Issued::Entry& entry = issued_[rank].entries[op.seq % Issued::kCapacity];
  // A reader that sees one of the new fields (release) also sees this zero.
  entry.seq.store(0, std::memory_order_relaxed);
  entry.kind.store(static_cast<uint64_t>(op.kind) | static_cast<uint64_t>(op.dtype) << 8 |
                       static_cast<uint64_t>(op.reduce) << 16 | static_cast<uint64_t>(op.is_of_object) << 23 |
                       static_cast<uint64_t>(op.backend) << 24 |
                       static_cast<uint64_t>(static_cast<uint32_t>(op.root)) << 32,
                   std::memory_order_release);
  entry.nbytes.store(op.nbytes, std::memory_order_release);
  entry.fingerprint.store(fingerprint(op), std::memory_order_release);
  entry.seq.store(op.seq, std::memory_order_release);
}

std::optional<std::pair<Operation, uint64_t>> Region::issued(int peer, uint64_t seq) const {
  const Issued::Entry& entry = issued_[peer].entries[seq % Issued::kCapacity];
  if (entry.seq.load(std::memory_order_acquire) != seq) return std::nullopt;
  const uint64_t kind = entry.kind.load(std::memory_order_acquire);
  const uint64_t nbytes = entry.nbytes.load(std::memory_order_acquire);
  const uint64_t its_fingerprint = entry.fingerprint.load(std::memory_order_acquire);
  if (entry.seq.load(std::memory_order_relaxed) != seq) return std::nullopt;  // overwritten meanwhile
  const Operation op{.kind = static_cast<OpKind>(kind & 0xff),
                     .dtype = static_cast<DType>(kind >> 8 & 0xff),
                     .reduce = static_cast<ReduceOp>(kind >> 16 & 0x7f),
                     .backend = static_cast<uint8_t>(kind >> 24 & 0xff),
                     .root = static_cast<int32_t>(kind >> 32),
                     .seq = seq,
                     .nbytes = nbytes,
                     .is_of_object = (kind >> 23 & 1) != 0};
  return std::pair(op, its_fingerprint);
}

void Region::post_abort(const Error& error) const {
  uint32_t none = 0;
  if (!abort_->state.compare_exchange_strong(none, 1, std::memory_order_acq_rel)) return;
  abort_->code = static_cast<int32_t>(error.code);
  abort_->num_ranks = std::min(static_cast<int>(error.ranks.size()), Abort::kMaxRanks);
  std::copy_n(error.ranks.begin(), abort_->num_ranks, abort_->ranks);
  std::snprintf(abort_->text, sizeof abort_->text, "%s", error.message.c_str());
  abort_->state.store(2, std::memory_order_release);
  ring_peers();
}

std::optional<Error> Region::find_abort() const {
  if (abort_->state.load(std::memory_order_acquire) != 2) return std::nullopt;
  Error error{static_cast<ErrorCode>(abort_->code), abort_->text,
              std::vector<int>(abort_->ranks, abort_->ranks + abort_->num_ranks)};
  // The awaited rank has not timed out itself, so it gets another code.
  const bool it_is_me = std::find(error.ranks.begin(), error.ranks.end(), rank) != error.ranks.end();
  if (error.code == ErrorCode::comm_timeout && it_is_me) error.code = ErrorCode::aborted;
  return error;
}

std::optional<Error> Region::check_peers() const {
  host_->check_peers();
  if (std::optional<Error> abort = find_abort()) return abort;
  const std::vector<int> ranks = dead();
  if (ranks.empty()) return std::nullopt;
  return gone_error(ranks);
}

}  // namespace hocket
