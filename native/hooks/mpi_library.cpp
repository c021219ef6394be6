#include "hooks/mpi_library.hpp"

#include <dlfcn.h>
#include <link.h>

#include <initializer_list>
#include <mutex>
#include <string>
#include <utility>

namespace hocket::hooks {

namespace {

constexpr MpiConstants kMpich = {
    .name = "mpich",
    .handle_nbytes = 4,
    .status_nbytes = 20,
    .source_at = 8,
    .tag_at = 12,
    .error_at = 16,
    .in_place = ~uintptr_t{0},
    .status_ignore = 1,
    .any_source = -2,
    .proc_null = -1,
    .root = -3,
    .pending_error = 18,
    .unsupported_error = 44,
    .graph = 1,
    .cart = 2,
    .dist_graph = 3,
    .has_exchange_status = false,
    .first_variable_class = 240,
    .bind_to_nothing = 9700,
    .bind_to_communicator = 9701,
};
constexpr MpiConstants kOpenMpi = {
    .name = "openmpi",
    .handle_nbytes = 8,
    .status_nbytes = 24,
    .source_at = 0,
    .tag_at = 4,
    .error_at = 8,
    .in_place = 1,
    .status_ignore = 0,
    .any_source = -1,
    .proc_null = -2,
    .root = -4,
    .pending_error = 19,
    .unsupported_error = 52,
    .graph = 2,
    .cart = 1,
    .dist_graph = 3,
    .has_exchange_status = true,
    .first_variable_class = 0,
    .bind_to_nothing = 0,
    .bind_to_communicator = 1,
};
constexpr MpiConstants kStandardAbi = {
    .name = "mpi",
    .handle_nbytes = 8,
    .status_nbytes = 32,
    .source_at = 0,
    .tag_at = 4,
    .error_at = 8,
    .in_place = 1,
    .status_ignore = 0,
    .any_source = -1,
    .proc_null = -3,
    .root = -4,
    .pending_error = 18,
    .unsupported_error = 55,
    .graph = 212,
    .cart = 211,
    .dist_graph = 213,
    .has_exchange_status = false,
    .first_variable_class = -1,
    .bind_to_nothing = -1,
    .bind_to_communicator = -1,
};

// Which library the code in a range of addresses calls. Ranges are only added.
struct CallerRange {
  uintptr_t begin;
  uintptr_t end;
  HookedMpi* library;
};
std::array<CallerRange, 64> g_ranges;
std::atomic<size_t> g_num_ranges{0};
std::mutex g_mutex;
std::array<HookedMpi*, kMostLibraries> g_libraries{};
size_t g_num_libraries = 0;

struct Module {
  uintptr_t address = 0;
  uintptr_t begin = 0;
  uintptr_t end = 0;
  std::string path;
};

int find_module(dl_phdr_info* info, size_t, void* argument) {
  auto& module = *static_cast<Module*>(argument);
  uintptr_t begin = ~uintptr_t{0};
  uintptr_t end = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
    const uintptr_t from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
    begin = std::min(begin, from);
    end = std::max(end, from + info->dlpi_phdr[i].p_memsz);
  }
  if (module.address < begin || module.address >= end) return 0;
  module.begin = begin;
  module.end = end;
  module.path = info->dlpi_name;
  return 1;
}

}  // namespace

HookedMpi* HookedMpi::of_caller(const void* caller) {
  const auto address = reinterpret_cast<uintptr_t>(caller);
  const size_t count = g_num_ranges.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i)
    if (address >= g_ranges[i].begin && address < g_ranges[i].end) return g_ranges[i].library;
  return look_up(caller);
}

HookedMpi* HookedMpi::look_up(const void* caller) {
  Module module;
  module.address = reinterpret_cast<uintptr_t>(caller);
  dl_iterate_phdr(find_module, &module);
  // The program itself has no name here.
  void* handle = dlopen(module.path.empty() ? nullptr : module.path.c_str(), RTLD_NOLOAD | RTLD_LAZY);
  const void* symbol = handle ? dlsym(handle, "PMPI_Init") : nullptr;
  if (!symbol) symbol = dlsym(RTLD_DEFAULT, "PMPI_Init");
  const std::lock_guard guard(g_mutex);
  HookedMpi* library = symbol ? of_symbol(symbol) : g_libraries[0];
  const size_t count = g_num_ranges.load(std::memory_order_relaxed);
  if (library && module.end != 0 && count < g_ranges.size()) {
    g_ranges[count] = {module.begin, module.end, library};
    g_num_ranges.store(count + 1, std::memory_order_release);
  }
  return library;
}

