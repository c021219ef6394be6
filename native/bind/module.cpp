#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "bind/communicator.hpp"
#include "bind/dask_events.hpp"
#include "bind/errors.hpp"
#include "bind/frames.hpp"
#include "bind/gil.hpp"
#include "bind/io_events.hpp"
#include "bind/lanes.hpp"
#include "bind/lossless.hpp"
#include "bind/memory.hpp"
#include "bind/program_events.hpp"
#include "bind/quantize.hpp"
#include "bind/rollups.hpp"
#include "bind/shared_memory.hpp"
#include "bind/sim.hpp"
#include "bind/sparse.hpp"
#include "bind/virtual_ranks.hpp"
#include "core/choice.hpp"
#include "core/process.hpp"
#include "core/ticker.hpp"
#include "core/traits.hpp"
#include "recorder/recorder.hpp"
#include "reduce/reduce.hpp"
#include "shm/peer_memory.hpp"

namespace {

bool g_fails_at_exit = false;  // used with the GIL, and after the interpreter has ended

template <typename Names>
nanobind::tuple name_list(const Names& names) {
  nanobind::list list;
  for (const char* name : names) list.append(name);
  return nanobind::tuple(list);
}

}  // namespace

NB_MODULE(_native, module) {
  using namespace hocket;
  module.doc() = "The native core of hocket.";
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    guarded([&]() -> PyObject* { std::rethrow_exception(pointer); });
  });
  // Operations in flight at the end of the process keep their objects; this is not a leak of the binding.
  nb::set_leak_warnings(false);
  bind_control(module);
  bind_shared_memory(module);
  bind_virtual_ranks(module);
  bind_communicator(module);
  bind_work(module);
  bind_prepared(module);
  bind_lanes(module);
  bind_memory(module);
  bind_sim(module);
  bind_program_events(module);
  bind_io_events(module);
  bind_rollups(module);
  bind_frames(module);
  bind_dask_events(module);
  bind_lossless(module);
  bind_quantize(module);
  bind_sparse(module);

  // The sizes at which the core changes its method; tests use sizes around them.
  nb::dict constants;
  constants["line_bytes"] = sizeof(HeaderLine);
  constants["inline_bytes"] = kInlineBytes;
  constants["eager_bytes"] = kEagerBytes;
  constants["ring_message_bytes"] = ring_message_bytes_for(2);
  constants["ring_bytes"] = ring_bytes_for(2);
  constants["bulk_bytes"] = kBulkBytes;
  constants["bulk_slots"] = bulk_slots_for(2);
  constants["broadcast_least_chunk_bytes"] = kLeastBroadcastChunkBytes;
  constants["broadcast_most_chunk_bytes"] = kMostBroadcastChunkBytes;
  constants["least_direct_bytes"] = kLeastDirectBytes;
  constants["events"] = EventRing::kMostEvents;
  module.attr("CONSTANTS") = constants;
  module.attr("OP_NAMES") = name_list(kOpNames);
  module.attr("FOREIGN_NAMES") = name_list(kForeignNames);
  module.attr("TRANSFER_NAMES") = name_list(kTransferNames);
  module.attr("PROGRAM_NAMES") = name_list(kProgramNames);
  module.attr("IO_NAMES") = name_list(kIoNames);
  module.attr("IO_ROUTE_NAMES") = name_list(kIoRouteNames);
  module.attr("PROCESS_NAMES") = name_list(kProcessNames);
  module.attr("DASK_NAMES") = name_list(kDaskNames);
  module.attr("DASK_PATH_NAMES") = name_list(kDaskPathNames);
  nb::list reducing;
  for (size_t i = 0; i < kOpNames.size(); ++i)
    if (const auto kind = static_cast<OpKind>(i); reduces(kind)) reducing.append(name(kind));
  module.attr("REDUCING_OPS") = nb::tuple(reducing);
  nb::dict item_nbytes;
  for (size_t i = 0; i < kNumDTypes; ++i) item_nbytes[kDTypeNames[i]] = itemsize(static_cast<DType>(i));
  module.attr("ITEM_NBYTES") = item_nbytes;
  nb::dict with_counts;
  for (size_t i = 0; i < kOpNames.size(); ++i)
    if (const auto kind = static_cast<OpKind>(i); has_counts(kind))
      with_counts[name(kind)] = name(without_counts(kind));
  module.attr("WITH_COUNTS") = with_counts;
  module.attr("DTYPE_NAMES") = name_list(kDTypeNames);
  module.attr("REDUCE_NAMES") = name_list(kReduceNames);
  module.attr("PROC_NULL") = kProcNull;
  module.attr("DTYPE_CLASS_NAMES") = name_list(kDTypeClassNames);
  module.attr("ISA") = active_isa();
  module.def("mismatch_head", &mismatch_head, nb::arg("seq"), nb::arg("wanted"));
  module.def("has_single_copy", [] { return may_read_memory(getpid()); });

  module.def("set_num_sharing", [](int num_ranks) { Engine::instance().set_num_sharing(num_ranks); });
  module.def("start_progress_thread", [] {
    nb::gil_scoped_release released;
    Engine::instance().start_thread();
  });
  module.def("stop_progress_thread", [] {
    if (g_forked_child.load(std::memory_order_relaxed)) return;
    nb::gil_scoped_release released;  // a callback on that thread may be waiting for the GIL
    Engine::instance().stop_thread();
    Ticker::instance().stop();
  });
  // Exit handlers run in reverse order, so this one is the last of hocket's.
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] {
    Recorder::end_process();  // here, too: programs that run Python's exit handlers may then call _exit
    if (g_forked_child.load(std::memory_order_relaxed)) return;
    const nb::gil_scoped_release released;
    Engine::instance().stop_thread_for_good();
  }));
  module.def("take_unseen", []() -> nb::object {
    if (g_forked_child.load(std::memory_order_relaxed)) return nb::none();  // the lock may be held forever
    const ProgressGuard guard;
    const std::optional<Error> unseen = Engine::instance().take_unseen();
    return unseen ? nb::steal(make_exception(*unseen)) : nb::none();
  });
  // Python's exit handlers cannot change the exit code; one that found a failure calls this.
  module.def("fail_at_exit", [] { g_fails_at_exit = true; });
  on_exit(
      [](int status, void*) {
        if (status != 0 || !g_fails_at_exit) return;
        std::fflush(nullptr);
        _exit(1);
      },
      nullptr);
  // For code that waits in Python for another thread: every entry drives all lanes (rule R3).
  module.def("progress", [] {
    {
      const ProgressGuard guard;
      Engine::instance().poll();
    }
    Engine::instance().run_pump();
    if (raise_interruption()) throw nb::python_error();
  });
  let_threads_outlive_interpreter();
  module.def("has_progress_thread", [] { return Engine::instance().has_thread(); });
  module.def("ticks_are_tsc", [] {
#if defined(__x86_64__)
    return kTscIsClock;
#else
    return false;
#endif
  });
  module.def("clock_anchor", [] {
    const ClockAnchor anchor = ClockAnchor::take();
    return nb::make_tuple(anchor.ticks, anchor.ns);
  });
  module.def("chunk_bytes", [](int num_ranks) { return chunk_bytes_for(num_ranks); });
  module.def("is_forked_child", [] { return g_forked_child.load(std::memory_order_relaxed); });
}
