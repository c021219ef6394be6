// The part of the host's segment that one communicator uses, and the communicator's members.
//
//   abort | lines[lanes][2][n] | flags[n] | details[lanes][n] | issued[n] | eager[2][n] | controls[n][n] |
//                                                                                  allocated when the region is made
//   stage[n] = in area, out area |                                                 allocated by its owner at first use
//   controls of schedules [n][n]                                                   allocated at their first use
//   pipe[channels][n][n] = ring + bulk slots                                       allocated by its sender at first use
//
// Every word has exactly one writer, named below. Flags only grow (monotone epochs), so a reader never mistakes an old
// state for a new one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/operation.hpp"
#include "core/peers.hpp"
#include "core/units.hpp"
#include "shm/host.hpp"

namespace hocket {

inline constexpr size_t kInlineBytes = 48;             // payload that travels in the header line itself
inline constexpr size_t kEagerBytes = 4096;            // contributions up to this size travel with the line (eager)
inline constexpr size_t kLeastDirectBytes = 64 << 10;  // blocks from this size may be read out of their owner's array
// Rings are large for the same reason as the areas of a stage (below). With many pairs of ranks, the memory of all
// pipes matters more.
constexpr size_t ring_bytes_for(int size) { return size <= 4 ? 2 << 20 : 128 << 10; }
// Longer messages are streamed through the bulk slots.
constexpr size_t ring_message_bytes_for(int size) { return size <= 4 ? 64 << 10 : 8 << 10; }
inline constexpr size_t kBulkBytes = 32 << 10;
// With 64 slots they are as large as the largest area of a stage (below); fewer with many pairs of ranks.
constexpr size_t bulk_slots_for(int size) { return size <= 4 ? 64 : 16; }
// Chunk size of a broadcast: between these two, and at most a chunk of the stage.
inline constexpr size_t kLeastBroadcastChunkBytes = 16 << 10;
inline constexpr size_t kMostBroadcastChunkBytes = 128 << 10;
// A rank's stage has two areas of this size, in and out. Chunks use each area as a ring buffer, so the next slot is the
// one written longest ago: its lines have left the private caches of the other processor. A line out of the shared
// cache comes more than twice as fast as one out of another processor's private cache. All areas together should fit
// into the shared cache.
constexpr size_t area_bytes_for(int size) { return size <= 2 ? 2 << 20 : size <= 4 ? 1 << 20 : 512 << 10; }
constexpr size_t chunk_bytes_for(int size) { return area_bytes_for(size) / 16; }

// Written by its rank: payload and fingerprint first, then seq with release.
struct alignas(kLineBytes) HeaderLine {
  std::byte payload[kInlineBytes];
  std::atomic<uint64_t> fingerprint;
  std::atomic<uint64_t> seq;
};
static_assert(sizeof(HeaderLine) == 64);

struct alignas(kLineBytes) Flag {
  std::atomic<uint64_t> value;
};

// Written by its rank.
struct RankFlags {
  Flag staged;    // epoch of the latest chunk in the in-slots
  Flag finished;  // epoch of the latest chunk that was reduced into the out-slots, or consumed
  Flag left;      // 1: this member has finalized the communicator
};

// Written by its rank, only when an operation failed: its description, for the error message on all ranks.
struct Detail {
  std::atomic<uint64_t> seq;  // of the operation described, stored last
  char text[1000];
  char traits[400];  // see core/traits.hpp
  int32_t error;     // 0, or 1 + ErrorCode if the rank could not start the operation
};

// Written by its rank: its latest operations by sequence number; only if the region has several lanes.
struct Issued {
  static constexpr uint64_t kCapacity = 256;
  struct Entry {
    std::atomic<uint64_t> seq;   // stored last; zero while the entry is being written
    std::atomic<uint64_t> kind;  // the small fields of the operation, packed
    std::atomic<uint64_t> nbytes;
    std::atomic<uint64_t> fingerprint;
  };
  Entry entries[kCapacity];
};

// Messages of the program and those of schedules never meet (rule R4).
enum class Channel : uint8_t { messages, schedules };
inline constexpr size_t kNumChannels = 2;

// Flags of the pipe sender -> receiver; each comment names the writer.
struct PipeControl {
  Flag head;      // sender: bytes ever written to the ring, of a message that is written in pieces
  Flag tail;      // receiver: bytes ever read from it
  Flag produced;  // sender: bulk slots ever filled
  Flag consumed;  // receiver: bulk slots ever emptied
  Flag granted;   // receiver: id of the long message to stream now; not streamed if kRefused or kTaken is set
};
inline constexpr uint64_t kRefused = 1ull << 63;  // size or type do not match
inline constexpr uint64_t kTaken = 1ull << 62;    // the receiver has read the message out of the sender's array

class Region final : public Peers {
 public:
  // Opens the region; returns when all members have arrived. Drives the engine meanwhile. Throws CommTimeout with the
  // missing ranks.
  //   members: ranks of the host, in the order of the communicator's ranks.
  //   backends: the backends whose collectives go through an agreement here, in the communicator's order; equal on all
  //     members.
  static std::shared_ptr<Region> open(std::shared_ptr<Host> host, std::vector<int> members, int rank, uint64_t key,
                                      std::vector<std::string> backends, double timeout_s, WaitHooks& hooks);
  // Makes a region of a range that is already mapped; several regions of one process may share the mapping.
  Region(std::shared_ptr<Host> host, std::vector<int> members, int rank, uint64_t key, Host::Range range,
         std::shared_ptr<Mapping> mapping, std::vector<std::string> backends = {"shm"});
  ~Region() override;

