// Calls a profiler plugin as NCCL does (src/plugin/profiler.cc, src/enqueue.cc and src/transport/profiler.cc of NCCL
// 2.27 to 2.30): the program's thread begins and stops operations, and a thread of its own, the proxy, says what
// channels of kernels do. The declarations follow NCCL's documentation, not those of the plugin.
//
// Usage: nccl_program VERSION SCENARIO; the plugin is that of NCCL_PROFILER_PLUGIN.
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

enum { kGroup = 1, kColl = 2, kP2p = 4, kProxyOp = 8, kProxyCtrl = 32, kKernelCh = 64, kNet = 128 };
enum { kGroupApi = 256, kCollApi = 512, kKernelLaunch = 2048, kCeColl = 4096, kCeSync = 8192 };
enum { kKernelChStop = 22, kGroupStartApiStop = 23, kProxyCtrlIdle = 13 };

struct Head4 {
  uint8_t type;
  void* parentObj;
  int rank;
};
struct Head5 {
  uint64_t type;
  void* parentObj;
  int rank;
};
struct Coll4 {
  uint64_t seqNumber;
  const char* func;
  void const* sendBuff;
  void* recvBuff;
  size_t count;
  int root;
  const char* datatype;
  uint8_t nChannels;
  uint8_t nWarps;
  const char* algo;
  const char* proto;
};
struct Coll5 : Coll4 {
  void* parentGroup;
};
struct P2p4 {
  const char* func;
  void* buff;
  const char* datatype;
  size_t count;
  int peer;
  uint8_t nChannels;
};
struct P2p5 : P2p4 {
  void* parentGroup;
};
struct ProxyOp {
  pid_t pid;
  uint8_t channelId;
  int peer;
  int nSteps;
  int chunkSize;
  int isSend;
};
struct KernelCh {
  uint8_t channelId;
  uint64_t pTimer;
};
struct NetPlugin {
  int64_t id;
  void* data;
};
struct CeColl {
  uint64_t seqNumber;
  const char* func;
  void const* sendBuff;
  void* recvBuff;
  size_t count;
  int root;
  const char* datatype;
  const char* syncStrategy;
  bool intraBatchSync;
  uint32_t batchSize;
  uint32_t numBatches;
  uint32_t ceSeqNum;
  void* stream;
};
template <typename Head>
struct Descriptor : Head {
  union {
    Coll5 coll;
    P2p5 p2p;
    ProxyOp proxyOp;
    KernelCh kernelCh;
    NetPlugin netPlugin;
    CeColl ceColl;
  };
};

using Logger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);
struct Plugin {
  const char* name;
  void* init;
  int (*startEvent)(void* context, void** handle, void* descriptor);
  int (*stopEvent)(void* handle);
  int (*recordEventState)(void* handle, int state, void* arguments);
  int (*finalize)(void* context);
};

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

int g_version;
Plugin* g_plugin;