HookedMpi* HookedMpi::of_symbol(const void* symbol) {
  Dl_info info{};
  if (dladdr(symbol, &info) == 0) return nullptr;
  void* handle = dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
  if (!handle) handle = dlopen(nullptr, RTLD_LAZY);  // MPI is linked into the program
  for (size_t i = 0; i < g_num_libraries; ++i)
    if (g_libraries[i]->library_ == handle) return g_libraries[i];
  if (g_num_libraries == kMostLibraries) return nullptr;
  auto* library = new HookedMpi(handle, g_num_libraries);  // NOLINT: threads may use it until the process ends
  g_libraries[g_num_libraries++] = library;
  return library;
}

HookedMpi::HookedMpi(void* library, size_t number) : library_(library), number_(number) {
  const auto get = [&]<typename Function>(Function& function, const char* name) {
    function = reinterpret_cast<Function>(find(name));
  };
  get(functions_.type_size_x, "PMPI_Type_size_x");
  get(functions_.get_elements_x, "PMPI_Get_elements_x");
  get(functions_.test_cancelled, "PMPI_Test_cancelled");
  get(functions_.initialized, "PMPI_Initialized");
  get(functions_.comm_rank, "PMPI_Comm_rank");
  get(functions_.comm_size, "PMPI_Comm_size");
  get(functions_.comm_test_inter, "PMPI_Comm_test_inter");
  get(functions_.comm_remote_size, "PMPI_Comm_remote_size");
  get(functions_.comm_get_name, "PMPI_Comm_get_name");
  get(functions_.comm_group, "PMPI_Comm_group");
  get(functions_.comm_remote_group, "PMPI_Comm_remote_group");
  get(functions_.group_size, "PMPI_Group_size");
  get(functions_.group_rank, "PMPI_Group_rank");
  get(functions_.group_translate_ranks, "PMPI_Group_translate_ranks");
  get(functions_.group_free, "PMPI_Group_free");
  get(functions_.topo_test, "PMPI_Topo_test");
  get(functions_.cartdim_get, "PMPI_Cartdim_get");
  get(functions_.graph_neighbors_count, "PMPI_Graph_neighbors_count");
  get(functions_.dist_graph_neighbors_count, "PMPI_Dist_graph_neighbors_count");
  get(functions_.win_get_group, "PMPI_Win_get_group");
  get(functions_.win_get_name, "PMPI_Win_get_name");
  get(functions_.file_get_byte_offset, "PMPI_File_get_byte_offset");
  get(functions_.file_get_position, "PMPI_File_get_position");

  int major = -1;
  int minor = -1;
  if (auto* version = reinterpret_cast<int (*)(int*, int*)>(find("PMPI_Abi_get_version"))) version(&major, &minor);
  if (major > 0) {
    know_standard_abi();
  } else if (dlsym(library_, "ompi_mpi_comm_world")) {
    know_open_mpi();
  } else {
    know_mpich();
  }
}

void* HookedMpi::find(const char* name) const {
  void* found = dlsym(library_, name);
  // A library built without the profiling interface has the plain name only.
  return found || std::strncmp(name, "PMPI_", 5) != 0 ? found : dlsym(library_, name + 1);
}