  const int rank;
  const int size;
  const size_t num_lanes;
  const size_t area_bytes;
  const size_t chunk_bytes;
  const size_t num_bulk_slots;
  const size_t ring_bytes;
  const size_t ring_message_bytes;
  const std::string& backend_name(size_t backend) const { return backends_[backend]; }

  HeaderLine& line(size_t lane, uint64_t round, int peer) const {
    return lines_[(2 * lane + (round & 1)) * size_ + static_cast<size_t>(peer)];
  }
  std::byte* eager(uint64_t round, int peer) const { return eager_ + ((round & 1) * size_ + peer) * kEagerBytes; }
  RankFlags& flags(int peer) const { return flags_[peer]; }
  Detail& detail(size_t lane, int peer) const { return details_[lane * size_ + static_cast<size_t>(peer)]; }
  void note_issued(const Operation& op) const;
  // The operation that the member issued under that sequence number, without in, out, site and blocks, and its
  // fingerprint; nothing if unknown.
  std::optional<std::pair<Operation, uint64_t>> issued(int peer, uint64_t seq) const;
  std::byte* in_area(int peer) const { return stage(peer); }
  std::byte* out_area(int peer) const { return stage(peer) + area_bytes; }
  PipeControl& control(Channel channel, int sender, int receiver) const {
    return controls_[static_cast<size_t>(channel)]
                    [static_cast<uint64_t>(sender) * size_ + static_cast<uint64_t>(receiver)];
  }
  std::byte* ring_of(Channel channel, int sender, int receiver) const { return pipe(channel, sender, receiver); }
  std::byte* bulk_slot(Channel channel, int sender, int receiver, uint64_t index) const {
    return pipe(channel, sender, receiver) + ring_bytes + (index % num_bulk_slots) * kBulkBytes;
  }

  // Allocate pages of this rank's own part at first use. Throw ResourceExhausted.
  void need_stage();
  void need_controls(Channel channel);
  void need_pipe(Channel channel, int receiver);

  int host_rank(int peer) const { return members_[static_cast<size_t>(peer)]; }
  Host& host() const { return *host_; }
  int pid(int peer) const { return host_->pid(host_rank(peer)); }
  void ring_peer(int peer) const { ring(*doorbells_[peer]); }
  void ring_peers() const {
    for (int peer = 0; peer < size; ++peer)
      if (peer != rank) ring(*doorbells_[peer]);
  }

  // The members whose process has ended without finalizing.
  std::vector<int> dead() const;
  // Whether a member has finalized the communicator or the job.
  bool has_left(int peer) const;
  // The members that died, or left before they arrived; sets `missing` to the members that have not arrived. A member
  // may arrive and leave during this call, so the members that left are read first.
  std::vector<int> gone_before_arriving(std::vector<int>& missing) const;
  // The abort if a member aborted the communicator, else PeerFailure for the members that are gone.
  Error gone_error(const std::vector<int>& ranks) const;
  // The members that left: each has completed its part of its operations. Call left() before the awaited ranks are
  // determined: then all data that these members published is visible.
  std::vector<int> left() const;
  std::optional<Error> failure_of(const std::vector<int>& left, const std::vector<int>& awaited) const;
  // Publishes an abort for all members; only the first abort counts.
  void post_abort(const Error& error) const override;
  std::optional<Error> find_abort() const;
  std::optional<Error> check_peers() const override;

 private:
  struct Abort;
  std::byte* stage(int peer) const { return stages_ + static_cast<size_t>(peer) * 2 * area_bytes; }
  size_t pipe_bytes() const { return ring_bytes + num_bulk_slots * kBulkBytes; }
  size_t pipe_index(Channel channel, int sender, int receiver) const {
    return (static_cast<size_t>(channel) * size_ + static_cast<size_t>(sender)) * size_ + static_cast<size_t>(receiver);
  }
  std::byte* pipe(Channel channel, int sender, int receiver) const {
    return pipes_ + pipe_index(channel, sender, receiver) * pipe_bytes();
  }
  void allocate(const std::byte* begin, size_t nbytes) const;

  std::shared_ptr<Host> host_;
  std::vector<int> members_;
  std::vector<DoorbellPage*> doorbells_;
  uint64_t key_;
  uint64_t offset_;
  uint64_t size_;  // unsigned, for the index arithmetic above
  std::vector<std::string> backends_;
  std::shared_ptr<Mapping> mapping_;
  Abort* abort_;
  HeaderLine* lines_;
  RankFlags* flags_;
  Detail* details_;
  Issued* issued_;
  std::byte* eager_;
  std::array<PipeControl*, kNumChannels> controls_;
  std::byte* stages_;
  std::byte* pipes_;
  bool has_stage_ = false;
  std::vector<bool> has_pipe_;
};

}  // namespace hocket
