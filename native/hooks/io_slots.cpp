// Puts the hooks of file I/O into a process that was not started with them, and takes them out again. Every loaded
// object calls the C library through slots that the dynamic linker has filled; those of the hooked functions get our
// functions, those of what dlopen() loads later, too. Not replaced: slots of the C library and the dynamic linker,
// those in which another library's function of that name is, and pointers that a program has got from dlsym().
//
// A thread may call through a slot at any moment: each is one aligned word, stored at once.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hooks/io.hpp"

namespace hocket::hooks::io {

namespace {

#if defined(__x86_64__)
constexpr uint32_t kDataPointer = R_X86_64_64;
constexpr uint32_t kGlobalData = R_X86_64_GLOB_DAT;
constexpr uint32_t kJump = R_X86_64_JUMP_SLOT;
#else
#error "the hooks are for x86-64"
#endif

constinit Original<void*(const char*, int)> g_dlopen{"dlopen"};
constinit Original<void*(void*, const char*)> g_dlsym{"dlsym"};

using Slot = std::atomic_ref<void*>;

struct Replaced {
  void* function;  // of the C library
  void* hook;
};

struct Range {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool has(uintptr_t address) const { return address >= begin && address < end; }
};

// One loaded object.
struct Object {
  uintptr_t base = 0;
  const ElfW(Phdr) * parts = nullptr;
  bool operator==(const Object&) const = default;
};

// Never destroyed: threads may load objects until the process ends.
struct Slots {
  std::mutex mutex;
  bool is_on = false;
  std::unordered_map<std::string_view, Replaced> functions;
  std::vector<Object> known;
  unsigned long long num_unloaded = 0;
  std::unordered_map<void**, void*> before;  // what was in a slot
  size_t num_refused = 0;                    // slots that could not be made writable
};
Slots& slots() {
  static auto* all = new Slots;  // NOLINT
  return *all;
}
// Whether libraries may have been loaded since the last pass over the slots.
constinit std::atomic<bool> g_has_news{false};

// Memory that is read-only now. The dynamic linker makes an object's slots so when they are filled, and not before.
std::vector<Range> read_only_memory() {
  std::vector<Range> found;
  std::FILE* file = std::fopen("/proc/self/maps", "re");
  if (!file) return found;
  std::array<char, 512> line{};
  bool begins = true;
  while (std::fgets(line.data(), static_cast<int>(line.size()), file)) {
    unsigned long begin = 0;
    unsigned long end = 0;
    std::array<char, 5> access{};
    if (begins && std::sscanf(line.data(), "%lx-%lx %4s", &begin, &end, access.data()) == 3 && access[1] == '-')
      found.push_back({begin, end});
    begins = std::strchr(line.data(), '\n') != nullptr;
  }
  std::fclose(file);
  return found;
}

struct Dynamic {
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  Range data, jumps;        // tables of relocations
  size_t num_relative = 0;  // the first ones of `data`, without symbols
};

bool read_dynamic(const dl_phdr_info& info, Dynamic& found) {
  const ElfW(Dyn)* entry = nullptr;
  for (size_t i = 0; i < info.dlpi_phnum; ++i)
    if (info.dlpi_phdr[i].p_type == PT_DYNAMIC)
      entry = reinterpret_cast<const ElfW(Dyn)*>(info.dlpi_addr + info.dlpi_phdr[i].p_vaddr);
  if (!entry) return false;
  // The dynamic linker has made addresses of these, except in objects whose table it cannot write.
  const auto at = [&](uintptr_t value) { return value < info.dlpi_addr ? info.dlpi_addr + value : value; };
  size_t data_nbytes = 0;
  size_t jumps_nbytes = 0;
  bool has_addends = true;
  for (; entry->d_tag != DT_NULL; ++entry) {
    const uintptr_t value = entry->d_un.d_val;
    switch (entry->d_tag) {
      case DT_SYMTAB:
        found.symbols = reinterpret_cast<const ElfW(Sym)*>(at(value));
        break;
      case DT_STRTAB:
        found.names = reinterpret_cast<const char*>(at(value));
        break;
      case DT_RELA:
        found.data.begin = at(value);
        break;
      case DT_RELASZ:
        data_nbytes = value;
        break;
      case DT_RELACOUNT:
        found.num_relative = value;
        break;
      case DT_JMPREL:
        found.jumps.begin = at(value);
        break;
      case DT_PLTRELSZ:
        jumps_nbytes = value;
        break;
      case DT_PLTREL:
        has_addends = value == DT_RELA;
        break;
      default:
        break;
    }
  }
  if (!has_addends) jumps_nbytes = 0;
  found.data.end = found.data.begin + (found.data.begin ? data_nbytes : 0);
  found.jumps.end = found.jumps.begin + (found.jumps.begin ? jumps_nbytes : 0);
  return found.symbols && found.names;
}

Range read_only_slots(const dl_phdr_info& info) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  for (size_t i = 0; i < info.dlpi_phnum; ++i) {
    const auto& part = info.dlpi_phdr[i];
    if (part.p_type != PT_GNU_RELRO) continue;
    const uintptr_t begin = info.dlpi_addr + part.p_vaddr;
    return {begin & ~(page - 1), (begin + part.p_memsz) & ~(page - 1)};  // as the dynamic linker rounds them
  }
  return {};
}

bool is_part(const dl_phdr_info& info, uintptr_t address, uint32_t flags) {
  for (size_t i = 0; i < info.dlpi_phnum; ++i) {
    const auto& part = info.dlpi_phdr[i];
    const uintptr_t begin = info.dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_LOAD && (part.p_flags & flags) == flags && address >= begin && address < begin + part.p_memsz)
      return true;
  }
  return false;
}

