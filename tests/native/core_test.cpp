// The core over lanes that delay and fail on request: order, progress, errors, timeouts, events.
#include <cstdio>
#include <limits>
#include <numeric>
#include <thread>

#include "core/doorbell.hpp"
#include "test_lane.hpp"

namespace {

using namespace hocket;
using Seqs = std::vector<uint64_t>;

const Error kMismatch{ErrorCode::collective_mismatch, "mismatch", {}};
const Error kDeath{ErrorCode::peer_failure, "rank 2 died", {2}};

Engine& engine() { return Engine::instance(); }
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void test_issue_order() {
  TestCommunicator comm;
  for (uint64_t seq = 1; seq <= 5; ++seq) comm.collective->plans[seq].num_tests = static_cast<int>(6 - seq) * 10;
  std::vector<WorkPtr> works;
  for (int i = 0; i < 5; ++i) works.push_back(comm.issue());
  CHECK(wait(works.back()) == WaitResult::finished);
  for (size_t i = 0; i < 5; ++i) CHECK(is_done(works[i]) && works[i]->op.seq == i + 1);
  CHECK(comm.collective->posted == (Seqs{1, 2, 3, 4, 5}) && comm.collective->done == comm.collective->posted);
  CHECK(comm.collective->most_in_flight == 1);
  CHECK(comm.core->collectives_issued() == 5);
  // Messages are numbered per direction (and peer), and do not advance the collectives.
  CHECK(comm.issue(OpKind::send)->op.seq == 1 && comm.issue(OpKind::send)->op.seq == 2);
  CHECK(comm.issue(OpKind::recv)->op.seq == 1 && comm.issue()->op.seq == 6);
}

void test_deep_lane_completes_out_of_order() {
  TestCommunicator comm;
  comm.point_to_point->plans[1].num_tests = -1;
  comm.point_to_point->plans[2].num_tests = 500;
  comm.point_to_point->plans[4].error = kMismatch;
  const WorkPtr never = comm.issue(OpKind::send), slow = comm.issue(OpKind::send), fast = comm.issue(OpKind::send),
                wrong = comm.issue(OpKind::send);
  CHECK(wait(fast) == WaitResult::finished && is_done(fast) && !never->finished());
  CHECK(wait(wrong) == WaitResult::finished && has_failed(wrong, ErrorCode::collective_mismatch));
  CHECK(wait(slow) == WaitResult::finished && is_done(slow) && !never->finished() && !comm.is_broken());
  CHECK(comm.point_to_point->most_in_flight == 3);
}

// Rule R3: A's operation completes only after B's and C's lanes have been driven.
void test_one_wait_drives_all() {
  TestCommunicator a("a"), b("b"), c("c");
  const WorkPtr of_b = b.issue(), of_c = c.issue(OpKind::send);
  b.collective->plans[2].num_tests = 200;
  const WorkPtr second_of_b = b.issue();
  a.collective->plans[1].ready = [&] { return b.collective->done.size() == 2 && c.point_to_point->done.size() == 1; };
  CHECK(wait(a.issue()) == WaitResult::finished);
  CHECK(is_done(of_b) && is_done(second_of_b) && is_done(of_c));
}

void test_error_concerns_only_its_operation() {
  TestCommunicator a("a"), b("b");
  b.collective->plans[1] = {.num_tests = 5, .error = kMismatch};
  b.collective->plans[2] = {.error = kMismatch, .fails_in_post = true};
  const WorkPtr first = b.issue(), in_post = b.issue(), good = b.issue();
  a.collective->plans[1].ready = [&] { return good->finished(); };
  const WorkPtr of_a = a.issue();
  CHECK(wait(of_a) == WaitResult::finished && is_done(of_a));
  CHECK(has_failed(first, ErrorCode::collective_mismatch) && has_failed(in_post, ErrorCode::collective_mismatch));
  CHECK(is_done(good) && !b.is_broken() && b.collective->posted == (Seqs{1, 2, 3}));
  // The same on a lane with other operations in flight.
  b.point_to_point->plans[1].num_tests = 50;
  b.point_to_point->plans[2] = {.error = kMismatch, .fails_in_post = true};
  const WorkPtr send = b.issue(OpKind::send), refused = b.issue(OpKind::send), last = b.issue(OpKind::send);
  CHECK(wait(send) == WaitResult::finished && is_done(send) && is_done(last));
  CHECK(has_failed(refused, ErrorCode::collective_mismatch) && b.point_to_point->cancelled.empty());
}

void test_fatal_error_breaks_its_communicator_only() {
  for (bool other_exception : {false, true}) {
    TestCommunicator a("a"), b("b");
    if (other_exception)
      b.collective->plans[1] = {.num_tests = 5, .throws_other = true};
    else
      b.collective->plans[1] = {.num_tests = 5, .error = kDeath};
    b.point_to_point->plans[1].num_tests = -1;
    const WorkPtr send = b.issue(OpKind::send), first = b.issue(), queued = b.issue();
    const ErrorCode code = other_exception ? ErrorCode::aborted : ErrorCode::peer_failure;
    const WorkPtr of_a = a.issue();
    a.collective->plans[2].ready = [&] { return first->finished(); };
    CHECK(wait(a.issue()) == WaitResult::finished && is_done(of_a) && !a.is_broken());
    for (const WorkPtr& work : {first, queued, send}) CHECK(has_failed(work, code));
    CHECK(b.is_broken() && b.core->idle() && b.core->failure()->code == code);
    CHECK(b.collective->cancelled.empty() && b.point_to_point->cancelled == Seqs{1} && b.collective->posted == Seqs{1});
    CHECK(b.collective->abandoned.size() == 1 && b.point_to_point->abandoned.size() == 1);
    if (other_exception) CHECK(contains(first->error->message, "of b") && contains(first->error->message, "bad_alloc"));
  }
}

struct CountingHooks : WaitHooks {
  int num_reports = 0;
  std::string report;
  bool interrupt = false;
  void stalled(const std::string& text) override {
    ++num_reports;
    report = text;
  }
  bool interrupted() override { return interrupt; }
};

// A wait with an empty text prints no report, because another rank reports it.
void test_wait_without_a_text() {
  for (const std::string text : {"", "rank 1 waits"}) {
    CountingHooks hooks;
    engine().set_stall_report_s(0.02);
    CHECK(!engine().wait_for([] { return false; }, 0.1, hooks, [&] { return text; }));
    engine().set_stall_report_s(10);
    CHECK(hooks.num_reports == (text.empty() ? 0 : 1));
  }
}

void test_timeout() {
  TestCommunicator comm;
  comm.collective->plans[1].num_tests = -1;
  const WorkPtr first = comm.issue(), queued = comm.issue();
  CountingHooks hooks;
  engine().set_stall_report_s(0.06);
  CHECK(engine().wait(*queued, 0.3, hooks) == WaitResult::finished);
  engine().set_stall_report_s(10);
  CHECK(hooks.num_reports == 1);
  const char* text = "rank 0 of world waits in barrier, number 2 at test.py:3, for ranks 1 and 2";
  CHECK(contains(hooks.report, text) && contains(hooks.report, "still waiting after"));
  CHECK(has_failed(queued, ErrorCode::comm_timeout) && has_failed(first, ErrorCode::comm_timeout));
  CHECK(contains(queued->error->message, text) && contains(queued->error->message, "timeout of 0.3"));
  CHECK(queued->error->ranks == (std::vector<int>{1, 2}));
  CHECK(comm.core->failure()->code == ErrorCode::aborted);  // because a later operation has not timed out itself
  CHECK(comm.collective->cancelled == Seqs{1} && comm.collective->abandoned.size() == 1);
}

void test_timeout_of_an_independent_operation() {
  TestCommunicator comm;
  comm.point_to_point->plans[1].num_tests = -1;
  comm.point_to_point->plans[2].num_tests = -1;
  comm.point_to_point->plans[3] = {.num_tests = -1, .unnoticed = false};
  const WorkPtr one = comm.issue(OpKind::recv), two = comm.issue(OpKind::recv), three = comm.issue(OpKind::recv);
  CHECK(wait(two, 0.01) == WaitResult::finished && has_failed(two, ErrorCode::comm_timeout));
  CHECK(!comm.is_broken() && !one->finished() && comm.point_to_point->cancelled == Seqs{2});
  // An operation that others have noticed cannot be cancelled alone: the communicator breaks.
  CHECK(wait(three, 0.01) == WaitResult::finished && has_failed(three, ErrorCode::comm_timeout));
  CHECK(comm.is_broken() && has_failed(one, ErrorCode::comm_timeout));
  CHECK(comm.point_to_point->cancelled == (Seqs{2, 3, 1}));
}

void test_endless_timeout() {
  TestCommunicator comm;
  const int64_t begin = now_ns();
  comm.collective->plans[1].ready = [&] { return now_ns() > begin + timeout_ns(0.12); };
  const WorkPtr work = comm.issue();
  CHECK(wait(work, std::numeric_limits<double>::infinity()) == WaitResult::finished && is_done(work));
}

void test_interrupted_wait() {
  TestCommunicator comm;
  std::atomic<bool> open{false};
  comm.collective->plans[1].ready = [&] { return open.load(); };
  const WorkPtr work = comm.issue();
  CountingHooks hooks;
  hooks.interrupt = true;
  CHECK(engine().wait(*work, 60, hooks) == WaitResult::interrupted);
  CHECK(!work->finished() && !comm.is_broken() && work->waiters.load() == 0);
  open.store(true);
  CHECK(wait(work) == WaitResult::finished && is_done(work));
}

void test_bad_health() {
  TestCommunicator comm;
  bool dead = false;
  comm.point_to_point->plans[1].ready = [&] { return dead; };
  comm.collective->plans[1].num_tests = -1;
  const WorkPtr satisfied = comm.issue(OpKind::recv), pending = comm.issue();
  comm.locked([&] {
    dead = true;
    comm.collective->health_error = kDeath;
  });
  CHECK(wait(pending) == WaitResult::finished && has_failed(pending, ErrorCode::peer_failure));
  CHECK(is_done(satisfied) && pending->error->ranks == std::vector<int>{2} && comm.is_broken());
}

// The operation still needs a member that has left, until it sees what that member published before.
void test_bad_health_that_passes() {
  TestCommunicator comm;
  TestLane& lane = *comm.collective;
  lane.health_error = Error{ErrorCode::peer_failure, "rank 2 left", {2}};
  lane.plans[1].ready = [&] {
    if (lane.num_health_checks == 0) return false;
    lane.health_error.reset();
    return true;
  };
  const WorkPtr work = comm.issue();
  CHECK(wait(work) == WaitResult::finished && is_done(work) && !comm.is_broken());
}

void test_short_operations() {
  TestCommunicator comm;
  comm.collective->all_short = true;
  comm.collective->plans[1].num_tests = 3;
  comm.collective->plans[2].num_tests = 100;
  comm.collective->plans[3].error = Error{ErrorCode::collective_mismatch, "not the same", {}};
  comm.collective->plans[4].num_tests = -1;
  Communicator::FastPathResult fast;
  const auto try_short = [&](Operation& op) {
    fast = {};
    const bool done = comm.locked([&] { return comm.core->try_short(op, fast); });
    CHECK(fast.posted);
    return done;
  };
  Operation op;
  CHECK(try_short(op) && op.seq == 1);
  CHECK(!try_short(op) && op.seq == 2);
  WorkPtr work = comm.make(OpKind::barrier);
  work->op = op;
  comm.locked([&] { comm.core->adopt(work, fast); });
  CHECK(wait(work) == WaitResult::finished && is_done(work));
  // No fast path while an operation is in flight on any lane, because that operation must be driven.
  comm.point_to_point->plans[1].num_tests = 50;
  const WorkPtr message = comm.issue(OpKind::send);
  Communicator::FastPathResult refused;
  CHECK(!comm.locked([&] { return comm.core->try_short(op, refused); }) && !refused.posted);
  CHECK(wait(message) == WaitResult::finished);
  // The work gets the error of the fast path.
  CHECK(!try_short(op) && op.seq == 3 && fast.error);
  work = comm.make(OpKind::barrier);
  work->op = op;
  comm.locked([&] { comm.core->adopt(work, fast); });
  CHECK(has_failed(work, ErrorCode::collective_mismatch) && !comm.is_broken());
  // The communicator breaks between try_short() and adopt(): adopt() fails the work at once.
  CHECK(!try_short(op) && op.seq == 4);
  comm.locked([&] { comm.core->fail(kDeath); });
  work = comm.make(OpKind::barrier);
  work->op = op;
  comm.locked([&] { comm.core->adopt(work, fast); });
  CHECK(has_failed(work, ErrorCode::peer_failure) && comm.collective->cancelled == Seqs{4});
}

void test_wait_for() {
  TestCommunicator comm;
  comm.collective->plans[1].num_tests = 20;
  const WorkPtr work = comm.issue();
  WaitHooks hooks;
  CHECK(engine().wait_for(
      [&] {
        CHECK(!engine().lock().try_lock());  // called under the lock
        return work->finished();
      },
      60, hooks));
  CHECK(!engine().wait_for([] { return false; }, 0.01, hooks));
  bool thrown = false;
  try {
    engine().wait_for([]() -> bool { throw Failure(kDeath); }, 60, hooks);
  } catch (const Failure&) {
    thrown = true;
  }
  CHECK(thrown && engine().lock().try_lock());
  engine().lock().unlock();
}

void test_event_ring() {
  EventRing ring("seven", 0);
  const auto clock = std::make_shared<std::atomic<uint64_t>>(100);
  ring.set_clock(clock);
  const Operation send{.kind = OpKind::send, .dtype = DType::int16, .root = 3, .tag = -2, .seq = 9, .nbytes = 44};
  const uint64_t first = ring.begin(send, kEventAsync);
  Event event = ring.snapshot().at(0);
  CHECK(event.t_begin == 100 && event.t_end == 0 && event.state == EventState::issued && event.flags == kEventAsync);
  CHECK(event.seq == 9 && event.nbytes == 44 && event.peer == 3 && event.reduce == 0xff);
  CHECK(event.aux == 0xfffffffe && event.kind == 7 && event.dtype == static_cast<uint8_t>(DType::int16));
  ring.mark(first, EventState::started);
  CHECK(ring.snapshot().at(0).state == EventState::started);
  *clock = 105;
  ring.end(first, EventState::failed);
  event = ring.snapshot().at(0);
  CHECK(event.state == EventState::failed && event.t_end == 105);

  const uint64_t open = ring.begin(send, 0);
  for (uint64_t i = 0; i < EventRing::kMostEvents; ++i) {
    *clock = 1000 + i;
    ring.begin({.seq = i}, 0);
  }
  ring.end(open, EventState::completed);  // overwritten meanwhile: has no effect
  const std::vector<Event> held = ring.snapshot();
  CHECK(held.size() == EventRing::kMostEvents && ring.issued() == EventRing::kMostEvents + 2);
  for (uint64_t i = 0; i < held.size(); ++i) CHECK(held[i].t_begin == 1000 + i && held[i].t_end == 0);
}

void test_events_of_operations() {
  TestCommunicator comm;
  comm.collective->plans[2].error = kMismatch;
  comm.collective->plans[3].num_tests = -1;
  comm.issue();
  comm.issue();
  comm.issue();
  comm.issue();
  const std::vector<Event> events = comm.locked([&] { return comm.core->events().snapshot(); });
  const EventState expected[] = {EventState::completed, EventState::failed, EventState::started, EventState::issued};
  CHECK(events.size() == 4);
  for (size_t i = 0; i < 4; ++i) CHECK(events[i].state == expected[i] && events[i].seq == i + 1);
}

}  // namespace

int main() {
  for (bool oversubscribed : {false, true}) {
    engine().set_num_sharing(oversubscribed ? 4 : 0);
    test_issue_order();
    test_deep_lane_completes_out_of_order();
    test_one_wait_drives_all();
    test_error_concerns_only_its_operation();
    test_fatal_error_breaks_its_communicator_only();
    test_timeout();
    test_wait_without_a_text();
    test_timeout_of_an_independent_operation();
    test_endless_timeout();
    test_interrupted_wait();
    test_bad_health();
    test_bad_health_that_passes();
    test_short_operations();
    test_wait_for();
  }
  test_event_ring();
  test_events_of_operations();
  std::puts("core: ok");
  return 0;
}
