#include "frames/stream.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "frames/device_loan.hpp"
#include "frames/wire.hpp"
#include "shm/peer_memory.hpp"

namespace hocket {

namespace {

// Messages up to this size travel in one piece: a copy is cheaper than a list of parts.
constexpr uint64_t kJoinedBytes = 16 << 10;
// Copies up to this size take less time than waking a thread for them would.
constexpr uint64_t kCopiedAtOnce = 1 << 20;
constexpr uint64_t kCopiedAmongOthers = 128 << 10;
// Memory of a message beside its frames, roughly: also messages without any are held up.
constexpr uint64_t kRecordBytes = 256;
// One call reads so many times at most, so that one stream does not keep the loop from others.
constexpr int kMostReads = 16;

// Copies the header, the descriptors and maybe all frames into one piece of memory.
SentBytes joined(const RecordHeader& header, const std::vector<FrameDescriptor>& descriptors,
                 const std::vector<SentBytes>& inside, uint64_t nbytes) {
  std::shared_ptr<std::byte[]> piece(new std::byte[nbytes]);
  std::byte* to = piece.get();
  const auto append = [&](const void* from, uint64_t count) {
    if (count) std::memcpy(to, from, count);
    to += count;
  };
  append(&header, sizeof(header));
  append(descriptors.data(), descriptors.size() * sizeof(FrameDescriptor));
  for (const SentBytes& each : inside) append(each.data, each.nbytes);
  const std::byte* data = piece.get();
  return {data, nbytes, std::shared_ptr<void>(piece, piece.get())};
}

SentBytes header_of_segment(uint32_t number, const std::shared_ptr<SegmentMemory>& memory) {
  const RecordHeader header{RecordKind::segment, {}, number, memory->nbytes()};
  SentBytes bytes = joined(header, {}, {}, sizeof(header));
  bytes.fd = memory->fd();
  // The descriptor is closed when it was sent.
  bytes.owner = std::shared_ptr<void>(bytes.owner.get(), [memory, kept = bytes.owner](void*) { memory->close_fd(); });
  return bytes;
}

}  // namespace

FrameStream::FrameStream(FrameStreamOptions options)
    : options_(std::move(options)),
      incoming_(options_.fd, options_.lender, options_.most_nbytes, options_.is_local, options_.carrier != nullptr,
                options_.takes_loans),
      outgoing_(options_.fd),
      waker_(options_.waker) {
  options_.waker = nullptr;
}

void FrameStream::send(std::vector<SentBytes> frames) {
  std::vector<FrameDescriptor> descriptors;
  descriptors.reserve(frames.size());
  std::vector<SentBytes> inside, news;
  std::vector<CopyPiece> pieces;
  Prepared message{{}, nullptr, {}, 0};
  Lent lent{{}, 0, false, false, nullptr};
  uint64_t nbytes = frames.size() * sizeof(FrameDescriptor), total = 0, shared = 0, on_device = 0;
  for (SentBytes& each : frames) {
    if (each.is_loan) {
      descriptors.push_back({kLoanBytes, 0, FramePlace::device, 0});
      nbytes += kLoanBytes;
      on_device += loan_from(each.data).nbytes;
      lent.is_device = true;
      lent.frames.push_back({nullptr, 0, each.owner});
      inside.push_back(std::move(each));
      continue;
    }
    total += each.nbytes;
    const bool is_large = each.nbytes && each.nbytes >= options_.large_nbytes;
    const auto address = reinterpret_cast<uintptr_t>(each.data);
    const auto lease = is_large && options_.is_local ? segments_.lease(each.nbytes) : std::nullopt;
    if (lease) {
      if (lease->news) news.push_back(header_of_segment(lease->number, lease->news));
      descriptors.push_back({each.nbytes, 0, FramePlace::segment, lease->number});
      pieces.push_back({address, lease->data, each.nbytes});
      shared += each.nbytes;
      message.sources.push_back(std::move(each));
    } else if (is_large && options_.carrier) {
      descriptors.push_back({each.nbytes, 0, FramePlace::carried, 0});
      lent.nbytes += each.nbytes;
      lent.is_carried = true;
      lent.frames.push_back(std::move(each));
    } else if (is_large && options_.lends && may_read_range(getpid(), address, each.nbytes)) {
      // Memory of devices cannot be read so; it goes through the stream.
      descriptors.push_back({each.nbytes, address, FramePlace::lent, 0});
      lent.nbytes += each.nbytes;
      lent.frames.push_back(std::move(each));
    } else {
      descriptors.push_back({each.nbytes, 0, FramePlace::stream, 0});
      nbytes += each.nbytes;
      inside.push_back(std::move(each));
    }
  }
  add_dropped();  // before a new segment that has the number of a dropped one
  const RecordHeader header{RecordKind::message, {}, static_cast<uint32_t>(frames.size()), nbytes};
  const uint64_t in_stream = sizeof(header) + nbytes;
  message.parts = std::move(news);
  if (in_stream <= kJoinedBytes) {
    message.parts.push_back(joined(header, descriptors, inside, in_stream));
  } else {
    const uint64_t head = sizeof(header) + descriptors.size() * sizeof(FrameDescriptor);
    message.parts.push_back(joined(header, descriptors, {}, head));
    for (SentBytes& each : inside) message.parts.push_back(std::move(each));
  }
  ++counts_.num_sent;
  counts_.nbytes_sent += total + on_device;
  counts_.nbytes_device_out += on_device;
  (lent.is_carried ? counts_.nbytes_carried_out : counts_.nbytes_lent) += lent.nbytes;
  counts_.nbytes_shared += shared;
  lent.nbytes += shared + on_device;
  if (lent.is_device && !lent.nbytes) lent.nbytes = 1;  // an end must not close before the peer has taken it
  if (lent.nbytes) {
    lent_now_ += lent.nbytes;
    ++num_lent_;
    lent_.push_back(std::move(lent));
  }
  for (const SentBytes& each : message.parts) message.nbytes += each.nbytes;
  message.nbytes += shared;
  std::shared_ptr<FrameCopy> copy;
  if (shared) message.copy = copy = std::make_shared<FrameCopy>(0, std::move(pieces));
  prepared_nbytes_ += message.nbytes;
  prepared_.push_back(std::move(message));  // before the copy begins: it keeps what is copied
  if (copy && shared <= kCopiedAtOnce)
    copy->run();
  else if (copy)
    FrameCopy::begin(copy, wakes());
  send_prepared();
}

// Tells the event loop from another thread that something has ended.
std::function<void()> FrameStream::wakes() const {
  return [waker = waker_, number = options_.number] { waker->wake(number); };
}

// Sends the messages that are ready, in their order.
void FrameStream::send_prepared() {
  while (!prepared_.empty() && (!prepared_.front().copy || prepared_.front().copy->has_ended())) {
    Prepared& message = prepared_.front();
    prepared_nbytes_ -= message.nbytes;
    for (SentBytes& each : message.parts) outgoing_.add(std::move(each));
    prepared_.pop_front();
  }
  add_receipt();
  outgoing_.flush();
}

bool FrameStream::spin(int64_t spin_ns) const {
  const int64_t begin_ns = now_ns();
  std::byte byte;
  do {
    if (recv(options_.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || (errno != EAGAIN && errno != EINTR)) return true;
  } while (now_ns() - begin_ns < spin_ns);
  return false;
}

bool FrameStream::receive() {
  try {
    return receive_records();
  } catch (const Failure& failure) {
    if (failure.error().code == ErrorCode::aborted) incoming_.stop();  // what comes after a lie is not read
    throw;
  }
}

bool FrameStream::receive_records() {
  bool is_open = true;
  std::exception_ptr error;  // what came before it counts
  try {
    for (int i = 0; i < kMostReads && records_.empty(); ++i) {  // the loop calls again if there is more
      const IncomingRecords::State state = incoming_.read(records_);
      is_open = state != IncomingRecords::State::ended;
      if (state != IncomingRecords::State::open) break;
    }
  } catch (...) {
    error = std::current_exception();
  }
  std::vector<ReceivedRecord> records = std::exchange(records_, {});  // also if one of them is refused
  for (ReceivedRecord& each : records) {
    if (each.header.kind == RecordKind::taken) {
      take_receipt(each.header.nbytes);
      continue;
    }
    if (each.header.kind == RecordKind::ready) {
      take_ready(each.header.nbytes);
      continue;
    }
    if (each.header.kind == RecordKind::returned) {
      segments_.give_back(each.header.number);
      continue;
    }
    ++counts_.num_received;
    counts_.nbytes_borrowed += each.lent_nbytes;
    counts_.nbytes_mapped += each.shared_nbytes;
    counts_.nbytes_carried_in += each.carried_nbytes;
    uint64_t nbytes = 0, on_device = 0;
    for (const ReceivedFrame& frame : each.frames) {
      if (frame.is_loan)
        on_device += loan_from(frame.block->data() + frame.offset).nbytes;
      else
        nbytes += frame.nbytes;
    }
    nbytes += on_device;
    counts_.nbytes_device_in += on_device;
    counts_.nbytes_received += nbytes;
    const bool is_whole = each.outside_nbytes() + each.num_loans == 0;
    unread_ += each.header.nbytes + kRecordBytes;
    arrived_.push_back({std::move(each), nullptr, nullptr, is_whole, nbytes});
  }
  if (error) std::rethrow_exception(error);
  pull_next();
  return is_open;
}

// The peer has copied all messages with lent frames up to a number.
void FrameStream::take_receipt(uint64_t count) {
  if (count < num_returned_ || count > num_lent_)
    refuse_record("a receipt is for " + std::to_string(count) + " messages of " + std::to_string(num_lent_));
  for (; num_returned_ < count; ++num_returned_) {
    Lent first = std::move(lent_.front());
    lent_.pop_front();
    lent_now_ -= first.nbytes;
    if (first.is_carried && !first.carriage) refuse_record("a receipt is for frames that were not sent");
    drop_lent(std::move(first));
  }
}

// The peer waits for the carried frames of all messages up to a number.
void FrameStream::take_ready(uint64_t count) {
  if (count < num_ready_ || count > num_lent_)
    refuse_record("it is ready for " + std::to_string(count) + " messages of " + std::to_string(num_lent_));
  for (; num_ready_ < count; ++num_ready_) {
    if (num_ready_ < num_returned_) continue;
    Lent& lent = lent_[num_ready_ - num_returned_];
    if (!lent.is_carried) continue;
    keep_until_sent({});
    std::vector<CarriedBytes> parts;
    for (const SentBytes& each : lent.frames) parts.push_back({each.data, nullptr, each.nbytes});
    options_.carrier->expect_receipt();  // first: the thread must not sleep before it is known
    try {
      lent.carriage = options_.carrier->send(parts, wakes());
    } catch (...) {
      options_.carrier->note_receipts(1);
      throw;
    }
  }
}

// Frees what the peer has taken, once nothing reads it any more.
void FrameStream::drop_lent(Lent lent) {
  if (!lent.carriage) return;
  options_.carrier->note_receipts(1);
  if (!lent.carriage->is_free()) finishing_.push_back(std::move(lent));
}

// Keeps what a carrier still reads after the connection has ended.
void FrameStream::keep_until_sent(std::vector<Lent> left) {
  // Used like the streams, by one thread at a time: frames of Python are freed under its lock. Never destroyed.
  static auto* const kept = new std::vector<Lent>;  // NOLINT
  std::move(left.begin(), left.end(), std::back_inserter(*kept));
  // What has ended is freed last: to free frames of Python can run any code, also this function.
  const auto over =
      std::stable_partition(kept->begin(), kept->end(), [](const Lent& each) { return !each.carriage->is_free(); });
  const std::vector<Lent> ended(std::make_move_iterator(over), std::make_move_iterator(kept->end()));
  kept->erase(over, kept->end());
}

void FrameStream::collect() {
  std::erase_if(finishing_, [](const Lent& each) { return each.carriage->is_free(); });
  for (const Lent& each : lent_)
    if (each.carriage && each.carriage->has_ended() && !each.carriage->error().empty())
      throw Failure(ErrorCode::peer_failure, "a frame was not sent: " + each.carriage->error());
  if (!prepared_.empty()) send_prepared();
  count_whole();
  pull_next();
}

std::optional<std::vector<ReceivedFrame>> FrameStream::take() {
  if (!has_message()) return std::nullopt;
  ahead_ -= arrived_.front().record.outside_nbytes();
  unread_ -= arrived_.front().record.header.nbytes + kRecordBytes;
  taken_since_ = arrived_.front().since;
  taken_nbytes_ = arrived_.front().nbytes;
  has_loans_ = arrived_.front().record.num_loans > 0;
  std::vector<ReceivedFrame> frames = std::move(arrived_.front().record.frames);
  arrived_.pop_front();
  --next_pull_;
  --num_whole_;
  return frames;
}

void FrameStream::end_loans() {
  if (!has_loans_) return;
  has_loans_ = false;
  if (has_ended_ || is_closed_by_peer()) throw Failure(ErrorCode::peer_failure, "the peer has closed the stream");
  ++num_taken_;
  count_whole();
}

void FrameStream::pull_all() {
  pulls_all_ = true;
  pull_next();
}

// Takes over the frames of the messages that have come, as far as the reader is not too far behind.
void FrameStream::pull_next() {
  for (; next_pull_ < arrived_.size(); ++next_pull_) {
    Arrived& message = arrived_[next_pull_];
    if (message.is_whole) continue;
    if (has_ended_ && message.needs_peer()) break;
    if (ahead_ && ahead_ + message.record.outside_nbytes() > options_.high_water && !pulls_all_) break;
    begin_pull(message);
  }
  if (next_pull_ == arrived_.size()) pulls_all_ = false;
  count_whole();
}

// Whether the reader has yet to copy frames of the last message that is here: receipts are given in order.
bool FrameStream::waits_for_reader() const {
  return num_whole_ ? arrived_[num_whole_ - 1].record.num_loans > 0 : has_loans_;
}

// Takes note of the copies that have ended, in the order of the messages.
void FrameStream::count_whole() {
  for (; num_whole_ < next_pull_ && !waits_for_reader(); ++num_whole_) {
    Arrived& message = arrived_[num_whole_];
    if (!message.is_whole) {
      if ((has_ended_ && message.needs_peer()) || !message.is_pulled()) return;
      end_pull(message);
    }
    message.since = ticks();
  }
}

void FrameStream::begin_pull(Arrived& message) {
  ++num_pulled_;
  if (message.record.carried_nbytes) {
    begin_carriage(message);
    return;
  }
  std::vector<CopyPiece> pieces;
  for (const ReceivedFrame& each : message.record.frames)
    if (each.address) pieces.push_back({each.address, each.block->data() + each.offset, each.nbytes});
  message.copy = std::make_shared<FrameCopy>(options_.lender, std::move(pieces));
  ahead_ += message.record.outside_nbytes();
  // If others wait, the reader has something to do while threads copy.
  const uint64_t at_once = arrived_.size() > 1 ? kCopiedAmongOthers : kCopiedAtOnce;
  if (message.record.lent_nbytes <= at_once) {
    message.copy->run();
    return;
  }
  // The blocks live as long as the copy, also if this stream does not.
  std::vector<std::shared_ptr<FrameBlock>> blocks;
  for (const ReceivedFrame& each : message.record.frames)
    if (each.address) blocks.push_back(each.block);
  FrameCopy::begin(message.copy, [blocks = std::move(blocks), wake = wakes()] { wake(); });
}

void FrameStream::begin_carriage(Arrived& message) {
  std::vector<CarriedBytes> parts;
  std::vector<std::shared_ptr<FrameBlock>> blocks;
  for (const ReceivedFrame& each : message.record.frames) {
    if (!each.is_carried) continue;
    parts.push_back({nullptr, each.block->data() + each.offset, each.nbytes});
    blocks.push_back(each.block);
  }
  message.carriage = options_.carrier->receive(parts, std::move(blocks), wakes());
  ahead_ += message.record.outside_nbytes();
  add_header({RecordKind::ready, {}, 0, num_pulled_});
  outgoing_.flush();  // the peer waits for it
}

void FrameStream::end_pull(Arrived& message) {
  if (message.needs_peer()) {
    const std::string error = message.copy ? message.copy->error() : message.carriage->error();
    if (is_closed_by_peer()) throw Failure(ErrorCode::peer_failure, "the peer has closed the stream");
    if (!error.empty()) throw Failure(ErrorCode::peer_failure, error);
  }
  message.copy = nullptr;
  message.carriage = nullptr;
  message.is_whole = true;
  if (!message.record.num_loans) ++num_taken_;
}

void FrameStream::flush() {
  add_receipt();
  outgoing_.flush();
}

void FrameStream::add_receipt() {
  if (num_taken_ > num_told_) {
    num_told_ = num_taken_;
    add_header({RecordKind::taken, {}, 0, num_taken_});
  }
  if (!incoming_.segments().has_returns()) return;
  for (const uint32_t each : incoming_.segments().to_return()) add_header({RecordKind::returned, {}, each, 0});
}

void FrameStream::add_dropped() {
  for (const uint32_t each : segments_.to_forget()) add_header({RecordKind::dropped, {}, each, 0});
}

void FrameStream::add_header(const RecordHeader& header) { outgoing_.add(joined(header, {}, {}, sizeof(header))); }

void FrameStream::trim(int64_t since_ns) {
  segments_.trim(since_ns);
  add_dropped();
  outgoing_.flush();
}

void FrameStream::wait_for_copies() const {
  // The sources belong to others, who may change or free them after this.
  for (const Prepared& each : prepared_)
    while (each.copy && !each.copy->has_ended() && process_ == getpid())
      std::this_thread::sleep_for(std::chrono::microseconds(50));
}

void FrameStream::end() {
  wait_for_copies();
  has_ended_ = true;
  prepared_.clear();
  prepared_nbytes_ = 0;
  for (Arrived& each : arrived_)
    if (each.carriage) each.carriage->abandon();
  if (num_whole_ && waits_for_reader()) arrived_[--num_whole_].is_whole = false;
  for (Lent& each : lent_) drop_lent(std::move(each));
  for (const Lent& each : finishing_) each.carriage->abandon();
  keep_until_sent(std::move(finishing_));
  finishing_.clear();
  lent_.clear();
  lent_now_ = 0;
  outgoing_.clear();
  if (process_ == getpid()) segments_.clear();  // in a forked child, the parent's threads may write to them
  incoming_.end();
  waker_ = nullptr;
}

bool FrameStream::is_closed_by_peer() const {
  pollfd state{options_.fd, POLLRDHUP, 0};
  return poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

}  // namespace hocket
