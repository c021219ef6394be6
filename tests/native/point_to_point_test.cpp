// Messages: short and long, tags, unexpected messages, a ring that wraps around, mismatches, and peers that leave.
#include <cstdio>
#include <list>
#include <random>

#include "oracle.hpp"
#include "thread_job.hpp"
#include "tier.hpp"

namespace {

using namespace hocket;

Bytes pattern(uint64_t nbytes, uint64_t salt) {
  Bytes bytes(nbytes);
  for (uint64_t i = 0; i < nbytes; ++i) bytes[i] = static_cast<std::byte>((i * 31 + (i >> 8) * 7 + salt) & 0xff);
  return bytes;
}

// Messages in flight of one rank.
class InFlight {
 public:
  explicit InFlight(Rank& rank) : rank_(rank) {}

  void send(int to, Bytes bytes, int tag) { start(OpKind::send, to, std::move(bytes), {}, tag); }
  void recv(int from, Bytes expected, int tag) {
    Bytes got(expected.size());
    start(OpKind::recv, from, std::move(got), std::move(expected), tag);
  }

  bool drive() {
    bool moved = false;
    for (auto each = messages_.begin(); each != messages_.end();) {
      const Progress progress = each->done ? Progress::done : rank_.point_to_point.test(each->op);
      moved |= progress != Progress::waiting;
      if (progress == Progress::done) {
        if (each->op.kind == OpKind::recv) CHECK(each->bytes == each->expected);
        each = messages_.erase(each);
      } else {
        ++each;
      }
    }
    return moved;
  }

  void drain() {
    const int64_t deadline = now_ns() + timeout_ns(60);
    while (!messages_.empty()) {
      if (drive()) continue;
      sched_yield();
      CHECK(now_ns() < deadline);
    }
  }

 private:
  struct Message {
    Operation op;
    Bytes bytes;
    Bytes expected;
    bool done = false;
  };

  void start(OpKind kind, int peer, Bytes bytes, Bytes expected, int tag) {
    Message& message = messages_.emplace_back(Message{{}, std::move(bytes), std::move(expected)});
    message.op = rank_.message_operation(kind, peer, message.bytes.data(), message.bytes.size(), tag, DType::uint8);
    message.done = rank_.point_to_point.post(message.op) == Progress::done;
  }

