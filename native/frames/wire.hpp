// What travels between two processes: records.
//
//   message:   header, a descriptor for each frame, then the bytes of the frames that are in the stream, one after
//              another. Other frames are in a segment of shared memory, or lent: they stay in the sender's memory until
//              the receiver has copied them; or a carrier brings them, when the receiver is ready. Of a frame in device
//              memory, a loan is in the stream (device_loan.hpp).
//   taken:     header only; nbytes is the number of messages with frames outside of the stream that this end has taken
//              over so far: it has copied what was lent, and its reader is not too far behind.
//   segment:   header only; the sender has made segment `number` of nbytes; its file descriptor comes with this header.
//   returned:  header only; the frame in segment `number` is not used any more, and the segment is the sender's again.
//   dropped:   header only; the sender has dropped segment `number`, in which no frame is.
//
//   ready:     header only; nbytes is the number of messages with frames outside of the stream for whose carried frames
//              this end has posted the receives so far.
//
// Numbers are little-endian; processes on machines of another byte order are refused before the first record.
#pragma once

#include <cstdint>
#include <string>

#include "core/error.hpp"

namespace hocket {

[[noreturn]] inline void refuse_record(const std::string& why) {
  throw Failure(ErrorCode::aborted, "the peer does not follow the protocol: " + why);
}

enum class RecordKind : uint8_t { message = 1, taken = 2, segment = 3, returned = 4, dropped = 5, ready = 6 };

struct RecordHeader {
  RecordKind kind;
  uint8_t zero[3];
  uint32_t number;  // of frames, or of a segment
  uint64_t nbytes;  // of a message: those that follow in the stream
};
static_assert(sizeof(RecordHeader) == 16);

enum class FramePlace : uint32_t { stream = 0, lent = 1, segment = 2, carried = 3, device = 4 };
constexpr uint64_t kLoanBytes = 112;  // of a frame in device memory, in the stream

struct FrameDescriptor {
  uint64_t nbytes;
  uint64_t address;  // in the sender's memory, if the frame is lent
  FramePlace place;
  uint32_t segment;
};
static_assert(sizeof(FrameDescriptor) == 24);

}  // namespace hocket
