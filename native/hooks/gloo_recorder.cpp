#include "hooks/gloo_recorder.hpp"

#include <cstdlib>
#include <numeric>
#include <vector>

#include "core/types.hpp"
#include "hooks/hooks.hpp"
#include "recorder/rank_text.hpp"

namespace hocket::hooks {

namespace {

int from_environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value ? std::atoi(value) : -1;
}

// Ranks in the job; empty: unknown. torch leaves out those of its default group, which has all ranks.
std::vector<int> members_of(const void* group, int size, const Torch& torch) {
  std::vector<int> members;
  if (size <= 0 || !torch.group_ranks) return members;
  const std::vector<uint64_t>& ranks = torch.group_ranks(group);
  members.assign(ranks.begin(), ranks.end());
  if (members.empty() && size == from_environment("WORLD_SIZE")) {
    members.resize(static_cast<size_t>(size));
    std::iota(members.begin(), members.end(), 0);
  }
  if (members.size() != static_cast<size_t>(size)) members.clear();
  return members;
}

}  // namespace

GlooRecorder::GlooRecorder() : is_on_(observes("comm") && Recorder::instance().is_on()) {}

void GlooRecorder::make_group(const void* group, int rank, int size, bool is_of_hocket) {
  if (!is_on_) return;
  const std::lock_guard guard(mutex_);
  groups_[group] = {.rank = rank, .size = size, .is_of_hocket = is_of_hocket};
  // Without a launcher only the first group, torch's default one, says which rank this is.
  if (!has_made_groups_ && !is_of_hocket && !Recorder::instance().has_rank()) Recorder::instance().set_rank(rank, size);
  has_made_groups_ = true;
}

void GlooRecorder::issue(const void* work, const void* group, Event event, const Torch& torch) {
  if (!is_on_) return;
  event.flags |= kEventAsync;
  const std::lock_guard guard(mutex_);
  Group& made = groups_[group];
  if (made.is_of_hocket) return;
  OpenEvent& open = in_flight_[work];
  if (open.is_begun) {  // its work was destroyed without anybody having waited for it
    open.event.flags |= kEventEndUnknown;
    end_event(open, EventState::completed);
  }
  open = begin_event(complete(event, group, made, torch));
}

OpenEvent GlooRecorder::begin_call(const void* group, Event event, const Torch& torch) {
  if (!is_on_) return {};
  event.state = EventState::started;
  const std::lock_guard guard(mutex_);
  Group& made = groups_[group];
  return made.is_of_hocket ? OpenEvent() : begin_event(complete(event, group, made, torch));
}

void GlooRecorder::start(const void* work) {
  if (!is_on_) return;
  const uint64_t now = ticks();
  const std::lock_guard guard(mutex_);
  const auto found = in_flight_.find(work);
  if (found == in_flight_.end()) return;
  OpenEvent& open = found->second;
  open.event.aux = now;
  Recorder::instance().ring(open.ring).update(open.index, [now](Event& event) {
    event.aux = now;
    event.state = EventState::started;
  });
}

void GlooRecorder::finish(const void* work, EventState state, int source) {
  if (!is_on_) return;
  const uint64_t now = ticks();
  const std::lock_guard guard(mutex_);
  const auto found = in_flight_.find(work);
  if (found == in_flight_.end()) return;
  if (source >= 0) found->second.event.peer = source;
  end_event(found->second, state, now);
  in_flight_.erase(found);
}

Event GlooRecorder::complete(Event event, const void* address, Group& group, const Torch& torch) {
  event.comm = id_of(address, group, torch);
  event.thread = thread_number();
  event.layer = Layer::communication;
  event.reduce = kNoReduction;
  // torch's own numbers count messages, too, of which other ranks may have more or fewer.
  const bool is_message =
      event.kind == static_cast<uint8_t>(OpKind::send) || event.kind == static_cast<uint8_t>(OpKind::recv);
  event.seq = ++(is_message ? group.num_messages : group.num_collectives);
  if (!is_message && group.size > 0 && event.peer >= group.size) event.peer = -1;  // options of another form
  return event;
}

uint32_t GlooRecorder::id_of(const void* address, Group& group, const Torch& torch) {
  if (group.id != 0) return group.id;
  const std::string members = rank_text(members_of(address, group.size, torch));
  Recorder& recorder = Recorder::instance();
  group.id = recorder.define(DefinitionKind::communicator, label_of(members), 0, 0, group.rank);
  recorder.define(DefinitionKind::backend, "gloo", group.id);
  if (!members.empty() && members.size() <= kMostRankText) recorder.define(DefinitionKind::members, members, group.id);
  return group.id;
}

// The same on all members: groups of the same ranks are numbered in the order of their first operations.
std::string GlooRecorder::label_of(const std::string& members) {
  constexpr size_t kMostShown = 60;
  std::string shown = members.substr(0, kMostShown);
  if (shown.size() < members.size()) shown += "... " + std::to_string(std::hash<std::string>()(members));
  const unsigned number = ++num_labels_[members];
  std::string label = "gloo group";
  if (number > 1 || members.empty()) label += ' ' + std::to_string(number);
  if (!members.empty()) label += " of ranks " + shown;
  return label;
}

}  // namespace hocket::hooks
