#include "hooks/mpi_communicators.hpp"

#include <mutex>
#include <numeric>
#include <string>
#include <unordered_map>
#include <vector>

#include "hooks/mpi_call.hpp"
#include "recorder/rank_text.hpp"

namespace hocket::hooks {

namespace {

// Of a program that makes ever new communicators; their names would fill the memory of all names.
constexpr size_t kMostNamed = 1024;
constexpr size_t kMostName = 256;

class KnownGroups {
 public:
  template <typename Make>
  std::shared_ptr<KnownGroup> find(Handle handle, Make make) {
    {
      const std::lock_guard guard(mutex_);
      if (const auto found = groups_.find(handle); found != groups_.end()) return found->second;
    }
    // Outside the lock: it calls MPI, which has locks of its own.
    std::shared_ptr<KnownGroup> group = make(shared_id());
    const std::lock_guard guard(mutex_);
    return groups_.emplace(handle, std::move(group)).first->second;
  }
  void forget(Handle handle) {
    const std::lock_guard guard(mutex_);
    groups_.erase(handle);
  }
  // A later definition of a number gives its name.
  void rename(Handle handle, const char* name) {
    const std::lock_guard guard(mutex_);
    const auto found = groups_.find(handle);
    if (found == groups_.end() || found->second->id == shared_id_) return;
    const KnownGroup& known = *found->second;
    Recorder::instance().define(DefinitionKind::communicator, name, known.id, 0, known.sizes.rank);
  }
  // The number that all groups after the named ones share, or 0.
  uint32_t shared_id() {
    const std::lock_guard guard(mutex_);
    if (num_named_ < kMostNamed) {
      ++num_named_;
      return 0;
    }
    if (shared_id_ == 0)
      shared_id_ = Recorder::instance().define(DefinitionKind::communicator, "more MPI communicators", 0, 0, -1);
    return shared_id_;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<Handle, std::shared_ptr<KnownGroup>> groups_;
  size_t num_named_ = 0;
  uint32_t shared_id_ = 0;
};

// Handles of windows may have the values of communicators.
Handle key_of_window(Handle window) { return ~window; }

// Ranks in MPI_COMM_WORLD of the members of a group: "0-3,7"; -1 for members of another job.
std::string world_ranks(const HookedMpi& mpi, Handle group) {
  const auto& functions = mpi.functions();
  int size = 0;
  Handle world = 0;
  if (functions.group_size(group, &size) != 0 || functions.comm_group(mpi.world(), &world) != 0) return "";
  std::vector<int> ranks(static_cast<size_t>(size));
  std::vector<int> others(ranks.size(), -1);
  std::iota(ranks.begin(), ranks.end(), 0);
  functions.group_translate_ranks(group, size, ranks.data(), mpi.handle(world), others.data());
  functions.group_free(&world);
  return rank_text(others);
}

void define(const HookedMpi& mpi, KnownGroup& known, std::string name, const char* other_name, Handle group) {
  auto& recorder = Recorder::instance();
  const std::string members = group ? world_ranks(mpi, group) : "";
  static std::atomic<uint32_t> g_num_unnamed{0};
  if (name.empty()) name = other_name + std::to_string(g_num_unnamed.fetch_add(1));
  known.id = recorder.define(DefinitionKind::communicator, name, 0, 0, known.sizes.rank);
  recorder.define(DefinitionKind::backend, mpi.constants().name, known.id);
  if (!members.empty() && members.size() <= kMostRankText) recorder.define(DefinitionKind::members, members, known.id);
}

std::shared_ptr<KnownGroup> look_at_communicator(const HookedMpi& mpi, Handle comm, uint32_t shared_id) {
  const auto& functions = mpi.functions();
  auto known = std::make_shared<KnownGroup>();
  known->sizes = sizes_of(mpi, comm);
  known->id = shared_id;
  if (shared_id != 0) return known;
  char name[kMostName] = "";
  int length = 0;
  functions.comm_get_name(comm, name, &length);
  Handle group = 0;
  if ((known->sizes.is_inter ? functions.comm_remote_group : functions.comm_group)(comm, &group) != 0) group = 0;
  define(mpi, *known, name, "MPI comm ", mpi.handle(group));
  if (group) functions.group_free(&group);
  return known;
}

std::shared_ptr<KnownGroup> look_at_window(const HookedMpi& mpi, Handle window, uint32_t shared_id) {
  const auto& functions = mpi.functions();
  auto known = std::make_shared<KnownGroup>();
  known->id = shared_id;
  Handle group = 0;
  if (functions.win_get_group(window, &group) != 0) return known;
  functions.group_rank(mpi.handle(group), &known->sizes.rank);
  functions.group_size(mpi.handle(group), &known->sizes.size);
  known->sizes.num_peers = known->sizes.size;
  if (shared_id == 0) {
    char name[kMostName] = "";
    int length = 0;
    functions.win_get_name(window, name, &length);
    define(mpi, *known, name, "MPI window ", mpi.handle(group));
  }
  functions.group_free(&group);
  return known;
}

}  // namespace

GroupSizes sizes_of(const HookedMpi& mpi, Handle comm) {
  GroupSizes sizes;
  if (mpi.is_null(comm)) return sizes;
  const auto& functions = mpi.functions();
  int is_inter = 0;
  functions.comm_test_inter(comm, &is_inter);
  sizes.is_inter = is_inter != 0;
  functions.comm_rank(comm, &sizes.rank);
  functions.comm_size(comm, &sizes.size);
  sizes.num_peers = sizes.size;
  if (sizes.is_inter) functions.comm_remote_size(comm, &sizes.num_peers);
  return sizes;
}

std::shared_ptr<KnownGroup> communicator_of(const HookedMpi& mpi, Handle comm) {
  if (mpi.is_null(comm)) return nullptr;
  return of_this_process<KnownGroups>().find(
      mpi.handle(comm), [&](uint32_t shared_id) { return look_at_communicator(mpi, comm, shared_id); });
}

std::shared_ptr<KnownGroup> window_of(const HookedMpi& mpi, Handle window) {
  if (mpi.is_null(window)) return nullptr;
  return of_this_process<KnownGroups>().find(
      key_of_window(mpi.handle(window)), [&](uint32_t shared_id) { return look_at_window(mpi, window, shared_id); });
}

void forget_communicator(Handle comm) { of_this_process<KnownGroups>().forget(comm); }
void forget_window(Handle window) { of_this_process<KnownGroups>().forget(key_of_window(window)); }

void rename_communicator(Handle comm, const char* name) { of_this_process<KnownGroups>().rename(comm, name); }
void rename_window(Handle window, const char* name) {
  of_this_process<KnownGroups>().rename(key_of_window(window), name);
}

Neighbours neighbours_of(const HookedMpi& mpi, Handle comm) {
  const auto& functions = mpi.functions();
  const MpiConstants& constants = mpi.constants();
  int topology = kUndefined;
  if (mpi.is_null(comm) || functions.topo_test(comm, &topology) != 0) return {};
  int count = 0;
  if (topology == constants.cart) {
    functions.cartdim_get(comm, &count);
    return {2 * count, 2 * count};
  }
  if (topology == constants.graph) {
    int rank = 0;
    functions.comm_rank(comm, &rank);
    functions.graph_neighbors_count(comm, rank, &count);
    return {count, count};
  }
  int in = 0;
  int out = 0;
  int is_weighted = 0;
  if (topology == constants.dist_graph) functions.dist_graph_neighbors_count(comm, &in, &out, &is_weighted);
  return {in, out};
}

}  // namespace hocket::hooks

using hocket::hooks::Handle;
using hocket::hooks::HookedFunction;
using hocket::hooks::MpiCall;

// `forget` runs before the original: afterwards another thread may have been given the handle.
#define HOCKET_MPI_FREES(symbol, forget)                          \
  HOCKET_HOOK int MPI_##symbol(void* handle) {                    \
    static constinit HookedFunction function{"PMPI_" #symbol};    \
    MpiCall call(function, __builtin_return_address(0));          \
    if (call.may_free()) forget(call.mpi().handle_at(handle, 0)); \
    return call(handle);                                          \
  }
HOCKET_MPI_FREES(Comm_free, hocket::hooks::forget_communicator)
HOCKET_MPI_FREES(Comm_disconnect, hocket::hooks::forget_communicator)
HOCKET_MPI_FREES(Win_free, hocket::hooks::forget_window)

#define HOCKET_MPI_NAMES(symbol, rename)                                          \
  HOCKET_HOOK int MPI_##symbol(Handle handle, const char* name) {                 \
    static constinit HookedFunction function{"PMPI_" #symbol};                    \
    MpiCall call(function, __builtin_return_address(0));                          \
    const int code = call(handle, name);                                          \
    if (call.is_recorded() && code == 0) rename(call.mpi().handle(handle), name); \
    return code;                                                                  \
  }
HOCKET_MPI_NAMES(Comm_set_name, hocket::hooks::rename_communicator)
HOCKET_MPI_NAMES(Win_set_name, hocket::hooks::rename_window)
