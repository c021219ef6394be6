// The rendezvous of the ranks of a host. Rank 0 listens at an abstract unix socket (a crash leaves no name behind). The
// others connect, prove by SO_PEERCRED that they belong to the same user, and send the descriptor of their doorbell.
// When all have arrived, rank 0 answers with the segment and, for every rank, its doorbell and a pidfd. Then all
// sockets are closed.
//
//   rank r                                                   rank 0
//   hello {rank, size, left_s, descriptors} + doorbell   ->  waits for all, until the earliest deadline received
//          <-  welcome {first, count} + segment + (doorbell, pidfd) x count     (several messages with many ranks)
//          <-  refusal {code, missing ranks, text}                              (instead of the welcome)
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "core/clock.hpp"
#include "core/units.hpp"
#include "shm/descriptors.hpp"
#include "shm/host.hpp"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace hocket {

namespace {

constexpr uint32_t kMagic = 0x686b7433;  // "hkt3": the last byte is the version of all data structures in shared memory
constexpr int kTextBytes = 512;
constexpr int64_t kNotifyNs = 5'000'000'000;  // how long a failing rank 0 waits for other ranks to notify them

struct Hello {
  uint32_t magic;
  int32_t rank;
  int32_t size;
  int32_t has_membarrier;
  int32_t free_descriptors;  // how many the rank can still open
  int32_t most_descriptors;  // `ulimit -n`
  double left_s;
  uint64_t start_time;
  cpu_set_t cpus;  // affinity of the rank
};

struct Welcome {
  uint32_t magic;
  int32_t refused;  // 0, or 1 + ErrorCode
  int32_t first;
  int32_t count;
  int32_t ringers_fence;
  int32_t num_cpus;
  int32_t pids[kPeersPerMessage];
  char text[kTextBytes];
};

[[noreturn]] void fail_errno(const std::string& what) {
  throw Failure(ErrorCode::backend_unavailable, what + ": " + std::strerror(errno));
}

// In clock ticks since boot; together with the pid it identifies a process (pids are reused).
uint64_t start_time_of(int pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(stat, line);
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;  // field 22 of the line, the 20th after the name
  return field.empty() ? 0 : std::strtoull(field.c_str(), nullptr, 10);
}

cpu_set_t own_cpus() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  sched_getaffinity(0, sizeof cpus, &cpus);
  return cpus;
}

Fd open_pidfd(int pid) { return Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

bool send_message(int socket, const void* data, size_t nbytes, const std::vector<int>& fds) {
  iovec part{const_cast<void*>(data), nbytes};
  std::vector<char> control(CMSG_SPACE(sizeof(int) * std::max<size_t>(fds.size(), 1)));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  }
  // ETOOMANYREFS: this user's descriptors in flight reached `ulimit -n`; receivers reduce their number.
  for (int attempt = 0; attempt < 5000; ++attempt) {
    if (sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(nbytes)) return true;
    if (errno == EINTR) continue;
    if (errno != ETOOMANYREFS) return false;
    const timespec pause{0, 1'000'000};
    nanosleep(&pause, nullptr);
  }
  return false;
}

enum class Received : uint8_t { nothing, message, closed };

Received receive_message(int socket, void* data, size_t nbytes, std::vector<Fd>& fds) {
  iovec part{data, nbytes};
  std::vector<char> control(CMSG_SPACE(sizeof(int) * (2 * kPeersPerMessage + 1)));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  // The kernel checks for a message first and for the end of the connection second: if a peer sends and closes between
  // these checks, the call reports only the end. No message comes after the end, so a second call is correct.
  if (got == 0) {
    message.msg_controllen = control.size();
    got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  }
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Received::nothing;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); got >= 0 && header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return got == static_cast<ssize_t>(nbytes) ? Received::message : Received::closed;
}

sockaddr_un address_of(const std::string& name, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t used = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), used);  // the leading zero makes it abstract
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + used);
  return address;
}

// The process and user at the other end; uid -1 if unknown.
ucred credentials(int socket) {
  ucred peer{0, static_cast<uid_t>(-1), 0};
  socklen_t length = sizeof peer;
  getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length);
  return peer;
}

Fd pidfd_of(int socket, const ucred& peer, uint64_t start_time) {
  int fd = -1;
  socklen_t length = sizeof fd;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0) return Fd(fd);
  Fd opened = open_pidfd(peer.pid);
  return opened && start_time_of(peer.pid) == start_time ? std::move(opened) : Fd();
}