  Rank& rank_;
  std::list<Message> messages_;
};

void test_sizes() {
  ThreadJob job(2);
  job.run([](Rank& rank) {
    const uint64_t sizes[] = {0,
                              1,
                              32,
                              33,
                              2 << 10,
                              (2 << 10) + 1,
                              64'000,
                              ring_message_bytes_for(2) - 1,
                              ring_message_bytes_for(2),
                              ring_message_bytes_for(2) + 1,
                              kBulkBytes,
                              kBulkBytes + 1,
                              bulk_slots_for(2) * kBulkBytes + 1,
                              3 * bulk_slots_for(2) * kBulkBytes - 1};
    for (int sender : {0, 1})
      for (uint64_t nbytes : sizes) {
        Bytes expected = pattern(nbytes, nbytes);
        if (rank.rank == sender) {
          rank.send(1 - sender, expected.data(), nbytes);
        } else {
          Bytes got(nbytes);
          rank.recv(sender, got.data(), nbytes);
          CHECK(got == expected);
        }
      }
  });
}

// More messages than the ring holds, of all sizes, received in another order than sent: the order within a tag stays.
void test_ring_wraps_around() {
  ThreadJob job(2);
  job.run([](Rank& rank) {
    constexpr uint64_t kMessages = 300;
    std::mt19937 random(11);
    std::vector<Bytes> messages;
    for (uint64_t i = 0; i < kMessages; ++i) messages.push_back(pattern(random() % (ring_message_bytes_for(2) + 1), i));
    InFlight in_flight(rank);
    if (rank.rank == 0) {
      for (uint64_t i = 0; i < kMessages; ++i) in_flight.send(1, messages[i], static_cast<int>(i % 3));
    } else {
      for (int tag : {2, 0, 1}) {
        for (uint64_t i = static_cast<uint64_t>(tag); i < kMessages; i += 3) in_flight.recv(0, messages[i], tag);
        in_flight.drain();
      }
    }
    in_flight.drain();
  });
}

// Long messages without a receive do not block the messages behind them.
void test_long_messages_out_of_order() {
  ThreadJob job(2);
  job.run([](Rank& rank) {
    InFlight in_flight(rank);
    for (int tag = 0; tag < 5; ++tag) {
      if (rank.rank == 0)
        in_flight.send(1, pattern(300'000 + static_cast<uint64_t>(tag), static_cast<uint64_t>(tag)), tag);
      else
        in_flight.recv(0, pattern(300'004 - static_cast<uint64_t>(tag), static_cast<uint64_t>(4 - tag)), 4 - tag);
    }
    in_flight.drain();
  });
}

void test_to_itself() {
  ThreadJob job(1);
  job.run([](Rank& rank) {
    InFlight in_flight(rank);
    in_flight.recv(0, pattern(1'000'000, 3), 3);
    in_flight.recv(0, pattern(100, 4), 4);
    in_flight.send(0, pattern(100, 4), 4);
    in_flight.send(0, pattern(1'000'000, 3), 3);
    in_flight.drain();
  });
}

// A message of another size or type than expected: the receiver raises, and so does the sender of a long message. Later
// messages are not affected.
void test_refused() {
  ThreadJob job(2);
  job.run([](Rank& rank) {
    Bytes bytes = pattern(500'000, 1);
    const auto exchange = [&](uint64_t nbytes) {
      Bytes expected = pattern(nbytes, nbytes);
      Bytes got(nbytes);
      rank.rank == 0 ? rank.send(1, expected.data(), nbytes) : rank.recv(0, got.data(), nbytes);
      if (rank.rank == 1) CHECK(got == expected);
    };
    for (int round = 0; round < 20; ++round) {
      if (rank.rank == 0) {
        const Error error = error_of([&] { rank.send(1, bytes.data(), 500'000); });
        CHECK(error.code == ErrorCode::collective_mismatch && contains(error.message, "send to rank 1"));
        CHECK(contains(error.message, "500000 bytes uint8 at test.py:2"));
        rank.send(1, bytes.data(), 100);
        CHECK(error_of([&] { rank.send(1, bytes.data(), 80'000, 0, DType::float32); }).ranks == std::vector<int>{1});
      } else {
        const Error error = error_of([&] { rank.recv(0, bytes.data(), 400'000); });
        CHECK(error.code == ErrorCode::collective_mismatch && contains(error.message, "recv from rank 0"));
        CHECK(contains(error.message, "sent 500000 bytes uint8 at test.py:2"));
        CHECK(contains(error_of([&] { rank.recv(0, bytes.data(), 104); }).message, "sent 100 bytes"));
        CHECK(contains(error_of([&] { rank.recv(0, bytes.data(), 80'000); }).message, "80000 bytes float32"));
      }
      exchange(10);
      exchange(200'000);
    }
  });
}

// Messages that a rank sent before it left arrive; later operations with this peer fail.
void test_peer_leaves() {
  ThreadJob job(2);
  job.run([](Rank& rank) {
    Bytes bytes = pattern(5000, 2);
    if (rank.rank == 1) rank.send(0, bytes.data(), bytes.size());
  });
  job.ranks[1].reset();
  job.ranks.pop_back();
  job.run([](Rank& rank) {
    Bytes got(5000);
    rank.recv(1, got.data(), got.size());
    CHECK(got == pattern(5000, 2));
    const Error error = error_of([&] { rank.recv(1, got.data(), got.size()); });
    CHECK(error.code == ErrorCode::peer_failure && error.ranks == std::vector<int>{1});
    CHECK(error_of([&] { rank.send(1, got.data(), 100'000); }).code == ErrorCode::peer_failure);
  });
}

// An operation that no other rank can have noticed can be cancelled; the next one replaces it.
void test_cancel() {
  ThreadJob job(2);
  job.run([](Rank& rank) {
    Bytes one = pattern(64, 1);
    if (rank.rank == 1) {
      Operation op = rank.message_operation(OpKind::recv, 0, one.data(), 32, 0, DType::uint8);
      CHECK(rank.point_to_point.post(op) == Progress::moved);
      CHECK(rank.point_to_point.test(op) == Progress::waiting);
      CHECK(rank.point_to_point.missing(op) == std::vector<int>{0});
      CHECK(rank.point_to_point.cancel(op));
    }
    rank.run({.kind = OpKind::barrier});
    Bytes got(64);
    rank.rank == 0 ? rank.send(1, one.data(), 64) : rank.recv(0, got.data(), 64);
    if (rank.rank == 1) CHECK(got == one);
  });
}

// A receive is cancelled while its message is being read: the rest is skipped, and the next message is complete.
void test_cancel_while_reading() {
  ThreadJob job(2);
  job.run([](Rank& rank) {
    const Bytes first = pattern(ring_message_bytes_for(2), 1);
    const Bytes second = pattern(10'000, 2);
    for (int round = 0; round < 200; ++round) {
      Bytes got(first.size());
      if (rank.rank == 0) {
        got = first;
        rank.send(1, got.data(), got.size());
        got = second;
        rank.send(1, got.data(), got.size());
      } else {
        Operation op = rank.message_operation(OpKind::recv, 0, got.data(), got.size(), 0, DType::uint8);
        Progress state = rank.point_to_point.post(op);
        for (int tests = 0; tests <= round && state != Progress::done; ++tests) state = rank.point_to_point.test(op);
        if (state != Progress::done && rank.point_to_point.cancel(op)) rank.recv(0, got.data(), first.size());
        rank.recv(0, got.data(), second.size());
        CHECK(std::equal(second.begin(), second.end(), got.begin()));
      }
      rank.run({.kind = OpKind::barrier});
    }
  });
}

// Messages between all pairs with random sizes, tags and times of progress, and barriers in between.
void test_random_traffic(int size, unsigned seed) {
  ThreadJob job(size);
  job.run([&](Rank& rank) {
    std::mt19937 program(seed);
    std::mt19937 own(seed * 17 + static_cast<unsigned>(rank.rank));
    InFlight in_flight(rank);
    for (uint64_t step = 0; step < 200; ++step) {
      const auto from = static_cast<int>(program() % static_cast<unsigned>(size));
      const auto to = static_cast<int>(program() % static_cast<unsigned>(size));
      const int tag = static_cast<int>(program() % 3);
      const uint64_t most[] = {20, 3000, ring_message_bytes_for(2) + 2, 300'000};
      const uint64_t nbytes = program() % most[program() % 4];
      if (from == rank.rank) in_flight.send(to, pattern(nbytes, step), tag);
      if (to == rank.rank) in_flight.recv(from, pattern(nbytes, step), tag);
      for (unsigned i = own() % 3; i > 0; --i) in_flight.drive();
      if (program() % 20 == 0) {
        in_flight.drain();
        rank.run({.kind = OpKind::barrier});
      }
    }
    in_flight.drain();
  });
}

}  // namespace

int main() {
  test_sizes();
  test_ring_wraps_around();
  test_long_messages_out_of_order();
  test_to_itself();
  test_refused();
  test_peer_leaves();
  test_cancel();
  test_cancel_while_reading();
  for (unsigned seed = 0; seed < (is_full_tier() ? 6 : 4); ++seed)  // every size from 2 to 5
    test_random_traffic(2 + static_cast<int>(seed % 4), seed);
  std::puts("point to point: ok");
  return 0;
}