// This library, the C library's parts and the dynamic linker.
bool is_left_alone(const dl_phdr_info& info) {
  if (is_part(info, reinterpret_cast<uintptr_t>(&is_left_alone), 0)) return true;
  const std::string_view path = info.dlpi_name ? info.dlpi_name : "";
  const std::string_view name = path.substr(path.rfind('/') + 1);
  for (const std::string_view each : {"libc.so", "libpthread.so", "libdl.so", "librt.so", "ld-linux", "linux-vdso"})
    if (name.starts_with(each)) return true;
  return false;
}

// Calls `visit(slot, name, may_be_unused)` for each slot that the dynamic linker fills with a function of that name,
// some of them by the first call.
template <typename Visit>
void each_slot(const dl_phdr_info& info, Visit visit) {
  Dynamic dynamic;
  if (!read_dynamic(info, dynamic)) return;
  for (const Range& table : {dynamic.data, dynamic.jumps}) {
    const auto* relocation = reinterpret_cast<const ElfW(Rela)*>(table.begin);
    const auto* const end = reinterpret_cast<const ElfW(Rela)*>(table.end);
    if (table.begin == dynamic.data.begin)
      relocation += std::min<size_t>(dynamic.num_relative, static_cast<size_t>(end - relocation));
    for (; relocation < end; ++relocation) {
      const auto type = static_cast<uint32_t>(ELF64_R_TYPE(relocation->r_info));
      const auto symbol = ELF64_R_SYM(relocation->r_info);
      if (symbol == 0 || (type != kDataPointer && type != kGlobalData && type != kJump)) continue;
      if (dynamic.symbols[symbol].st_shndx != SHN_UNDEF || (type == kDataPointer && relocation->r_addend != 0))
        continue;
      const uintptr_t place = info.dlpi_addr + relocation->r_offset;
      if (place % sizeof(void*) == 0 && is_part(info, place, PF_W))
        visit(reinterpret_cast<void**>(place), dynamic.names + dynamic.symbols[symbol].st_name, type == kJump);
    }
  }
}

// Makes slots of one object writable while it exists.
class Writable {
 public:
  explicit Writable(const Range& read_only) : read_only_(read_only) {}
  ~Writable() {
    if (is_open_) protect(PROT_READ);
  }
  Writable(const Writable&) = delete;
  Writable& operator=(const Writable&) = delete;
  bool store(void** slot, void* value) {
    if (read_only_.has(reinterpret_cast<uintptr_t>(slot)) && !is_open_) {
      if (!protect(PROT_READ | PROT_WRITE)) return false;
      is_open_ = true;
    }
    Slot(*slot).store(value, std::memory_order_release);
    return true;
  }

 private:
  bool protect(int access) const {
    return mprotect(reinterpret_cast<void*>(read_only_.begin), read_only_.end - read_only_.begin, access) == 0;
  }
  Range read_only_;
  bool is_open_ = false;
};

void replace_in(const dl_phdr_info& info) {
  Slots& all = slots();
  Writable memory(read_only_slots(info));
  each_slot(info, [&](void** slot, const char* name, bool may_be_unused) {
    const auto found = all.functions.find(name);
    if (found == all.functions.end()) return;
    void* const now = Slot(*slot).load(std::memory_order_acquire);
    // Before the first call a slot leads to the dynamic linker, by code of the object itself.
    const bool is_unused = may_be_unused && is_part(info, reinterpret_cast<uintptr_t>(now), PF_X);
    if (now != found->second.function && !is_unused) return;
    if (memory.store(slot, found->second.hook))
      all.before.insert_or_assign(slot, now);
    else
      ++all.num_refused;
  });
}

struct Look {
  std::vector<Range> read_only;
  bool is_first = true;
  bool is_whole = true;
};