class Leader {
 public:
  Leader(const std::string& name, int size, double timeout_s)
      : size_(size), deadline_ns_(now_ns() + timeout_ns(timeout_s)), arrived_(size) {
    const int most = most_descriptors(), free = free_descriptors(most), needed = descriptors_needed_to_lead(size);
    if (size > 1) {
      if (free < needed) release_reserve();
      listen_at(name);
      if (free < needed) refuse(descriptor_shortage(0, free, most, needed));
    }
    Doorbell& doorbell = Doorbell::mine();
    arrived_[0] = {Fd(), Fd(fcntl(doorbell.fd(), F_DUPFD_CLOEXEC, 0)), open_pidfd(getpid()), getpid()};
    ringers_fence_ = !doorbell.has_membarrier();
  }

  void listen_at(const std::string& name) {
    listener_ = Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    socklen_t length;
    const sockaddr_un address = address_of(name, length);
    if (bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
      if (errno == EADDRINUSE)
        throw Failure(ErrorCode::bootstrap_mismatch,
                      "another process is already rank 0 of this job on this host: two processes have local rank 0, or "
                      "two jobs share MASTER_ADDR, MASTER_PORT and HOCKET_JOB");
      fail_errno("cannot open the rendezvous socket");
    }
    if (listen(listener_.get(), std::min(size_, 4096)) != 0) fail_errno("cannot listen at the rendezvous socket");
  }

  bool step() {
    if (!listener_) return true;
    while (true) {
      Fd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!connection && (errno == EMFILE || errno == ENFILE)) refuse_for_descriptors();
      if (!connection) break;
      if (credentials(connection.get()).uid == getuid()) unknown_.push_back(std::move(connection));
    }
    // A rank that closed its connection has not arrived; another process may replace it, and is greeted below.
    for (int rank = 1; rank < size_; ++rank) {
      char byte;
      if (arrived_[rank].connection && recv(arrived_[rank].connection.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0)
        arrived_[rank] = {};
    }
    for (size_t i = 0; i < unknown_.size();) {
      if (!receive_hello(unknown_[i])) {
        ++i;
      } else {
        unknown_.erase(unknown_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    return missing().empty();
  }

  bool overdue() const { return now_ns() >= deadline_ns_; }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < size_; ++rank)
      if (!arrived_[rank].connection) ranks.push_back(rank);
    return ranks;
  }

  Rendezvous welcome() {
    Fd segment;
    try {
      segment = create_segment(segment_bytes());
    } catch (const Failure& failure) {
      refuse(failure.error());
    }
    for (int rank = 1; rank < size_; ++rank) {
      for (int first = 0; first < size_; first += kPeersPerMessage) {
        Welcome message{};
        message.magic = kMagic;
        message.first = first;
        message.count = std::min(kPeersPerMessage, size_ - first);
        message.ringers_fence = ringers_fence_;
        message.num_cpus = num_cpus();
        std::vector<int> fds{segment.get()};
        for (int i = 0; i < message.count; ++i) {
          const Arrived& peer = arrived_[first + i];
          message.pids[i] = peer.pid;
          fds.push_back(peer.doorbell.get());
          fds.push_back(peer.pidfd.get());
        }
        send_message(arrived_[rank].connection.get(), &message, sizeof message, fds);
      }
    }
    Rendezvous rendezvous;
    rendezvous.num_cpus = num_cpus();
    rendezvous.segment = std::move(segment);
    for (int rank = 0; rank < size_; ++rank) {
      Arrived& peer = arrived_[rank];
      rendezvous.peers.push_back(
          {rank == 0 ? Fd() : std::move(peer.pidfd), Mapping(peer.doorbell.get(), 0, kPageBytes), peer.pid});
    }
    return rendezvous;
  }

  [[noreturn]] void refuse(const Error& error) {
    Welcome message{};
    message.magic = kMagic;
    message.refused = 1 + static_cast<int32_t>(error.code);
    message.count = std::min<int32_t>(static_cast<int32_t>(error.ranks.size()), kPeersPerMessage);
    for (int i = 0; i < message.count; ++i) message.pids[i] = error.ranks[i];
    std::snprintf(message.text, sizeof message.text, "%s", error.message.c_str());
    for (const Arrived& peer : arrived_)
      if (peer.connection) send_message(peer.connection.get(), &message, sizeof message, {});
    if (error.code == ErrorCode::resource_exhausted) notify_late_ranks(message);
    for (const Fd& connection : unknown_) send_message(connection.get(), &message, sizeof message, {});
    throw Failure(error);
  }

 private:
  [[noreturn]] void refuse_for_descriptors() {
    const int most = most_descriptors();
    refuse(descriptor_shortage(0, free_descriptors(most), most, descriptors_needed_to_lead(size_)));
  }

  // Notifies ranks that arrive later, which would otherwise wait for rank 0 in vain. One connection at a time, because
  // descriptors for more may be missing.
  void notify_late_ranks(const Welcome& message) {
    std::vector<bool> notified(arrived_.size());
    notified[0] = true;
    for (size_t rank = 1; rank < arrived_.size(); ++rank) notified[rank] = static_cast<bool>(arrived_[rank].connection);
    for (Arrived& peer : arrived_) peer = {};
    unknown_.clear();  // they have not sent a hello yet, and will connect again
    const int64_t deadline = std::min(deadline_ns_, now_ns() + kNotifyNs);
    while (now_ns() < deadline && std::find(notified.begin(), notified.end(), false) != notified.end()) {
      pollfd waiting{listener_.get(), POLLIN, 0};
      poll(&waiting, 1, 10);
      const Fd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!connection || credentials(connection.get()).uid != getuid()) continue;
      pollfd greeting{connection.get(), POLLIN, 0};
      poll(&greeting, 1, 1000);
      Hello hello{};
      std::vector<Fd>
          fds;  // kept open until the hello is read: otherwise the peer would get an error instead of the message
      if (receive_message(connection.get(), &hello, sizeof hello, fds) != Received::message) continue;
      send_message(connection.get(), &message, sizeof message, {});
      if (hello.rank > 0 && hello.rank < size_) notified[static_cast<size_t>(hello.rank)] = true;
    }
  }

