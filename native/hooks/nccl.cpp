// The profiler plugin of NCCL, which `hocket observe run` names in NCCL_PROFILER_PLUGIN. It refuses nothing: an error
// from here would only switch the plugin off.
#include "hooks/hooks.hpp"
#include "hooks/nccl_interface.hpp"
#include "hooks/nccl_recorder.hpp"
#include "hooks/of_this_process.hpp"

namespace {

using hocket::hooks::Inside;
using hocket::hooks::nccl::EventDescriptor;
using hocket::hooks::nccl::Handle;
using hocket::hooks::nccl::kNoHandle;
using hocket::hooks::nccl::NcclRecorder;

NcclRecorder& recorder() { return hocket::hooks::of_this_process<NcclRecorder>(); }

constexpr int kWanted =
    hocket::hooks::nccl::kCollective | hocket::hooks::nccl::kMessage | hocket::hooks::nccl::kKernelChannel;

int init(void** context, int* wanted, int more_wanted, const char* name, uint64_t hash, int num_ranks, int rank) {
  const Inside inside;
  // NCCL calls this on the thread that makes the communicator.
  const bool is_of_hocket = hocket::hooks::t_makes_groups_of_hocket;
  const Handle handle = is_of_hocket ? kNoHandle : recorder().add_communicator(name, hash, num_ranks, rank);
  *context = reinterpret_cast<void*>(handle);
  *wanted = handle ? kWanted | more_wanted : 0;
  return hocket::hooks::nccl::kSuccess;
}

int init4(void** context, int* wanted, const char* name, uint64_t hash, int, int num_ranks, int rank, void*) {
  return init(context, wanted, 0, name, hash, num_ranks, rank);
}

template <int more_wanted>
int init5(void** context, uint64_t hash, int* wanted, const char* name, int, int num_ranks, int rank, void*) {
  return init(context, wanted, more_wanted, name, hash, num_ranks, rank);
}

template <uint64_t type_mask>
int start(void* context, void** event, EventDescriptor* descriptor) {
  const Inside inside;
  *event = reinterpret_cast<void*>(
      recorder().start(reinterpret_cast<Handle>(context), descriptor->type & type_mask, *descriptor));
  return hocket::hooks::nccl::kSuccess;
}

int stop(void* event) {
  const Inside inside;
  recorder().stop(reinterpret_cast<Handle>(event));
  return hocket::hooks::nccl::kSuccess;
}

int record_state(void*, int, void*) { return hocket::hooks::nccl::kSuccess; }

int finalize(void* context) {
  const Inside inside;
  recorder().remove_communicator(reinterpret_cast<Handle>(context));
  return hocket::hooks::nccl::kSuccess;
}

constexpr uint64_t kOneByte = 0xff;
constexpr uint64_t kAllBytes = ~0ull;
constexpr const char* kName = "hocket";

}  // namespace

using hocket::hooks::nccl::Init4;
using hocket::hooks::nccl::Init5;
using hocket::hooks::nccl::Plugin;

HOCKET_HOOK Plugin<Init4> ncclProfiler_v4;
HOCKET_HOOK Plugin<Init5> ncclProfiler_v5;
HOCKET_HOOK Plugin<Init5> ncclProfiler_v6;
Plugin<Init4> ncclProfiler_v4{kName, init4, start<kOneByte>, stop, record_state, finalize};
Plugin<Init5> ncclProfiler_v5{kName, init5<0>, start<kAllBytes>, stop, record_state, finalize};
Plugin<Init5> ncclProfiler_v6{
    kName, init5<hocket::hooks::nccl::kCopyEngineCollective>, start<kAllBytes>, stop, record_state, finalize};
