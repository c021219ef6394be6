// Messages of frames between two ends: every byte arrives by every way that frames go, in order; and what a peer could
// send that is no message is refused before memory is taken for it.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "frames/device_loan.hpp"
#include "frames/stream.hpp"

namespace {

using namespace hocket;
using Bytes = std::vector<std::byte>;
constexpr uint64_t kMost = 1 << 30;

// A library between two processes, in one: rank 0 and rank 1 exchange messages. It copies when both have posted.
class ToyLane final : public Lane {
 public:
  struct Shared {
    std::deque<Operation*> sends[2], receives[2];  // by the rank that has posted them; used by one thread
    std::atomic<bool> fails{false}, is_stuck{false};
    std::atomic<int> num_cancelled{0};
  };
  ToyLane(std::shared_ptr<Shared> shared, int rank) : shared_(std::move(shared)), rank_(rank) {}

  const char* backend() const override { return "toy"; }
  Progress post(Operation& op) override {
    if (shared_->fails) throw Failure(ErrorCode::aborted, "the toy is broken");
    (op.kind == OpKind::send ? shared_->sends : shared_->receives)[rank_].push_back(&op);
    op.token = shared_.get();
    return Progress::waiting;
  }
  Progress test(Operation& op) override {
    match(0);
    match(1);
    return op.token ? Progress::waiting : Progress::done;
  }
  std::vector<int> missing(const Operation& op) const override { return {op.root}; }
  bool cancel(Operation& op) noexcept override {
    ++shared_->num_cancelled;
    std::erase(shared_->sends[rank_], &op);
    return std::erase(shared_->receives[rank_], &op) > 0;
  }

 private:
  void match(int from) {
    auto& sends = shared_->sends[from];
    auto& receives = shared_->receives[1 - from];
    while (!shared_->is_stuck && !sends.empty() && !receives.empty()) {
      CHECK(sends.front()->nbytes == receives.front()->nbytes && sends.front()->tag == receives.front()->tag);
      std::memcpy(receives.front()->out, sends.front()->in, sends.front()->nbytes);
      sends.front()->token = receives.front()->token = nullptr;
      sends.pop_front();
      receives.pop_front();
    }
  }

  const std::shared_ptr<Shared> shared_;
  const int rank_;
};

struct Ends {
  explicit Ends(bool lends, bool is_local = true, uint64_t high_water = 64 << 20, uint64_t large = 64 << 10,
                const std::vector<std::shared_ptr<FrameCarrier>>& carriers = {nullptr, nullptr},
                bool takes_loans = false) {
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
    waker = std::make_shared<LoopWaker>();
    const int lender = lends ? getpid() : 0;
    for (int i = 0; i < 2; ++i)
      streams.push_back(std::make_unique<FrameStream>(
          FrameStreamOptions{fds[i], is_local, lender, lends, carriers[static_cast<size_t>(i)], takes_loans, large,
                             kMost, high_water, waker, static_cast<uint64_t>(i)}));
  }
  ~Ends() {
    close_end(0);
    close_end(1);
  }

  void close_end(int end) {
    if (fds[end] < 0) return;
    shutdown(fds[end], SHUT_RDWR);
    close(fds[end]);
    fds[end] = -1;
    streams[end]->end();
  }

  // The next message of an end; waits for it.
  std::vector<ReceivedFrame> next(int end) {
    for (int i = 0; i < 10'000; ++i) {
      if (auto frames = streams[end]->take()) return std::move(*frames);
      turn();
    }
    CHECK(false);
    return {};
  }

  // Does what an event loop would do, until nothing is left to do, or background threads take long.
  void turn() {
    for (int quiet = 0; quiet < 3;) {
      pollfd polls[3] = {{fds[0], POLLIN, 0}, {fds[1], POLLIN, 0}, {waker->fd(), POLLIN, 0}};
      const bool is_busy = streams[0]->waiting_nbytes() || streams[1]->waiting_nbytes();
      quiet = poll(polls, 3, is_busy ? 2 : 0) == 0 ? quiet + 1 : 0;
      waker->ended();
      for (int i = 0; i < 2; ++i) {
        streams[i]->collect();
        if (polls[i].revents) streams[i]->receive();
        streams[i]->flush();
      }
    }
  }