  struct Arrived {
    Fd connection;
    Fd doorbell;
    Fd pidfd;
    int32_t pid = 0;
  };

  int num_cpus() const { return CPU_COUNT(&cpus_); }

  // True if the connection is handled; false if its hello has not arrived.
  bool receive_hello(Fd& connection) {
    Hello hello{};
    std::vector<Fd> fds;
    switch (receive_message(connection.get(), &hello, sizeof hello, fds)) {
      case Received::nothing:
        return false;
      case Received::closed:
        return true;
      case Received::message:
        break;
    }
    if (hello.magic >> 8 != kMagic >> 8) return true;  // not a hocket process: any process may connect
    if (hello.magic == kMagic && hello.rank > 0 && hello.rank < size_ &&
        hello.free_descriptors < descriptors_needed(size_))
      refuse(
          descriptor_shortage(hello.rank, hello.free_descriptors, hello.most_descriptors, descriptors_needed(size_)));
    if (hello.magic != kMagic)
      refuse({ErrorCode::bootstrap_mismatch, "the ranks of this job run different versions of hocket"});
    if (fds.size() != 1) refuse_for_descriptors();  // the kernel drops descriptors that exceed the limit
    if (hello.size != size_)
      refuse({ErrorCode::bootstrap_mismatch, "rank 0 expects " + std::to_string(size_) + " ranks on this host, rank " +
                                                 std::to_string(hello.rank) + " expects " +
                                                 std::to_string(hello.size)});
    if (hello.rank < 1 || hello.rank >= size_ || arrived_[hello.rank].connection)
      refuse({ErrorCode::bootstrap_mismatch, "two processes claim to be rank " + std::to_string(hello.rank)});
    const ucred peer = credentials(connection.get());
    errno = 0;
    Fd pidfd = pidfd_of(connection.get(), peer, hello.start_time);
    if (!pidfd && (errno == EMFILE || errno == ENFILE)) refuse_for_descriptors();
    if (!pidfd) return true;  // the process has already died
    if (!hello.has_membarrier) ringers_fence_ = true;
    CPU_OR(&cpus_, &cpus_, &hello.cpus);
    deadline_ns_ = std::min(deadline_ns_, now_ns() + timeout_ns(hello.left_s));
    arrived_[hello.rank] = {std::move(connection), std::move(fds[0]), std::move(pidfd), peer.pid};
    return true;
  }

  int size_;
  int64_t deadline_ns_;
  std::vector<Arrived> arrived_;
  std::vector<Fd> unknown_;
  Fd listener_;
  cpu_set_t cpus_ = own_cpus();  // union of the ranks' affinities

 public:
  bool ringers_fence_ = false;
};

class Follower {
 public:
  Follower(std::string name, int rank, int size, double timeout_s)
      : name_(std::move(name)), rank_(rank), size_(size), deadline_ns_(now_ns() + timeout_ns(timeout_s)) {}

  bool step() {
    if (!connection_ && !connect_once()) return false;
    while (true) {
      Welcome message{};
      std::vector<Fd> fds;
      switch (receive_message(connection_.get(), &message, sizeof message, fds)) {
        case Received::nothing:
          return false;
        case Received::closed:  // rank 0 closed the connection: wait for another rank 0 until the deadline
          connection_ = Fd();
          rendezvous = {};
          return false;
        case Received::message:
          break;
      }
      if (take(message, fds)) return true;
    }
  }

