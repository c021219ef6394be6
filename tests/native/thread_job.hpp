// A job whose ranks are threads of this process. They run the rendezvous and open a region as processes do; then all
// use one mapping of it, so that the thread sanitizer, which compares addresses, detects races between ranks.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "core/clock.hpp"
#include "shm/collective_lane.hpp"
#include "shm/point_to_point_lane.hpp"
#include "shm/region.hpp"

namespace hocket {

// One rank: its lanes, driven by its own thread without the engine.
class Rank {
 public:
  explicit Rank(const std::shared_ptr<Region>& region)
      : rank(region->rank), size(region->size), region_(region), collective(region), point_to_point(region) {}

  const int rank;
  const int size;

 private:
  std::shared_ptr<Region> region_;

 public:
  CollectiveLane collective;
  PointToPointLane point_to_point;
  uint64_t seq = 0;
  int64_t num_tests = 0;  // of the latest run()

  Region& region() { return *region_; }
  const std::shared_ptr<Region>& shared_region() const { return region_; }
  void leave() { region_.reset(); }

  // Runs a collective to its end.
  void run(Operation op) {
    op.seq = ++seq;
    op.site = "test.py:1";
    finish(collective, op, collective.post(op));
  }
  void send(int to, const void* data, uint64_t nbytes, int tag = 0, DType dtype = DType::uint8) {
    message(OpKind::send, to, const_cast<void*>(data), nbytes, tag, dtype);
  }
  void recv(int from, void* data, uint64_t nbytes, int tag = 0, DType dtype = DType::uint8) {
    message(OpKind::recv, from, data, nbytes, tag, dtype);
  }
  Operation message_operation(OpKind kind, int peer, void* data, uint64_t nbytes, int tag, DType dtype) {
    auto* bytes = static_cast<std::byte*>(data);
    return {.kind = kind,
            .dtype = dtype,
            .root = peer,
            .tag = tag,
            .nbytes = nbytes,
            .in = bytes,
            .out = bytes,
            .site = "test.py:2"};
  }

 private:
  void message(OpKind kind, int peer, void* data, uint64_t nbytes, int tag, DType dtype) {
    Operation op = message_operation(kind, peer, data, nbytes, tag, dtype);
    finish(point_to_point, op, point_to_point.post(op));
  }

  void finish(Lane& lane, Operation& op, Progress progress) {
    const int64_t deadline = now_ns() + timeout_ns(60);
    for (num_tests = 0; progress != Progress::done; ++num_tests) {
      progress = lane.test(op);
      if (progress != Progress::waiting) continue;
      sched_yield();
      CHECK(now_ns() < deadline);
    }
  }
};

class ThreadJob {
 public:
  explicit ThreadJob(int size, const std::vector<std::string>& backends = {"shm"}) {
    static int generation = 0;
    const std::string name = "hocket-test-" + std::to_string(getpid()) + "-" + std::to_string(++generation);
    std::vector<int> members;
    for (int rank = 0; rank < size; ++rank) members.push_back(rank);
    hosts_.resize(members.size());
    opened_.resize(members.size());
    on_threads(size, [&](int rank) {
      WaitHooks hooks;
      const auto r = static_cast<size_t>(rank);
      hosts_[r] = Host::connect(name, rank, size, 60, hooks);
      opened_[r] = Region::open(hosts_[r], members, rank, kKey, backends, 60, hooks);
    });
    const Host::Range range = *hosts_[0]->find_range(kKey);
    const auto mapping = std::make_shared<Mapping>(hosts_[0]->segment(), range.offset, range.nbytes);
    for (int rank = 0; rank < size; ++rank)
      ranks.push_back(std::make_unique<Rank>(
          std::make_shared<Region>(hosts_[static_cast<size_t>(rank)], members, rank, kKey, range, mapping, backends)));
  }

  // Runs `body` for every rank in a thread of its own, until all have ended.
  void run(const std::function<void(Rank&)>& body) {
    on_threads(static_cast<int>(ranks.size()), [&](int rank) { body(*ranks[static_cast<size_t>(rank)]); });
  }

  std::vector<std::unique_ptr<Rank>> ranks;

 private:
  static constexpr uint64_t kKey = 42;

  static void on_threads(int size, const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank)
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (const Failure& failure) {
          std::fprintf(stderr, "rank %d: %s\n", rank, failure.what());
          std::abort();
        }
      });
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::shared_ptr<Host>> hosts_;
  std::vector<std::shared_ptr<Region>> opened_;
};

// The error that `body` throws; the check fails if it throws none.
template <typename Body>
Error error_of(Body&& body) {
  try {
    body();
  } catch (const Failure& failure) {
    return failure.error();
  }
  CHECK(!"an error");
  std::abort();
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace hocket
