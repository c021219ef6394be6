#include "mpi/library.hpp"

#include "mpi/lanes.hpp"

namespace hocket {

namespace {

template <typename Handle>
std::shared_ptr<MpiLibrary> make(const MpiFacts& facts, void* library) {
  using LargeCount = int64_t;  // MPI_Count
  if (MpiFunctions<Handle, LargeCount>::has_large_counts(library))
    return std::make_shared<MpiLibraryOf<Handle, LargeCount>>(facts, library);
  return std::make_shared<MpiLibraryOf<Handle, int>>(facts, library);
}

}  // namespace

std::shared_ptr<MpiLibrary> MpiLibrary::load(const MpiFacts& facts) {
  // The library is already loaded: this gives its own symbols, even if other libraries have symbols of the same names.
  void* library = dlopen(facts.path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (!library) throw Failure(ErrorCode::backend_unavailable, "the MPI library " + facts.path + " is not loaded");
  if (facts.handle_nbytes == sizeof(int)) return make<int>(facts, library);
  return make<void*>(facts, library);
}

}  // namespace hocket
