// Reads small files of /proc without allocating memory: callers may be threads that must not fail.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace hocket {

using ProcText = std::array<char, 512>;

// The first bytes of a file, as a string; empty if it cannot be read. The descriptor is closed at once.
inline ProcText read_proc_file(const char* path) {
  ProcText text{};
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  const ssize_t length = read(fd, text.data(), text.size() - 1);
  close(fd);
  text[length > 0 ? static_cast<size_t>(length) : 0] = '\0';
  return text;
}

// Parses field `index` (from 0) of a string whose fields are separated by single spaces; -1 if it is not a number.
inline int64_t parse_field(const char* text, int index) {
  for (; index > 0 && text != nullptr; --index) {
    text = std::strchr(text, ' ');
    if (text != nullptr) ++text;
  }
  return text == nullptr || *text < '0' || *text > '9' ? -1 : std::strtoll(text, nullptr, 10);
}

// Runnable threads of the whole machine, this one included: field 3 of /proc/loadavg ("2/345").
inline int64_t num_runnable() { return parse_field(read_proc_file("/proc/loadavg").data(), 3); }

}  // namespace hocket
