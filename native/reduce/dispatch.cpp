// Chooses the copy of the kernels that runs, once, by the instruction sets that CPU and operating system support.
#include <array>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "reduce/reduce.hpp"

namespace hocket {

// The compiled copies of kernels.inl.
namespace scalar {
ReduceKernel lookup(DType dtype, ReduceOp op);
}
#if defined(__x86_64__)
namespace avx2 {
ReduceKernel lookup(DType dtype, ReduceOp op);
}
namespace avx512 {
ReduceKernel lookup(DType dtype, ReduceOp op);
}
#endif

namespace {

struct Variant {
  const char* name;
  bool (*supported)();
  ReduceKernel (*lookup)(DType, ReduceOp);
};

// Indexed by Isa, the best last. The builtin also checks whether the operating system saves the wide registers.
constexpr std::array kVariants = {
    Variant{"scalar", [] { return true; }, scalar::lookup},
#if defined(__x86_64__)
    Variant{"avx2",
            [] {
              return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
            },
            avx2::lookup},
    Variant{"avx512",
            [] {
              return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                     __builtin_cpu_supports("f16c");
            },
            avx512::lookup},
#endif
};

const Variant& choose() {
  if (const char* requested = std::getenv("HOCKET_ISA"); requested != nullptr && *requested != '\0') {
    std::string available;
    for (const Variant& variant : kVariants) {
      if (!variant.supported()) continue;
      if (std::string_view(requested) == variant.name) return variant;
      available += available.empty() ? variant.name : std::string(", ") + variant.name;
    }
    throw std::invalid_argument("HOCKET_ISA=" + std::string(requested) +
                                " is not available on this machine; available: " + available);
  }
  const Variant* best = &kVariants.front();
  for (const Variant& variant : kVariants) {
    if (variant.supported()) best = &variant;
  }
  return *best;
}

// The chosen variant's kernels, looked up once, because every operation needs one.
struct Active {
  const Variant& variant = choose();
  std::array<std::array<ReduceKernel, kNumReduceOps>, kNumDTypes> kernels{};
  Active() {
    for (size_t dtype = 0; dtype < kNumDTypes; ++dtype)
      for (size_t op = 0; op < kNumReduceOps; ++op)
        kernels[dtype][op] = variant.lookup(static_cast<DType>(dtype), static_cast<ReduceOp>(op));
  }
};

const Active& active() {
  static const Active active;
  return active;
}

}  // namespace

bool isa_available(Isa isa) {
  const auto index = static_cast<size_t>(isa);
  return index < kVariants.size() && kVariants[index].supported();
}

ReduceKernel reduce_kernel(Isa isa, DType dtype, ReduceOp op) {
  return kVariants[static_cast<size_t>(isa)].lookup(dtype, op);
}

ReduceKernel reduce_kernel(DType dtype, ReduceOp op) {
  return active().kernels[static_cast<size_t>(dtype)][static_cast<size_t>(op)];
}

Isa active_isa_kind() { return static_cast<Isa>(&active().variant - kVariants.data()); }

const char* active_isa() { return active().variant.name; }

void divide(DType dtype, std::byte* values, uint64_t nbytes, int by) {
  const auto by_size = [&]<typename T>(T* items) {
    for (size_t i = 0; i < nbytes / sizeof(T); ++i) items[i] /= static_cast<T>(by);
  };
  if (dtype == DType::float32 || dtype == DType::complex64)
    by_size(reinterpret_cast<float*>(values));
  else
    by_size(reinterpret_cast<double*>(values));
}

}  // namespace hocket