int look_at_object(dl_phdr_info* info, size_t, void* data) {
  auto& look = *static_cast<Look*>(data);
  Slots& all = slots();
  if (look.is_first && info->dlpi_subs != all.num_unloaded) {
    all.num_unloaded = info->dlpi_subs;
    all.known.clear();  // an object may lie where another one was
  }
  look.is_first = false;
  const Object object{info->dlpi_addr, info->dlpi_phdr};
  if (std::find(all.known.begin(), all.known.end(), object) != all.known.end()) return 0;
  const Range filled = read_only_slots(*info);
  const bool is_filled = filled.begin >= filled.end || std::any_of(look.read_only.begin(), look.read_only.end(),
                                                                   [&](const Range& r) { return r.has(filled.begin); });
  if (!is_filled) {  // another thread is loading it
    look.is_whole = false;
    return 0;
  }
  all.known.push_back(object);
  if (!is_left_alone(*info)) replace_in(*info);
  return 0;
}

void look_at_objects() {
  const Inside inside;
  Slots& all = slots();
  const std::lock_guard guard(all.mutex);
  if (!all.is_on) return;
  Look look{.read_only = read_only_memory()};
  dl_iterate_phdr(look_at_object, &look);
  g_has_news.store(!look.is_whole, std::memory_order_relaxed);
}

int restore_object(dl_phdr_info* info, size_t, void*) {
  Slots& all = slots();
  if (is_left_alone(*info)) return 0;
  Writable memory(read_only_slots(*info));
  each_slot(*info, [&](void** slot, const char* name, bool) {
    const auto found = all.functions.find(name);
    if (found == all.functions.end() || Slot(*slot).load(std::memory_order_relaxed) != found->second.hook) return;
    const auto before = all.before.find(slot);
    memory.store(slot, before == all.before.end() ? found->second.function : before->second);
  });
  return 0;
}

// Under the lock.
void take_out() {
  dl_iterate_phdr(restore_object, nullptr);
  slots().is_on = false;
  slots().before.clear();
}

// A library without a folder is looked for in those that the caller names, and the dynamic linker knows the caller by
// the address to which dlopen() returns. So such a call is handed on by a jump, and what it loads is found later.
void* open_library(const char* path, int mode) {
  const bool needs_caller = !path || !std::strchr(path, '/') || std::strchr(path, '$');
  if (needs_caller) {
    g_has_news.store(true, std::memory_order_relaxed);
    return g_dlopen(path, mode);
  }
  void* const library = g_dlopen(path, mode);
  if (library) look_at_objects();
  return library;
}

// Who loads a library asks for one of its functions next. The caller matters here, too.
void* find_function(void* library, const char* name) {
  if (g_has_news.load(std::memory_order_relaxed)) look_at_objects();
  return g_dlsym(library, name);
}

// What the C library has under these names; looked up without the lock, as the dynamic linker has locks of its own.
std::unordered_map<std::string_view, Replaced> replaceable_functions() {
  std::unordered_map<std::string_view, Replaced> found;
  const auto add = [&](const char* name, void* hook) {
    void* const function = dlsym(RTLD_NEXT, name);
    // Another library's comes before: what is in the slots leads there.
    if (function && dlsym(RTLD_DEFAULT, name) == function) found[name] = {function, hook};
  };
  for (const std::span<const Hook> hooks : all_hooks())
    for (const Hook& hook : hooks) add(hook.name, hook.replacement);
  g_dlopen.pointer();
  g_dlsym.pointer();
  add("dlopen", reinterpret_cast<void*>(&open_library));
  add("dlsym", reinterpret_cast<void*>(&find_function));
  return found;
}

}  // namespace

void lock_slots() { slots().mutex.lock(); }
void unlock_slots() { slots().mutex.unlock(); }

}  // namespace hocket::hooks::io

using namespace hocket::hooks::io;

// 0: it records now; EALREADY: it did so already; EINVAL: `recorder` is of another build; ENODEV: it is off; EACCES:
// functions cannot be replaced here. One thread at a time.
HOCKET_HOOK int hocket_start_io(hocket::Recorder* recorder, const char* build) {
  const hocket::hooks::Inside inside;
  if (g_is_on.load(std::memory_order_acquire)) return EALREADY;
  if (std::strcmp(build, hocket::recorder_build()) != 0) return EINVAL;
  if (!recorder->is_on()) return ENODEV;
  hocket::Recorder::share(recorder);
  auto functions = replaceable_functions();
  {
    auto& all = slots();
    const std::lock_guard guard(all.mutex);
    all.functions = std::move(functions);
    all.known.clear();
    all.before.clear();
    all.num_refused = 0;
    all.is_on = true;
  }
  look_at_objects();
  {
    auto& all = slots();
    const std::lock_guard guard(all.mutex);
    if (all.num_refused != 0) {
      take_out();
      return EACCES;
    }
  }
  forget_range(0, ~0u);
  start_recording();
  return 0;
}

// 0, or EALREADY: the hooks are not in their places by hocket_start_io().
HOCKET_HOOK int hocket_stop_io() {
  const hocket::hooks::Inside inside;
  auto& all = slots();
  const std::lock_guard guard(all.mutex);
  if (!all.is_on) return EALREADY;
  stop_recording();
  take_out();
  return 0;
}
