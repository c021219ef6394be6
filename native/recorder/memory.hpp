// Where a recorder lives: memory that outlives its process, if it can be had.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hocket {

// Environment variables.
inline constexpr const char* kRecorderVariable = "HOCKET_RECORDER";  // "0": no recording
// Number of an empty memfd, which the launcher keeps, too. Without it a file is made.
inline constexpr const char* kRecorderFdVariable = "HOCKET_RECORDER_FD";
// Folder for that file; by default $XDG_RUNTIME_DIR, else /dev/shm.
inline constexpr const char* kRecorderFolderVariable = "HOCKET_RECORDER_FOLDER";

enum class Residence : unsigned char { off, inherited, file, own };
// "1": whoever set it reads the files of processes that have ended, too, and removes them.
inline constexpr const char* kRecorderKeepVariable = "HOCKET_RECORDER_KEEP";
// Most share of the time that recording may take, in percent; "all": all events are recorded.
inline constexpr const char* kRecorderBudgetVariable = "HOCKET_RECORDER_BUDGET";

// `base` is null only if `residence` is off.
struct RecorderMemory {
  Residence residence = Residence::off;
  void* base = nullptr;
  int fd = -1;
  unsigned long long inode = 0;  // of fd, because a program may close descriptors that it did not open
  void* of_parent = nullptr;     // in a forked child: the parent's memory, to read
  std::string path;              // of the file
  std::string reason;            // why the memory ends with the process
};

// Maps memory for a recorder, filled with zeros; never throws.
RecorderMemory open_recorder_memory(size_t nbytes);

// In a forked child: replaces the parent's memory by memory of its own at the same address; the memory of the first
// parent stays readable at another one. Safe after fork() in a process with threads.
void replace_in_child(RecorderMemory& memory, size_t nbytes);

// Whether kRecorderKeepVariable is "1".
bool keeps_recorder_files();

// Field 22 of /proc/PID/stat, the start of the process in clock ticks since boot; 0: there is no such process.
unsigned long long start_of_process(int pid);

// In which this process has its number; 0: unknown.
unsigned long long process_namespace();

// A random number that the kernel gave this process at its last exec().
uint64_t random_of_image();

}  // namespace hocket