  bool connected() const { return static_cast<bool>(connection_); }
  Rendezvous rendezvous;

 private:
  bool connect_once() {
    const int needed = descriptors_needed(size_);
    if (free_ < needed) release_reserve();
    Fd connection(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!connection) throw Failure(descriptor_shortage(rank_, free_, most_, needed));
    socklen_t length;
    const sockaddr_un address = address_of(name_, length);
    if (connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return false;
    if (credentials(connection.get()).uid != getuid()) return false;
    const double left_s = static_cast<double>(deadline_ns_ - now_ns()) * 1e-9;
    Hello hello{kMagic, rank_, size_, 0, free_, most_, left_s, start_time_of(getpid()), own_cpus()};
    std::vector<int> fds;
    if (free_ >= needed) {
      hello.has_membarrier = Doorbell::mine().has_membarrier();
      fds = {Doorbell::mine().fd()};
    }
    // Sending may fail: rank 0 may have refused and closed the connection already. Its refusal is read next.
    send_message(connection.get(), &hello, sizeof hello, fds);
    connection_ = std::move(connection);
    return true;
  }

  bool take(const Welcome& message, std::vector<Fd>& fds) {
    if (message.magic != kMagic)
      throw Failure(ErrorCode::bootstrap_mismatch, "the ranks of this job run different versions of hocket");
    if (message.refused)
      throw Failure(static_cast<ErrorCode>(message.refused - 1), message.text,
                    std::vector<int>(message.pids, message.pids + message.count));
    if (message.ringers_fence) detail::ringers_fence.store(true, std::memory_order_relaxed);
    if (fds.size() != static_cast<size_t>(2 * message.count + 1))
      throw Failure(ErrorCode::resource_exhausted, "cannot receive the file descriptors of " + std::to_string(size_) +
                                                       " ranks: raise the limit (ulimit -n)");
    rendezvous.num_cpus = message.num_cpus;
    rendezvous.segment = std::move(fds[0]);
    for (int i = 0; i < message.count; ++i) {
      Mapping doorbell(fds[1 + 2 * i].get(), 0, kPageBytes);
      Fd pidfd = message.first + i == rank_ ? Fd() : std::move(fds[2 + 2 * i]);
      rendezvous.peers.push_back({std::move(pidfd), std::move(doorbell), message.pids[i]});
    }
    return static_cast<int>(rendezvous.peers.size()) == size_;
  }

  std::string name_;
  int rank_;
  int size_;
  const int most_ = most_descriptors();
  const int free_ = free_descriptors(most_);
  int64_t deadline_ns_;
  Fd connection_;
};

std::string timeout_text(int rank, const std::vector<int>& missing, double timeout_s) {
  return "rank " + std::to_string(rank) + " timed out after " + seconds_text(timeout_s) +
         " at start-up: " + ranks_text(missing) + " never arrived";
}

}  // namespace

Rendezvous run_rendezvous(const std::string& name, int rank, int size, double timeout_s, WaitHooks& hooks) {
  Engine& engine = Engine::instance();
  if (rank == 0) {
    Leader leader(name, size, timeout_s);
    const auto waiting_text = [&] { return "rank 0 waits at start-up for " + ranks_text(leader.missing()); };
    const bool complete =
        engine.wait_for([&] { return leader.step() || leader.overdue(); }, timeout_s, hooks, waiting_text);
    const std::vector<int> missing = leader.missing();
    if (!complete || !missing.empty())
      leader.refuse({ErrorCode::comm_timeout, timeout_text(0, missing, timeout_s), missing});
    if (leader.ringers_fence_) detail::ringers_fence.store(true, std::memory_order_relaxed);
    return leader.welcome();
  }
  Follower follower(name, rank, size, timeout_s);
  // Once connected, no report here: rank 0 knows which ranks are missing.
  const auto waiting_text = [&] {
    return follower.connected() ? "" : "rank " + std::to_string(rank) + " waits at start-up for rank 0";
  };
  bool complete = engine.wait_for([&] { return follower.step(); }, timeout_s, hooks, waiting_text);
  // Rank 0 knows which ranks are missing and times out at the earliest deadline: wait a moment for its refusal.
  if (!complete && follower.connected()) complete = engine.wait_for([&] { return follower.step(); }, 1.0, hooks);
  if (!complete) {
    const std::vector<int> missing{0};
    throw Failure(ErrorCode::comm_timeout, timeout_text(rank, missing, timeout_s), missing);
  }
  return std::move(follower.rendezvous);
}

}  // namespace hocket
