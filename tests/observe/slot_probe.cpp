// A library that is loaded meanwhile: it reads a file, and looks at the slots through which all loaded objects call
// others.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace {

struct Found {
  const char* library;  // part of its path
  unsigned long sum = 14695981039346656037ul;
  unsigned long num_into = 0;
};

int look(dl_phdr_info* info, size_t, void* data) {
  auto& found = *static_cast<Found*>(data);
  if (std::strstr(info->dlpi_name, "vdso") != nullptr) return 0;
  const ElfW(Dyn)* entry = nullptr;
  for (int i = 0; i < info->dlpi_phnum; ++i)
    if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
      entry = reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
  uintptr_t tables[2] = {0, 0};
  size_t sizes[2] = {0, 0};
  for (; entry && entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_RELA) tables[0] = entry->d_un.d_ptr;
    if (entry->d_tag == DT_RELASZ) sizes[0] = entry->d_un.d_val;
    if (entry->d_tag == DT_JMPREL) tables[1] = entry->d_un.d_ptr;
    if (entry->d_tag == DT_PLTRELSZ) sizes[1] = entry->d_un.d_val;
  }
  for (int table = 0; table < 2; ++table) {
    const auto* relocation = reinterpret_cast<const ElfW(Rela)*>(tables[table]);
    for (size_t i = 0; i < sizes[table] / sizeof(ElfW(Rela)); ++i) {
      const auto type = ELF64_R_TYPE(relocation[i].r_info);
      if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT) continue;
      void* const value = *reinterpret_cast<void**>(info->dlpi_addr + relocation[i].r_offset);
      found.sum = (found.sum ^ reinterpret_cast<uintptr_t>(value)) * 1099511628211ul;
      Dl_info where{};
      found.num_into += value && dladdr(value, &where) && std::strstr(where.dli_fname, found.library) != nullptr &&
                        std::strstr(info->dlpi_name, found.library) == nullptr;
    }
  }
  return 0;
}

}  // namespace

extern "C" {

// Of the values of all slots.
unsigned long slot_sum() {
  Found found{.library = "hocket_hooks"};
  dl_iterate_phdr(look, &found);
  return found.sum;
}

// How many slots lead into a library.
unsigned long slots_into(const char* library) {
  Found found{.library = library};
  dl_iterate_phdr(look, &found);
  return found.num_into;
}

long read_by_descriptor(const char* path) {
  char data[1000];
  const int fd = open(path, O_RDONLY);
  const long nbytes = read(fd, data, sizeof data);
  close(fd);
  return nbytes;
}

long read_by_stdio(const char* path) {
  char data[1000];
  FILE* file = fopen(path, "r");
  const size_t nbytes = fread(data, 1, sizeof data, file);
  fclose(file);
  return static_cast<long>(nbytes);
}

// Loaded by name alone, from the folder that this library names.
void* load_by_name(const char* name) { return dlopen(name, RTLD_NOW); }
}