void HookedMpi::know_mpich() {
  constants_ = &kMpich;
  world_ = 0x44000000;
  byte_ = 0x4c00010d;
  // The numbers of types contain their sizes; what they mean is in the last byte.
  constexpr std::pair<Handle, DType> kTypes[] = {
      {0x4c000101, DType::int8},    {0x4c000102, DType::uint8},      {0x4c000203, DType::int16},
      {0x4c000204, DType::uint16},  {0x4c000405, DType::int32},      {0x4c000406, DType::uint32},
      {0x4c000807, DType::int64},   {0x4c000808, DType::uint64},     {0x4c000809, DType::int64},
      {0x4c00040a, DType::float32}, {0x4c00080b, DType::float64},    {0x4c00010d, DType::uint8},
      {0x4c00010f, DType::uint8},   {0x4c000118, DType::int8},       {0x4c000819, DType::uint64},
      {0x4c00041b, DType::int32},   {0x4c00041c, DType::float32},    {0x4c00081e, DType::complex64},
      {0x4c00081f, DType::float64}, {0x4c001022, DType::complex128}, {0x4c000226, DType::float16},
      {0x4c000427, DType::float32}, {0x4c000829, DType::float64},    {0x4c00012d, DType::int8},
      {0x4c00022f, DType::int16},   {0x4c000430, DType::int32},      {0x4c000831, DType::int64},
      {0x4c000133, DType::boolean}, {0x4c000137, DType::int8},       {0x4c000238, DType::int16},
      {0x4c000439, DType::int32},   {0x4c00083a, DType::int64},      {0x4c00013b, DType::uint8},
      {0x4c00023c, DType::uint16},  {0x4c00043d, DType::uint32},     {0x4c00083e, DType::uint64},
      {0x4c00013f, DType::boolean}, {0x4c000840, DType::complex64},  {0x4c001041, DType::complex128},
      {0x4c000843, DType::int64},   {0x4c000844, DType::int64},      {0x4c000845, DType::int64},
  };
  dtypes_.insert(std::begin(kTypes), std::end(kTypes));
  constexpr std::array kOps = {ReduceOp::max,  ReduceOp::min, ReduceOp::sum, ReduceOp::prod, ReduceOp::land,
                               ReduceOp::band, ReduceOp::lor, ReduceOp::bor, ReduceOp::lxor, ReduceOp::bxor};
  for (size_t i = 0; i < kOps.size(); ++i) reductions_.emplace(0x58000001 + static_cast<Handle>(i), kOps[i]);
}

void HookedMpi::know_open_mpi() {
  constants_ = &kOpenMpi;
  const auto address = [&](const char* name) {
    return reinterpret_cast<Handle>(dlsym(library_, (std::string("ompi_") + name).c_str()));
  };
  world_ = address("mpi_comm_world");
  byte_ = address("mpi_byte");
  nulls_ = {address("mpi_comm_null"), address("mpi_datatype_null"), address("request_null"), address("message_null"),
            address("mpi_win_null")};
  constexpr std::pair<const char*, DType> kTypes[] = {
      {"char", DType::int8},
      {"signed_char", DType::int8},
      {"unsigned_char", DType::uint8},
      {"byte", DType::uint8},
      {"packed", DType::uint8},
      {"short", DType::int16},
      {"unsigned_short", DType::uint16},
      {"int", DType::int32},
      {"unsigned", DType::uint32},
      {"long", DType::int64},
      {"unsigned_long", DType::uint64},
      {"long_long_int", DType::int64},
      {"unsigned_long_long", DType::uint64},
      {"float", DType::float32},
      {"double", DType::float64},
      {"int8_t", DType::int8},
      {"int16_t", DType::int16},
      {"int32_t", DType::int32},
      {"int64_t", DType::int64},
      {"uint8_t", DType::uint8},
      {"uint16_t", DType::uint16},
      {"uint32_t", DType::uint32},
      {"uint64_t", DType::uint64},
      {"c_bool", DType::boolean},
      {"cxx_bool", DType::boolean},
      {"c_complex", DType::complex64},
      {"c_float_complex", DType::complex64},
      {"c_double_complex", DType::complex128},
      {"aint", DType::int64},
      {"offset", DType::int64},
      {"count", DType::int64},
      {"integer", DType::int32},
      {"real", DType::float32},
      {"dblprec", DType::float64},
      {"short_float", DType::float16},
  };
  for (const auto& [name, dtype] : kTypes)
    if (const Handle type = address((std::string("mpi_") + name).c_str())) dtypes_.emplace(type, dtype);
  constexpr std::pair<const char*, ReduceOp> kOps[] = {
      {"max", ReduceOp::max},   {"min", ReduceOp::min},   {"sum", ReduceOp::sum},   {"prod", ReduceOp::prod},
      {"land", ReduceOp::land}, {"lor", ReduceOp::lor},   {"lxor", ReduceOp::lxor}, {"band", ReduceOp::band},
      {"bor", ReduceOp::bor},   {"bxor", ReduceOp::bxor},
  };
  for (const auto& [name, op] : kOps)
    if (const Handle handle = address((std::string("mpi_op_") + name).c_str())) reductions_.emplace(handle, op);
}

