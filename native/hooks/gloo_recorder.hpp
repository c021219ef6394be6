// What torch's gloo has in flight, and its process groups.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

#include "hooks/gloo_tensors.hpp"
#include "hooks/open_event.hpp"

namespace hocket::hooks {

// Thread-safe. One of each process: see of_this_process().
class GlooRecorder {
 public:
  GlooRecorder();

  bool is_on() const { return is_on_; }
  // A group is made at this address, perhaps in place of one that was destroyed. Of hocket's own ones nothing is
  // recorded, because hocket has an event for each of its operations.
  void make_group(const void* group, int rank, int size, bool is_of_hocket);
  // An operation of a group begins: its layer, thread and begin are set here.
  void issue(const void* work, const void* group, Event event, const Torch& torch);
  void start(const void* work);
  // `source` is set for a message whose sender was unknown.
  void finish(const void* work, EventState state, int source = -1);
  // A call that returns when its operation is done.
  OpenEvent begin_call(const void* group, Event event, const Torch& torch);

 private:
  struct Group {
    int rank = -1;
    int size = 0;  // 0: unknown
    bool is_of_hocket = false;
    uint32_t id = 0;
    uint32_t num_messages = 0;
    uint32_t num_collectives = 0;
  };

  Event complete(Event event, const void* address, Group& group, const Torch& torch);
  uint32_t id_of(const void* address, Group& group, const Torch& torch);
  std::string label_of(const std::string& members);

  bool is_on_;
  std::mutex mutex_;
  std::unordered_map<const void*, OpenEvent> in_flight_;
  std::unordered_map<const void*, Group> groups_;
  std::map<std::string, unsigned> num_labels_;
  bool has_made_groups_ = false;
};

}  // namespace hocket::hooks