  int fds[2];
  std::shared_ptr<LoopWaker> waker;
  std::vector<std::unique_ptr<FrameStream>> streams;
};

using Message = std::vector<Bytes>;

Message random_message(std::mt19937_64& random, uint64_t most_nbytes) {
  Message message(random() % 6);
  for (Bytes& frame : message) {
    const uint64_t kind = random() % 4;
    frame.resize(kind == 0 ? 0 : kind == 1 ? random() % 100 : kind == 2 ? random() % 70'000 : random() % most_nbytes);
    uint64_t word = random();
    for (size_t i = 0; i < frame.size(); ++i) frame[i] = static_cast<std::byte>((word += i) >> 3);
  }
  return message;
}

// Frames that are lent are kept by the stream: the owner is a copy.
void send(FrameStream& stream, const Message& message) {
  std::vector<SentBytes> frames;
  for (const Bytes& each : message) {
    auto owner = std::make_shared<Bytes>(each);
    frames.push_back({owner->data(), owner->size(), owner});
  }
  stream.send(std::move(frames));
}

bool is_equal(const std::vector<ReceivedFrame>& frames, const Message& message) {
  if (frames.size() != message.size()) return false;
  for (size_t i = 0; i < frames.size(); ++i) {
    if (frames[i].nbytes != message[i].size()) return false;
    if (frames[i].nbytes &&
        std::memcmp(frames[i].block->data() + frames[i].offset, message[i].data(), frames[i].nbytes))
      return false;
  }
  return true;
}

void check_messages(bool lends, bool is_local, uint64_t high_water) {
  std::mt19937_64 random(lends + 2 * is_local + high_water);
  Ends ends(lends, is_local, high_water);
  std::deque<Message> sent[2];
  std::vector<std::vector<ReceivedFrame>> held;  // as a program that keeps some of what it has received
  for (int step = 0; step < 60; ++step) {
    const int from = static_cast<int>(random() % 2);
    for (uint64_t count = random() % 4; count; --count) {
      sent[from].push_back(random_message(random, 3 << 20));
      send(*ends.streams[from], sent[from].back());
    }
    if (random() % 3 == 0) ends.turn();
    for (int to = 0; to < 2; ++to)
      while (random() % 4 && ends.streams[to]->has_message()) {
        auto frames = ends.streams[to]->take();
        CHECK(is_equal(*frames, sent[1 - to].front()));
        sent[1 - to].pop_front();
        if (random() % 8 == 0) held.push_back(std::move(*frames));
        if (held.size() > 4) held.erase(held.begin());
      }
  }
  for (int to = 0; to < 2; ++to)
    while (!sent[1 - to].empty()) {
      CHECK(is_equal(ends.next(to), sent[1 - to].front()));
      sent[1 - to].pop_front();
    }
  for (int i = 0; i < 10'000 && ends.streams[0]->waiting_nbytes() + ends.streams[1]->waiting_nbytes(); ++i) ends.turn();
  CHECK(ends.streams[0]->waiting_nbytes() == 0 && ends.streams[1]->waiting_nbytes() == 0);
}

// What was shared goes back, and is used again.
void check_segments() {
  Ends ends(false);
  const Message message = {Bytes(1 << 20, std::byte{7})};
  for (int i = 0; i < 30; ++i) {
    send(*ends.streams[0], message);
    ends.turn();
    CHECK(is_equal(ends.next(1), message));
    usleep(1000);  // a segment is made in the background
  }
  CHECK(ends.streams[0]->counts().nbytes_shared > 10 << 20);
  CHECK(ends.streams[1]->counts().nbytes_mapped == ends.streams[0]->counts().nbytes_shared);
}

// Segments that are not used go back to the system at both ends, and their numbers are used again.
void check_trimmed_segments() {
  Ends ends(false);
  for (int round = 0; round < 3; ++round) {
    const Message message = {Bytes(size_t{1} << (20 + round), std::byte{5})};
    const uint64_t before = ends.streams[0]->counts().nbytes_shared;
    for (int i = 0; i < 200 && ends.streams[0]->counts().nbytes_shared == before; ++i) {
      send(*ends.streams[0], message);
      CHECK(is_equal(ends.next(1), message));
      usleep(1000);
    }
    CHECK(ends.streams[0]->counts().nbytes_shared > before);
    ends.turn();  // the segment comes back
    CHECK(ends.streams[0]->has_segments());
    ends.streams[0]->trim(now_ns());
    CHECK(!ends.streams[0]->has_segments());
    ends.turn();
  }
}

// An end that does not read holds its peer up, and memory stays bounded; two ends that both wait go on.
void check_high_water() {
  Ends ends(true, false, 4 << 20);
  const Message message = {Bytes(3 << 20, std::byte{1})};
  for (int i = 0; i < 6; ++i) send(*ends.streams[0], message);
  ends.turn();
  CHECK(ends.streams[0]->waiting_nbytes() >= uint64_t{4} * (3 << 20));
  ends.streams[1]->pull_all();
  for (int i = 0; i < 10'000 && ends.streams[0]->waiting_nbytes(); ++i) ends.turn();
  CHECK(ends.streams[0]->waiting_nbytes() == 0);
  for (int i = 0; i < 6; ++i) CHECK(is_equal(ends.next(1), message));
}

// What was lent is not believed after the lender has closed the stream.
void check_closed_lender() {
  for (int round = 0; round < 20; ++round) {
    Ends ends(true, false);
    send(*ends.streams[0], {Bytes(8 << 20, std::byte{3})});
    if (round % 2) {
      ends.streams[1]->receive();
      usleep(static_cast<useconds_t>(round) * 50);
    }
    ends.close_end(0);
    bool is_refused = false;
    try {
      for (int i = 0; i < 200 && !ends.streams[1]->has_message(); ++i) {
        if (!ends.streams[1]->receive() && round % 2 == 0) is_refused = true;
        for (const uint64_t number : ends.waker->ended()) ends.streams[number]->collect();
        if (is_refused) break;
        usleep(100);
      }
    } catch (const Failure&) {
      is_refused = true;
    }
    CHECK(is_refused || round % 2);
    if (const auto frames = ends.streams[1]->take())
      CHECK(is_equal(*frames, {Bytes(8 << 20, std::byte{3})}));  // it was copied before
  }
}

std::vector<std::shared_ptr<FrameCarrier>> toy_carriers(const std::shared_ptr<ToyLane::Shared>& shared) {
  return {std::make_shared<FrameCarrier>(std::make_shared<ToyLane>(shared, 0), 1, 5, 7),
          std::make_shared<FrameCarrier>(std::make_shared<ToyLane>(shared, 1), 0, 7, 5)};
}

// Frames that a library brings: they arrive in order, also to a reader that is behind.
void check_carried() {
  const auto shared = std::make_shared<ToyLane::Shared>();
  Ends ends(false, false, 4 << 20, 64 << 10, toy_carriers(shared));
  std::mt19937_64 random(7);
  std::deque<Message> sent[2];
  for (int i = 0; i < 40; ++i) {
    const int from = i % 2;
    sent[from].push_back(random_message(random, 3 << 20));
    send(*ends.streams[from], sent[from].back());
  }
  for (int to = 0; to < 2; ++to)
    for (; !sent[1 - to].empty(); sent[1 - to].pop_front()) CHECK(is_equal(ends.next(to), sent[1 - to].front()));
  for (int i = 0; i < 10'000 && ends.streams[0]->waiting_nbytes() + ends.streams[1]->waiting_nbytes(); ++i) ends.turn();
  CHECK(ends.streams[0]->counts().nbytes_carried_out > 1 << 20);
  CHECK(ends.streams[0]->counts().nbytes_carried_out == ends.streams[1]->counts().nbytes_carried_in);
}

// A library that fails ends the stream of both ends, and what it reads or writes stays until it has ended.
void check_broken_carrier() {
  for (const bool is_stuck : {false, true}) {
    const auto shared = std::make_shared<ToyLane::Shared>();
    (is_stuck ? shared->is_stuck : shared->fails) = true;
    const auto frame = std::make_shared<Bytes>(1 << 20);
    {
      Ends ends(false, false, 4 << 20, 64 << 10, toy_carriers(shared));
      ends.streams[0]->send({{frame->data(), frame->size(), frame}});
      bool is_refused = false;
      try {
        for (int i = 0; i < 200 && !is_refused; ++i) {
          ends.turn();
          usleep(1000);
        }
      } catch (const Failure&) {
        is_refused = true;
      }
      CHECK(is_refused != is_stuck);
      CHECK(!ends.streams[1]->has_message());
    }
    CHECK(frame.use_count() == (is_stuck ? 2 : 1));
    shared->is_stuck = false;  // what was on its way ends after the connection
  }
}

template <typename... Parts>
Bytes joined(const Parts&... parts) {
  Bytes all((sizeof(parts) + ...));
  std::byte* to = all.data();
  ((std::memcpy(to, &parts, sizeof(parts)), to += sizeof(parts)), ...);
  return all;
}

// Bytes that no peer of this protocol sends. `fd` goes with them, if it is not negative.
// A message with a frame in device memory: what is behind it waits until the reader has copied it, and the sender keeps
// it so long.
void check_loans() {
  for (const bool closes : {false, true}) {
    Ends ends(true, true, 64 << 20, 64 << 10, {nullptr, nullptr}, true);
    const DeviceLoan loan{{4096, 8192, 7, {}}, 96, 1000, 0};
    auto owner = std::make_shared<DeviceLoan>(loan);
    const std::weak_ptr<DeviceLoan> kept = owner;
    SentBytes bytes{reinterpret_cast<const std::byte*>(owner.get()), sizeof loan, owner};
    bytes.is_loan = true;
    const Message others = {Bytes(200'000, std::byte{1}), Bytes(3, std::byte{2})};
    std::vector<SentBytes> frames = {bytes, {others[0].data(), others[0].size(), nullptr}, bytes};
    owner = nullptr;
    bytes.owner = nullptr;
    ends.streams[0]->send(std::move(frames));
    frames.clear();
    send(*ends.streams[0], others);
    ends.turn();
    FrameStream& reader = *ends.streams[1];
    CHECK(ends.streams[0]->waiting_nbytes() >= 202'000 && !kept.expired() && !reader.has_loans());
    if (closes) {
      ends.close_end(0);
      CHECK(kept.expired());
    }
    const auto found = reader.take();
    CHECK(found && found->size() == 3 && (*found)[0].is_loan && !(*found)[1].is_loan && (*found)[2].is_loan);
    CHECK(loan_from((*found)[2].block->data() + (*found)[2].offset).nbytes == 1000);
    CHECK(reader.taken_nbytes() == 202'000 && reader.counts().nbytes_device_in == 2000);
    CHECK(reader.has_loans() && !reader.has_message() && !reader.take());
    if (closes) {
      try {
        reader.end_loans();
        CHECK(false);
      } catch (const Failure&) {
      }
      continue;
    }
    ends.turn();
    CHECK(!kept.expired() && !reader.has_message());
    reader.end_loans();
    CHECK(is_equal(ends.next(1), others));
    CHECK(!reader.has_loans());
    ends.turn();
    CHECK(kept.expired() && ends.streams[0]->waiting_nbytes() == 0);
  }
  // One that nobody has taken is lost with the connection.
  Ends ends(true, true, 64 << 20, 64 << 10, {nullptr, nullptr}, true);
  const DeviceLoan loan{{4096, 8192, 7, {}}, 0, 0, 0};
  SentBytes bytes{reinterpret_cast<const std::byte*>(&loan), sizeof loan, nullptr};
  bytes.is_loan = true;
  ends.streams[0]->send({bytes});
  ends.turn();
  CHECK(ends.streams[1]->has_message() && ends.streams[0]->waiting_nbytes() > 0);
  ends.close_end(1);
  CHECK(!ends.streams[1]->has_message() && !ends.streams[1]->take());
}

void check_refused(const Bytes& bytes, int fd = -1, int lender = 0, bool takes_loans = false) {
  int fds[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
  {
    FrameStream stream({fds[0], true, lender, false, nullptr, takes_loans, 64 << 10, kMost, 64 << 20,
                        std::make_shared<LoopWaker>(), 0});
    OutgoingBytes out(fds[1]);
    out.add({bytes.data(), bytes.size(), nullptr, fd});
    CHECK(out.flush() == 0);
    bool is_refused = false;
    try {
      for (int i = 0; i < 4; ++i) stream.receive();
    } catch (const Failure&) {
      is_refused = true;
    }
    CHECK(is_refused && !stream.has_message());
    const RecordHeader next{RecordKind::message, {}, 0, 0};
    out.add({reinterpret_cast<const std::byte*>(&next), sizeof next, nullptr});
    CHECK(out.flush() == 0 && !stream.receive() && !stream.has_message());  // nothing after it is believed
  }
  close(fds[0]);
  close(fds[1]);
}

void check_lies() {
  const uint64_t huge = uint64_t{1} << 60;
  const auto header = [](RecordKind kind, uint32_t number, uint64_t nbytes) {
    return RecordHeader{kind, {}, number, nbytes};
  };
  const auto frame = [](uint64_t nbytes, FramePlace place, uint64_t address = 0, uint32_t segment = 0) {
    return FrameDescriptor{nbytes, address, place, segment};
  };
  const uint64_t one = sizeof(FrameDescriptor);
  check_refused(joined(header(static_cast<RecordKind>(9), 0, 0)));
  check_refused(joined(RecordHeader{RecordKind::message, {0, 1, 0}, 1, one}));
  check_refused(joined(header(RecordKind::message, 1u << 31, 16)));      // more frames than bytes
  check_refused(joined(header(RecordKind::message, 0xffffffff, huge)));  // too many
  check_refused(joined(header(RecordKind::message, 1, one + huge), frame(huge, FramePlace::stream)));
  check_refused(joined(header(RecordKind::message, 1, one + 5), frame(4, FramePlace::stream)));
  check_refused(joined(header(RecordKind::message, 2, 2 * one + kMost), frame(kMost, FramePlace::stream),
                       frame(kMost, FramePlace::stream)));
  check_refused(joined(header(RecordKind::message, 1, one), frame(8, FramePlace::lent, 4096)));  // nobody lends
  check_refused(joined(header(RecordKind::message, 1, one), frame(8, static_cast<FramePlace>(7))));
  check_refused(joined(header(RecordKind::message, 1, one), frame(8, FramePlace::segment, 0, 3)));
  check_refused(joined(header(RecordKind::taken, 0, 1)));     // nothing was lent
  check_refused(joined(header(RecordKind::returned, 0, 0)));  // nothing was shared
  check_refused(joined(header(RecordKind::dropped, 0, 0)));
  check_refused(joined(header(RecordKind::ready, 0, 1)));
  check_refused(joined(header(RecordKind::message, 1, one), frame(8, FramePlace::carried)));  // nobody carries
  check_refused(joined(header(RecordKind::segment, 0, 1 << 20)));                             // no descriptor
  const auto lent = [&](uint64_t size, uint64_t offset, uint64_t nbytes) {
    return joined(header(RecordKind::message, 1, one + kLoanBytes), frame(kLoanBytes, FramePlace::device),
                  DeviceLoan{{4096, 4096 + size, 1, {}}, offset, nbytes, 0});
  };
  check_refused(lent(100, 0, 100));               // nobody takes it
  check_refused(lent(100, 0, 101), -1, 0, true);  // beyond its allocation
  check_refused(lent(100, 1, 100), -1, 0, true);
  check_refused(lent(100, ~uint64_t{0}, 1), -1, 0, true);
  check_refused(lent(~uint64_t{4000}, 0, 1), -1, 0, true);
  check_refused(lent(2 * kMost, 0, kMost + 1), -1, 0, true);
  check_refused(joined(header(RecordKind::message, 1, one + 8), frame(8, FramePlace::device)), -1, 0, true);
  const int pid = getpid();
  check_refused(joined(header(RecordKind::message, 1, one), frame(8, FramePlace::lent, 4096)), -1, pid);
  check_refused(joined(header(RecordKind::message, 1, one), frame(0, FramePlace::lent, 4096)), -1, pid);
  check_refused(joined(header(RecordKind::message, 1, one), frame(1 << 20, FramePlace::lent, ~uint64_t{99})), -1, pid);
  // Descriptors that are no segments: of a file that can shrink, of one that is too short, of something else.
  const int loose = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const int small = memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK(ftruncate(loose, 1 << 20) == 0 && ftruncate(small, 100) == 0);
  CHECK(fcntl(small, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  for (const int fd : {loose, small, STDERR_FILENO}) check_refused(joined(header(RecordKind::segment, 0, 1 << 20)), fd);
  close(loose);
  close(small);
}

// Bytes in any order and of any content end in an error or in nothing, never in a crash.
void check_noise() {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    int fds[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
    {
      FrameStream stream(
          {fds[0], true, getpid(), true, nullptr, true, 64 << 10, 1 << 20, 64 << 20, std::make_shared<LoopWaker>(), 0});
      Bytes bytes(random() % 400);
      for (std::byte& each : bytes) each = static_cast<std::byte>(random() % 3 ? random() % 5 : random());
      CHECK(write(fds[1], bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
      try {
        for (int i = 0; i < 4; ++i) stream.receive();
        while (stream.take()) {
        }
      } catch (const Failure&) {
      }
    }
    close(fds[0]);
    close(fds[1]);
  }
}

}  // namespace

int main() {
  for (const bool lends : {false, true})
    for (const bool is_local : {false, true})
      for (const uint64_t high_water : {uint64_t{1} << 20, uint64_t{64} << 20})
        check_messages(lends, is_local, high_water);
  check_segments();
  check_trimmed_segments();
  check_high_water();
  check_closed_lender();
  check_carried();
  check_broken_carrier();
  check_loans();
  check_lies();
  check_noise();
  std::puts("ok");
  return 0;
}