void load_plugin() {
  void* library = dlopen(std::getenv("NCCL_PROFILER_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
  require(library, "no plugin");
  const std::string symbol = "ncclProfiler_v" + std::to_string(g_version);
  g_plugin = static_cast<Plugin*>(dlsym(library, symbol.c_str()));
  require(g_plugin && g_plugin->name && *g_plugin->name, "the plugin does not have this version");
}

// A thread that carries out what it is given, in order.
class Proxy {
 public:
  Proxy() : thread_([this] { run(); }) {}
  ~Proxy() {
    post({});
    thread_.join();
  }
  void post(std::function<void()> task) {
    const std::lock_guard guard(mutex_);
    tasks_.push_back(std::move(task));
    condition_.notify_one();
  }
  void wait() {
    std::promise<void> done;
    post([&] { done.set_value(); });
    done.get_future().wait();
  }

 private:
  void run() {
    while (true) {
      std::unique_lock lock(mutex_);
      condition_.wait(lock, [this] { return !tasks_.empty(); });
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      if (!task) return;
      task();
    }
  }
  std::mutex mutex_;
  std::condition_variable condition_;
  std::deque<std::function<void()>> tasks_;
  std::thread thread_;
};

class Comm {
 public:
  Comm(const char* name, uint64_t hash, int num_ranks, int rank) : rank_(rank) {
    int code = 0;
    const Logger log = nullptr;
    if (g_version == 4) {
      auto* init =
          reinterpret_cast<int (*)(void**, int*, const char*, uint64_t, int, int, int, Logger)>(g_plugin->init);
      code = init(&context_, &mask_, name, hash, 1, num_ranks, rank, log);
    } else {
      auto* init =
          reinterpret_cast<int (*)(void**, uint64_t, int*, const char*, int, int, int, Logger)>(g_plugin->init);
      code = init(&context_, hash, &mask_, name, 1, num_ranks, rank, log);
    }
    require(code == 0, "init failed");
  }
  int mask() const { return mask_; }
  bool is_profiled() const { return context_ != nullptr; }
  void finalize() {
    if (context_) require(g_plugin->finalize(context_) == 0, "finalize failed");
  }

  void* coll(const char* func, size_t count, const char* type, int root, int num_channels, const char* algo = "RING",
             const char* proto = "LL128") {
    return start(kColl, nullptr, [&](auto& event) {
      static_cast<Coll4&>(event.coll) = {
          seq_++, func, this, this, count, root, type, static_cast<uint8_t>(num_channels), 16, algo, proto};
    });
  }
  void* p2p(const char* func, size_t count, const char* type, int peer, int num_channels) {
    return start(kP2p, nullptr, [&](auto& event) {
      static_cast<P2p4&>(event.p2p) = {func, this, type, count, peer, static_cast<uint8_t>(num_channels)};
    });
  }
  void* channel(void* parent, int number) {
    return start(kKernelCh, parent, [&](auto& event) { event.kernelCh = {static_cast<uint8_t>(number), 123456789}; });
  }
  void* proxy_op(void* parent, pid_t pid) {
    return start(kProxyOp, parent, [&](auto& event) { event.proxyOp = {pid, 0, 1, 2, 4096, 1}; });
  }
  void* ce(const char* func, size_t count, const char* type) {
    return start(kCeColl, nullptr, [&](auto& event) {
      event.ceColl = {1, func, this, this, count, 0, type, "MC", false, 0, 0, 1, nullptr};
    });
  }
  void* other(uint64_t type, void* parent = nullptr) {
    return start(type, parent, [](auto&) {});
  }
  static void stop(void* handle) {
    if (handle) require(g_plugin->stopEvent(handle) == 0, "stop failed");
  }
  static void stop_channel(void* handle) {
    uint64_t end[2] = {987654321, 0};
    if (handle) require(g_plugin->recordEventState(handle, kKernelChStop, end) == 0, "state failed");
    stop(handle);
  }

 private:
  template <typename Fill>
  void* start(uint64_t type, void* parent, Fill fill) {
    void* handle = reinterpret_cast<void*>(0x5a5a);  // of an event before
    int code = 0;
    if (g_version == 4) {
      Descriptor<Head4> event;
      std::memset(static_cast<void*>(&event), 0xa5, sizeof event);  // the padding is anything
      event.type = static_cast<uint8_t>(type);
      event.parentObj = parent;
      event.rank = rank_;
      fill(event);
      code = g_plugin->startEvent(context_, &handle, &event);
    } else {
      Descriptor<Head5> event;
      std::memset(static_cast<void*>(&event), 0, sizeof event);
      event.type = type;
      event.parentObj = parent;
      event.rank = rank_;
      fill(event);
      code = g_plugin->startEvent(context_, &handle, &event);
    }
    require(code == 0, "start failed");
    return handle;
  }

  void* context_ = nullptr;
  int mask_ = -1;
  int rank_;
  uint64_t seq_ = 0;
};

struct Kernel {
  Comm* comm;
  void* task;
  int num_channels;
};

void run_kernels(Proxy& proxy, const std::vector<Kernel>& kernels) {
  proxy.post([kernels] {
    for (const Kernel& each : kernels) {
      std::vector<void*> handles;
      for (int c = 0; c < each.num_channels; ++c) handles.push_back(each.comm->channel(each.task, c));
      for (void* handle : handles) Comm::stop_channel(handle);
    }
  });
}

// The order of one launch: events of the group and the interface, then operations, then their end.
void launch(Comm& comm, Proxy& proxy, const std::function<std::vector<Kernel>()>& make) {
  void* api = g_version >= 5 ? comm.other(kGroupApi) : nullptr;
  if (api) g_plugin->recordEventState(api, kGroupStartApiStop, nullptr);
  void* coll_api = g_version >= 5 ? comm.other(kCollApi, api) : nullptr;
  void* kernel_launch = g_version >= 5 ? comm.other(kKernelLaunch, api) : nullptr;
  void* group = comm.other(kGroup);
  const std::vector<Kernel> kernels = make();
  run_kernels(proxy, kernels);
  for (const Kernel& each : kernels) Comm::stop(each.task);
  for (void* each : {group, kernel_launch, coll_api, api}) Comm::stop(each);
}

void every_function() {
  Comm comm("tp", 0xabc, 4, 1);
  Proxy proxy;
  proxy.post([&] { Comm::stop(comm.other(kProxyCtrl)); });
  const auto one = [&](const char* func, size_t count, const char* type, int root, int num_channels) {
    launch(comm, proxy,
           [&] { return std::vector{Kernel{&comm, comm.coll(func, count, type, root, num_channels), num_channels}}; });
    proxy.wait();
  };
  one("AllReduce", 1000, "ncclFloat32", 0, 2);
  one("Broadcast", 64, "ncclInt8", 3, 1);
  one("Reduce", 10, "ncclFloat64", 1, 1);
  one("AllGather", 48, "ncclInt8", 0, 4);
  one("ReduceScatter", 5, "ncclBfloat16", 0, 1);
  one("AlltoAll", 6, "ncclInt32", 0, 1);
  one("Gather", 7, "ncclFloat16", 0, 1);
  one("Scatter", 8, "ncclUint64", 1, 1);
  one("Scatter", 8, "ncclUint64", 2, 1);
  one("AllReduce", 9, "Unknown", 0, 1);
  one("AllReduce", 9, "ncclFloat8e4m3", 0, 1);
  one("Brandnew", 3, "ncclInt64", 0, 1);
  launch(comm, proxy, [&] {
    return std::vector{Kernel{&comm, comm.p2p("Send", 20, "ncclFloat32", 2, 2), 2},
                       Kernel{&comm, comm.p2p("Recv", 30, "ncclFloat32", 0, 2), 2}};
  });
  proxy.wait();
  comm.finalize();
}

// One group of operations in two communicators whose channels overlap, and all orders that may happen.
void orders() {
  Comm first("first", 1, 2, 0);
  Comm second(nullptr, 2, 2, 1);
  Proxy proxy;
  // The kernel begins and ends before the operation is said to be handed over.
  void* task = first.coll("AllReduce", 1, "ncclInt32", 0, 1);
  run_kernels(proxy, {{&first, task, 1}});
  proxy.wait();
  Comm::stop(task);
  // Its channels begin afterwards, the second one after the first has ended.
  task = first.coll("AllReduce", 2, "ncclInt32", 0, 2);
  Comm::stop(task);
  for (int c : {1, 0}) {
    void* channel = first.channel(task, c);
    Comm::stop_channel(channel);
  }
  // Two communicators, channels in turns.
  void* mine = first.coll("AllReduce", 3, "ncclInt32", 0, 2);
  void* other = second.coll("AllReduce", 4, "ncclInt32", 0, 2);
  std::vector<void*> channels;
  for (int c = 0; c < 2; ++c)
    for (auto [comm, parent] : {std::pair{&first, mine}, std::pair{&second, other}})
      channels.push_back(comm->channel(parent, c));
  Comm::stop(other);
  Comm::stop(mine);
  for (size_t i = channels.size(); i-- > 0;) Comm::stop_channel(channels[i]);
  // A proxy operation of another process (PXN) has a parent of that process; parents that are none.
  require(!first.proxy_op(reinterpret_cast<void*>(0xdeadbeef), getpid() + 1), "a proxy operation is recorded");
  require(!first.channel(nullptr, 0), "a channel without a parent is recorded");
  require(!first.channel(reinterpret_cast<void*>(0xdeadbeef000), 0), "a channel of an unknown parent is recorded");
  require(!first.channel(mine, 0), "a channel of an operation that is over is recorded");
  Comm::stop(reinterpret_cast<void*>(0xdeadbeef000));
  require(!first.other(kNet), "an event of a network plugin is recorded");
  first.finalize();
  second.finalize();
}

// Operations without channels, and a communicator that ends with operations in flight.
void unfinished() {
  Comm silent("silent", 3, 2, 0);
  for (int i = 0; i < 1030; ++i) Comm::stop(silent.coll("AllReduce", 1, "ncclInt8", 0, 1));
  Comm lossy("lossy", 4, 2, 0);
  for (int i = 0; i < 20; ++i) {
    void* task = lossy.coll("AllReduce", 1, "ncclInt8", 0, 1);
    Comm::stop(task);
    if (i % 10 != 0) Comm::stop_channel(lossy.channel(task, 0));
  }
  Comm aborted("aborted", 5, 2, 0);
  void* done = aborted.coll("AllReduce", 1, "ncclInt8", 0, 1);
  Comm::stop(done);
  Comm::stop_channel(aborted.channel(done, 0));
  void* task = aborted.coll("AllReduce", 2, "ncclInt8", 0, 2);
  Comm::stop(task);
  void* channel = aborted.channel(task, 0);
  aborted.finalize();
  Comm::stop_channel(channel);  // the proxy is late
  require(!aborted.channel(task, 1), "a channel of a communicator that is gone is recorded");
  void* stale = aborted.coll("AllReduce", 3, "ncclInt8", 0, 1);
  require(!stale, "an operation of a communicator that is gone is recorded");
  silent.finalize();
  lossy.finalize();
}

void threads() {
  constexpr int kThreads = 4, kOperations = 500, kChannels = 3;
  std::vector<std::thread> all;
  for (int t = 0; t < kThreads; ++t)
    all.emplace_back([t] {
      Comm comm(("thread " + std::to_string(t)).c_str(), 100 + static_cast<uint64_t>(t), 2, 0);
      Proxy proxy;
      for (int i = 0; i < kOperations; ++i) {
        launch(comm, proxy, [&] {
          return std::vector{
              Kernel{&comm, comm.coll("AllReduce", static_cast<size_t>(i + 1), "ncclInt8", 0, kChannels), kChannels}};
        });
        if (i % 50 == 49) proxy.wait();
      }
      proxy.wait();
      comm.finalize();
    });
  for (std::thread& each : all) each.join();
}

void copy_engine() {
  Comm comm("ce", 6, 4, 0);
  require(g_version < 6 || (comm.mask() & kCeColl), "copies by the copy engine are not asked for");
  void* task = comm.ce("AllGather", 10, "ncclInt8");
  Comm::stop(comm.other(kCeSync, task));
  Comm::stop(task);
  comm.finalize();
}

// What hocket makes for itself, and what the program makes afterwards on the same thread and meanwhile on another one.
void groups_of_hocket() {
  void* library = dlopen(std::getenv("NCCL_PROFILER_PLUGIN"), RTLD_NOW | RTLD_NOLOAD);
  auto* make_own = reinterpret_cast<void (*)(int)>(dlsym(library, "hocket_makes_own_groups"));
  const auto reduce = [](Comm& comm) {
    void* task = comm.coll("AllReduce", 1, "ncclInt8", 0, 1);
    if (task) Comm::stop(task);
    return task != nullptr;
  };
  make_own(1);
  Comm own("own", 8, 2, 0);
  require(!own.is_profiled() && own.mask() == 0 && !reduce(own), "an operation of hocket's own group is recorded");
  std::thread([&] {
    Comm other("other", 9, 2, 0);
    require(reduce(other), "a group of another thread is not recorded");
    other.finalize();
  }).join();
  make_own(0);
  Comm mine("program's", 10, 2, 0);
  require(reduce(mine) && !reduce(own), "the program's group is not recorded, or hocket's own one is");
  mine.finalize();
}

// Two operations, the second one in flight until the process is killed; rank 1 does not begin it.
void hang() {
  const int rank = std::atoi(std::getenv("RANK"));
  Comm comm("world", 0x77, 2, rank);
  void* task = comm.coll("AllReduce", 100, "ncclFloat32", 0, 1);
  Comm::stop(task);
  Comm::stop_channel(comm.channel(task, 0));
  if (rank == 0) {
    task = comm.coll("AllReduce", 200, "ncclFloat32", 0, 2);
    Comm::stop(task);
    comm.channel(task, 0);
  }
  std::puts("ready");
  std::fflush(stdout);
  alarm(120);
  while (true) pause();
}

}  // namespace

int main(int, char** arguments) {
  g_version = std::atoi(arguments[1]);
  load_plugin();
  const std::string scenario = arguments[2];
  if (scenario == "off") {
    Comm comm("off", 1, 2, 0);
    require(!comm.is_profiled() && comm.mask() == 0, "events are asked for");
    require(!comm.coll("AllReduce", 1, "ncclInt8", 0, 1), "an event is recorded");
  }
  if (scenario == "mask") {
    Comm comm("mask", 1, 2, 0);
    std::printf("%d\n", comm.mask());
    comm.finalize();
  }
  if (scenario == "every_function") every_function();
  if (scenario == "orders") orders();
  if (scenario == "unfinished") unfinished();
  if (scenario == "threads") threads();
  if (scenario == "copy_engine") copy_engine();
  if (scenario == "groups_of_hocket") groups_of_hocket();
  if (scenario == "hang") hang();
  return 0;
}
