#include "frames/outgoing.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "core/error.hpp"

namespace hocket {

namespace {

constexpr size_t kMostParts = 64;  // of one call

}  // namespace

void OutgoingBytes::add(SentBytes bytes) {
  if (!bytes.nbytes) return;
  nbytes_ += bytes.nbytes;
  queue_.push_back(std::move(bytes));
}

uint64_t OutgoingBytes::flush() {
  while (nbytes_) {
    iovec parts[kMostParts];
    size_t num_parts = 0;
    for (const SentBytes& each : queue_) {
      if (num_parts == kMostParts || (each.fd >= 0 && num_parts)) break;
      parts[num_parts++] = {const_cast<std::byte*>(each.data), each.nbytes};
    }
    msghdr message{};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    const int fd = queue_.front().fd;
    if (fd >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* const rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
    }
    message.msg_iov = parts;
    message.msg_iovlen = num_parts;
    const ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      drop(static_cast<uint64_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      throw Failure(ErrorCode::peer_failure, std::string("cannot send: ") + std::strerror(errno));
    }
  }
  return nbytes_;
}

void OutgoingBytes::drop(uint64_t sent) {
  nbytes_ -= sent;
  if (sent) queue_.front().fd = -1;
  while (sent) {
    SentBytes& first = queue_.front();
    if (sent < first.nbytes) {
      first.data += sent;
      first.nbytes -= sent;
      return;
    }
    sent -= first.nbytes;
    queue_.pop_front();
  }
}

void OutgoingBytes::clear() {
  queue_.clear();
  nbytes_ = 0;
}

}  // namespace hocket
