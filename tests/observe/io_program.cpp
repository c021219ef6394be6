// File I/O in many ways, for test_io.py: `io_program WAY FOLDER`. What it prints must be the same with and without
// hooks.
#include <aio.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace {

std::string folder;
std::string path(const char* name) { return folder + "/" + name; }

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "not so: %s (%s)\n", what, std::strerror(errno));
  std::abort();
}
#define EXPECT(condition) expect(condition, #condition)

void write_streams() {
  FILE* file = std::fopen(path("stdio-lines").c_str(), "w");
  for (int i = 0; i < 3000; ++i) std::fprintf(file, "line %d\n", i);
  for (int i = 0; i < 3000; ++i) std::fputs("another line\n", file);
  for (int i = 0; i < 10000; ++i) std::fputc('a' + i % 26, file);
  for (int i = 0; i < 10000; ++i) putc_unlocked('a' + i % 26, file);
  const std::vector<char> large(1'000'003, 'x');
  std::fwrite(large.data(), 1, large.size(), file);
  std::fseek(file, 100, SEEK_SET);
  std::fputs("overwritten", file);
  std::fflush(file);
  std::fseek(file, 0, SEEK_END);
  std::fwrite(large.data(), 10, 300, file);
  EXPECT(std::fclose(file) == 0);

  FILE* unbuffered = std::fopen(path("stdio-unbuffered").c_str(), "w");
  std::setvbuf(unbuffered, nullptr, _IONBF, 0);
  for (int i = 0; i < 100; ++i) std::fprintf(unbuffered, "%d;", i);
  std::fclose(unbuffered);

  std::ofstream cpp(path("stdio-cpp"));
  for (int i = 0; i < 3000; ++i) cpp << "number " << i << '\n';
  cpp.close();
  std::ifstream back(path("stdio-cpp"));
  std::string word;
  int words = 0;
  while (back >> word) ++words;
  EXPECT(words == 6000);

  FILE* by_line = std::fopen(path("stdio-by-line").c_str(), "a");
  std::setvbuf(by_line, nullptr, _IOLBF, 512);
  for (int i = 0; i < 100; ++i) std::fprintf(by_line, "%d\n", i);
  std::fclose(by_line);

  FILE* wide = std::fopen(path("stdio-wide").c_str(), "w");
  for (int i = 0; i < 3000; ++i) std::fwprintf(wide, L"%d wide\n", i);
  std::fclose(wide);

  const int fd = open(path("stdio-descriptor").c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  dprintf(fd, "directly %d\n", 7);
  FILE* on_top = fdopen(fd, "w");
  std::fputs("through a stream on top\n", on_top);
  EXPECT(write(fileno(on_top), "between\n", 8) == 8);
  std::fclose(on_top);
}

void read_streams() {
  FILE* file = std::fopen(path("stdio-lines").c_str(), "r+");
  char line[200];
  EXPECT(std::fgets(line, sizeof line, file) != nullptr && std::strcmp(line, "line 0\n") == 0);
  int number = 0;
  EXPECT(std::fscanf(file, "line %d\n", &number) == 1 && number == 1);
  const int letter = std::getc(file);
  std::ungetc(letter, file);
  char* whole = nullptr;
  size_t size = 0;
  for (int i = 0; i < 4000; ++i) EXPECT(getline(&whole, &size, file) > 0);
  std::free(whole);
  for (const long place : {0L, 5000L, 4096L, 900'000L, 17L, 12'345L}) {
    EXPECT(std::fseek(file, place, SEEK_SET) == 0);
    std::getc(file);
    EXPECT(std::ftell(file) == place + 1);
  }
  std::rewind(file);
  std::vector<char> large(700'001);
  EXPECT(std::fread(large.data(), 1, large.size(), file) == large.size());
  EXPECT(std::fread(large.data(), 1, 10, file) == 10);
  std::fseek(file, -5, SEEK_CUR);
  std::fputs("!", file);
  std::fseek(file, 0, SEEK_CUR);
  while (std::fread(large.data(), 1, 4000, file) > 0) {
  }
  EXPECT(std::feof(file) && std::fclose(file) == 0);

  FILE* wide = std::fopen(path("stdio-wide").c_str(), "r");
  wchar_t text[100];
  int lines = 0;
  while (std::fgetws(text, 100, wide)) ++lines;
  EXPECT(lines == 3000 && std::fclose(wide) == 0);
}

// The last stream is flushed by exit().
void do_stdio() {
  write_streams();
  read_streams();
  FILE* other = std::freopen(path("stdio-output").c_str(), "w", stdout);
  EXPECT(other == stdout);
  std::printf("to a file now\n");
  std::fputs("left in the buffer", std::fopen(path("stdio-left-open").c_str(), "w"));
}

void do_vectored() {
  const int from = open(path("vectored-source").c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  const int to = open(path("vectored-target").c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  std::vector<char> first(10'000, 'a');
  std::vector<char> second(333, 'b');
  const iovec pieces[] = {{first.data(), first.size()}, {second.data(), second.size()}};
  EXPECT(writev(from, pieces, 2) == 10'333 && pwritev(from, pieces, 2, 50'000) == 10'333);
  EXPECT(pwritev2(from, pieces, 1, -1, 0) == 10'000 && pwrite(from, first.data(), 99, 5) == 99);
  EXPECT(preadv(from, pieces, 2, 50'000) == 10'333 && preadv2(from, pieces, 2, 0, 0) == 10'333);
  EXPECT(lseek(from, 0, SEEK_SET) == 0 && readv(from, pieces, 2) == 10'333);
  EXPECT(pread(from, first.data(), 10, 1'000'000) == 0);
  EXPECT(syscall(SYS_pwrite64, from, first.data(), 77L, 3L) == 77);
  off_t at = 0;
  EXPECT(sendfile(to, from, &at, 5000) == 5000 && at == 5000);
  EXPECT(copy_file_range(from, &at, to, nullptr, 4000, 0) == 4000);
  int ends[2];
  EXPECT(pipe(ends) == 0);
  EXPECT(splice(from, &at, ends[1], nullptr, 3000, 0) == 3000);
  EXPECT(splice(ends[0], nullptr, to, nullptr, 3000, 0) == 3000);
  EXPECT(write(ends[1], "not a file", 10) == 10 && read(ends[0], first.data(), 10) == 10);
  std::string name = path("vectored-made-XXXXXX");
  const int made = mkstemp(name.data());
  EXPECT(write(made, "made", 4) == 4 && fsync(made) == 0 && close(made) == 0);
  void* mapping = mmap(nullptr, 8192, PROT_READ, MAP_SHARED, from, 0);
  EXPECT(mapping != MAP_FAILED && munmap(mapping, 8192) == 0);
  close(from);
  EXPECT(dup2(to, from) == from && write(from, "by the other number", 19) == 19);
}

// One call for each request, as the helping thread of the C library makes it.
void do_asynchronous() {
  const int fd = open(path("asynchronous").c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  std::vector<char> data(5000, 'a');
  aiocb request{};
  request.aio_fildes = fd;
  request.aio_buf = data.data();
  request.aio_nbytes = data.size();
  const auto wait = [&request] {
    const aiocb* const list[] = {&request};
    while (aio_error(&request) == EINPROGRESS) aio_suspend(list, 1, nullptr);
    return aio_return(&request);
  };
  EXPECT(aio_write(&request) == 0 && wait() == 5000);
  request.aio_offset = 4000;
  EXPECT(aio_read(&request) == 0 && wait() == 1000);
  aiocb* const list[] = {&request};
  request.aio_lio_opcode = LIO_READ;
  EXPECT(lio_listio(LIO_WAIT, list, 1, nullptr) == 0 && aio_return(&request) == 1000);
}

void say(const char* what, long result) {
  std::printf("%s: %ld, %s\n", what, result, result < 0 ? strerrorname_np(errno) : "no error");
}

void do_failing() {
  char data[10];
  const std::vector<iovec> pieces(5000, {data, sizeof data});
  void* volatile nowhere = reinterpret_cast<void*>(16);
  const int readable = open("/etc/passwd", O_RDONLY);
  const int writable = open(path("failing").c_str(), O_WRONLY | O_CREAT, 0600);
  say("open of no file", open(path("missing").c_str(), O_RDONLY));
  say("open through a file", open("/etc/passwd/x", O_RDONLY));
  say("write to a read-only one", write(readable, data, 3));
  say("read of a write-only one", read(writable, data, 3));
  say("pread before the start", pread(readable, data, 3, -1));
  say("read to nowhere", read(readable, nowhere, 3));
  say("readv of too many", readv(readable, pieces.data(), 5000));
  say("fsync of a pipe's number", fsync(99));
  say("close twice", close(99));
  say("read of a closed one", read(99, data, 3));
  say("dup to a bad number", dup2(readable, -1));
  say("dup of a bad one", dup(99));
  say("fcntl of a bad one", fcntl(99, F_DUPFD, 3));
  say("copy to a read-only one", copy_file_range(readable, nullptr, readable, nullptr, 10, 0));
  say("sendfile from a write-only one", sendfile(readable, writable, nullptr, 5));
  say("sendfile by a bad pointer", sendfile(writable, readable, static_cast<off_t*>(nowhere), 5));
  say("map of a write-only one", mmap(nullptr, 10, PROT_READ, MAP_SHARED, writable, 0) == MAP_FAILED ? -1 : 0);
  say("a system call that there is not", syscall(5000, 1, 2, 3));
  say("fopen of no file", std::fopen(path("missing").c_str(), "r") ? 0 : -1);
  say("freopen of no file", std::freopen(path("missing").c_str(), "r", stdin) ? 0 : -1);
  FILE* stream = fdopen(readable, "r");
  errno = 7;
  say("fgets", std::fgets(data, sizeof data, stream) ? 1 : 0);
  EXPECT(errno == 7);
  EXPECT(read(readable, data, 0) == 0 && errno == 7 && close(writable) == 0 && errno == 7);
}

int handler_fd;
volatile sig_atomic_t num_handled;
void handle(int) {
  const int code = errno;
  if (write(handler_fd, "interrupted", 11) == 11) num_handled = num_handled + 1;
  errno = code;
}

std::atomic<long> num_written{0};
void handle_in_any_thread(int) {
  const int code = errno;
  if (write(handler_fd, "interrupted", 11) == 11) ++num_written;
  errno = code;
}

// The handler also runs before the first use of its descriptor, of the thread and of the file has ended.
void do_handler() {
  handler_fd = open(path("handler-signals").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
  struct sigaction action{};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &action, nullptr);
  const itimerval each = {{0, 200}, {0, 200}};
  setitimer(ITIMER_REAL, &each, nullptr);
  const std::vector<char> data(3000, 'x');
  long total = 0;
  for (int i = 0; i < 200; ++i) {
    const std::string name = path("handler-main") + std::to_string(i);
    const int fd = open(name.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (int j = 0; j < 20; ++j) total += write(fd, data.data(), data.size());
    close(fd);
  }
  const itimerval never{};
  setitimer(ITIMER_REAL, &never, nullptr);
  std::printf("%ld %d\n", total, static_cast<int>(num_handled));
}

void do_threads() {
  const int fd = open(path("threads").c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  std::vector<char> data(1 << 20, 'x');
  EXPECT(write(fd, data.data(), data.size()) == static_cast<ssize_t>(data.size()));
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread)
    threads.emplace_back([fd, thread] {
      std::vector<char> own(1000);
      for (int i = 0; i < 1000; ++i) EXPECT(pread(fd, own.data(), 1000, i * 100 + thread) == 1000);
    });
  for (std::thread& each : threads) each.join();
}

void* read_forever(void* fd) {
  char byte;
  while (read(*static_cast<int*>(fd), &byte, 1) >= 0) {
  }
  return nullptr;
}

// A thread that waits in read() can be cancelled, and so can one that reads a file.
void do_cancel() {
  int ends[2];
  EXPECT(pipe(ends) == 0);
  int file = open("/etc/passwd", O_RDONLY);
  for (int* fd : {&ends[0], &file}) {
    pthread_t thread;
    EXPECT(pthread_create(&thread, nullptr, read_forever, fd) == 0);
    usleep(20'000);
    EXPECT(pthread_cancel(thread) == 0);
    void* result = nullptr;
    EXPECT(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
  }
  std::puts("cancelled");
}

void write_file(const char* name, size_t size) {
  const int fd = open(path(name).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  EXPECT(fd >= 0);
  const std::vector<char> data(size, 'x');
  EXPECT(write(fd, data.data(), size) == static_cast<ssize_t>(size) && close(fd) == 0);
}

void wait_for(pid_t pid) {
  int status = 0;
  EXPECT(pid > 0);
  while (waitpid(pid, &status, 0) != pid) EXPECT(errno == EINTR);
  EXPECT(status == 0);
}

// Every child is another way to become one.
void do_children() {
  const int shared = open(path("children-shared").c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  EXPECT(write(shared, "parent", 6) == 6);
  pid_t pid = fork();
  if (pid == 0) {
    EXPECT(write(shared, "of the child", 12) == 12);
    write_file("children-forked", 1234);
    pid = fork();
    if (pid == 0) write_file("children-grandchild", 777), _exit(0);
    wait_for(pid);
    std::exit(0);
  }
  wait_for(pid);

  const std::string self = "/proc/self/exe";
  const std::string to = path("children-output");
  char* arguments[] = {const_cast<char*>(self.c_str()), const_cast<char*>("print"), const_cast<char*>(folder.c_str()),
                       nullptr};
  pid = fork();
  if (pid == 0) execv(self.c_str(), arguments);
  wait_for(pid);

  // The child has descriptors of its own, and the parent's memory.
  const int kept = open(path("children-kept").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  EXPECT(write(kept, "before", 6) == 6);
  pid = vfork();
  if (pid == 0) {
    close(kept);
    const int other = open(to.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(other, 1);
    if (other != kept) dup2(other, kept);
    close_range(3, ~0U, 0);
    execv(self.c_str(), arguments);
    _exit(1);
  }
  wait_for(pid);
  EXPECT(write(kept, "afterwards", 10) == 10);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, to.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  EXPECT(posix_spawn(&pid, self.c_str(), &actions, nullptr, arguments, environ) == 0);
  wait_for(pid);
  EXPECT(std::system(("echo from the shell >> " + to).c_str()) == 0);
  FILE* command = popen(("cat > " + path("children-command")).c_str(), "w");
  std::fputs("through a pipe", command);
  EXPECT(pclose(command) == 0);
}

// Threads open files, a handler writes every half millisecond, and the process forks all the time.
void do_forking() {
  std::atomic<bool> is_over{false};
  std::atomic<long> total{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread)
    threads.emplace_back([&, thread] {
      const std::string data(100, 'x');
      for (int i = 0; !is_over; ++i) {
        const std::string name = path("forking-") + std::to_string(thread) + "-" + std::to_string(i % 10);
        const int fd = open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
        total += write(fd, data.data(), data.size());
        close(fd);
        FILE* file = std::fopen(name.c_str(), "a");
        total += std::fprintf(file, "%d", i);
        std::fclose(file);
      }
    });
  handler_fd = open(path("forking-signals").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
  struct sigaction action{};
  action.sa_handler = handle_in_any_thread;
  action.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &action, nullptr);
  const itimerval each = {{0, 500}, {0, 500}};
  setitimer(ITIMER_REAL, &each, nullptr);
  for (int child = 0; child < 20; ++child) {
    const pid_t pid = fork();
    if (pid == 0) write_file(("forking-child" + std::to_string(child)).c_str(), 7), _exit(0);
    wait_for(pid);
  }
  const itimerval never{};
  setitimer(ITIMER_REAL, &never, nullptr);
  is_over = true;
  for (std::thread& each_thread : threads) each_thread.join();
  std::fprintf(stderr, "%ld\n", total + 11 * num_written + 20 * 7);
}

void do_close_all() {
  write_file("before", 100);
  EXPECT(close_range(3, ~0U, 0) == 0);
  write_file("after-close-range", 1000);
  for (int fd = 3; fd < 1024; ++fd) close(fd);
  write_file("after-close", 500);
  closefrom(3);
  const pid_t pid = fork();
  if (pid == 0) write_file("child-after-closefrom", 250), _exit(0);
  wait_for(pid);
}

void do_closed_standard() {
  struct stat info{};
  for (int fd = 0; fd < 3; ++fd) EXPECT(fstat(fd, &info) != 0);
  const int fd = open(path("lowest").c_str(), O_RDWR | O_CREAT, 0600);
  EXPECT(fd == 0 && write(fd, "abc", 3) == 3);
}

void do_deleted() {
  const int fd = open(path("deleted").c_str(), O_RDWR | O_CREAT, 0600);
  EXPECT(unlink(path("deleted").c_str()) == 0 && write(fd, "still there", 11) == 11);
  const int again = dup(fd);
  char text[20];
  EXPECT(pread(again, text, sizeof text, 0) == 11);
}

void do_getc() {
  write_file("letters", 10'000'000);
  FILE* file = std::fopen(path("letters").c_str(), "r");
  const auto begin = std::chrono::steady_clock::now();
  long count = 0;
  while (std::getc(file) != EOF) ++count;
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  std::printf("%ld %.4f", count, passed.count());
  const int fd = open(path("letters").c_str(), O_RDONLY);
  char data[64];
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 200'000; ++i) EXPECT(pread(fd, data, sizeof data, i) == sizeof data);
  const std::chrono::duration<double, std::nano> each = std::chrono::steady_clock::now() - start;
  std::printf(" %.1f\n", each.count() / 200'000);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  folder = argv[2];
  const struct {
    const char* name;
    void (*function)();
  } ways[] = {
      {"stdio", do_stdio},
      {"vectored", do_vectored},
      {"asynchronous", do_asynchronous},
      {"failing", do_failing},
      {"handler", do_handler},
      {"threads", do_threads},
      {"cancel", do_cancel},
      {"children", do_children},
      {"forking", do_forking},
      {"close-all", do_close_all},
      {"closed-standard", do_closed_standard},
      {"deleted", do_deleted},
      {"getc", do_getc},
      {"print", [] { std::printf("printed by another program\n"); }},
  };
  for (const auto& way : ways)
    if (std::strcmp(way.name, argv[1]) == 0) return way.function(), 0;
  return 2;
}