void HookedMpi::know_standard_abi() {
  constants_ = &kStandardAbi;
  world_ = 0x101;
  byte_ = 0x247;
  nulls_ = {0x100, 0x200, 0x180, 0x128, 0x110};
  constexpr std::pair<Handle, DType> kTypes[] = {
      {0x201, DType::int64},      {0x202, DType::int64},   {0x203, DType::int64},     {0x207, DType::uint8},
      {0x208, DType::int16},      {0x209, DType::int32},   {0x20a, DType::int64},     {0x20b, DType::int64},
      {0x20c, DType::uint16},     {0x20d, DType::uint32},  {0x20e, DType::uint64},    {0x20f, DType::uint64},
      {0x210, DType::float32},    {0x214, DType::float64}, {0x212, DType::complex64}, {0x216, DType::complex128},
      {0x219, DType::int32},      {0x21a, DType::float32}, {0x21b, DType::complex64}, {0x21c, DType::float64},
      {0x21d, DType::complex128}, {0x238, DType::boolean}, {0x239, DType::boolean},   {0x240, DType::int8},
      {0x241, DType::uint8},      {0x243, DType::int8},    {0x244, DType::int8},      {0x245, DType::uint8},
      {0x247, DType::uint8},      {0x248, DType::int16},   {0x249, DType::uint16},    {0x250, DType::int32},
      {0x251, DType::uint32},     {0x258, DType::int64},   {0x259, DType::uint64},    {0x2c1, DType::int8},
      {0x2c9, DType::int16},      {0x2ca, DType::float16}, {0x2d1, DType::int32},     {0x2d2, DType::float32},
      {0x2d9, DType::int64},      {0x2da, DType::float64},
  };
  dtypes_.insert(std::begin(kTypes), std::end(kTypes));
  constexpr std::pair<Handle, ReduceOp> kOps[] = {
      {0x21, ReduceOp::sum},  {0x22, ReduceOp::min},  {0x23, ReduceOp::max},  {0x24, ReduceOp::prod},
      {0x28, ReduceOp::band}, {0x29, ReduceOp::bor},  {0x2a, ReduceOp::bxor}, {0x30, ReduceOp::land},
      {0x31, ReduceOp::lor},  {0x32, ReduceOp::lxor},
  };
  reductions_.insert(std::begin(kOps), std::end(kOps));
}

bool HookedMpi::is_null(Handle given) const {
  given = handle(given);
  if (given == 0) return true;
  // MPICH: the two upper bits say how the object is stored, and are 0 for none.
  if (constants_->handle_nbytes == 4) return (static_cast<uint32_t>(given) >> 30) == 0;
  for (const Handle null : nulls_)
    if (given == null) return true;
  return false;
}

std::optional<DType> HookedMpi::dtype(Handle type) const {
  const auto found = dtypes_.find(handle(type));
  return found == dtypes_.end() ? std::nullopt : std::optional(found->second);
}

uint8_t HookedMpi::reduction(Handle operation) const {
  const auto found = reductions_.find(handle(operation));
  return found == reductions_.end() ? kNoReduction : static_cast<uint8_t>(found->second);
}

int64_t HookedMpi::type_nbytes(Handle type) const {
  if (is_null(type) || !functions_.type_size_x) return 0;
  int64_t size = 0;
  return functions_.type_size_x(type, &size) == 0 && size > 0 ? size : 0;
}

uint64_t HookedMpi::nbytes_of(const void* status) const {
  int64_t count = 0;
  if (!functions_.get_elements_x || functions_.get_elements_x(status, byte_, &count) != 0) return 0;
  return count > 0 ? static_cast<uint64_t>(count) : 0;
}

}  // namespace hocket::hooks
