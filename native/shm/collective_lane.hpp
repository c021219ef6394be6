// Collectives over shared memory.
//
// Every operation begins with an agreement: every rank reads one line of every member before data moves
// (docs/decisions/collectives-complete-after-all-have-entered.md).
//  - A mismatch is seen by all members, which then exchange what they had wanted and raise; the operation is skipped.
//  - The lane carries one operation at a time, so when the members agree on one, all have completed the one before on
//    this lane: all stages are free.
// Contributions up to kEagerBytes travel with the line, so that small operations are over when the lines are read.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "core/lane.hpp"
#include "core/shared_writer.hpp"
#include "reduce/reduce.hpp"
#include "schedule/executor.hpp"
#include "shm/agreement.hpp"
#include "shm/host_copies.hpp"
#include "shm/opened_memory.hpp"
#include "shm/region.hpp"
#include "shm/task.hpp"

namespace hocket {

class CollectiveLane final : public Lane {
 public:
  explicit CollectiveLane(std::shared_ptr<Region> region);

  const char* backend() const override { return "shm"; }
  Progress post(Operation& op) override;
  Progress test(Operation& op) override;
  std::vector<int> missing(const Operation&) const override { return missing(); }
  bool cancel(Operation& op) noexcept override;
  std::optional<Error> health() override;
  void abandon(const Error& error) noexcept override { region_->post_abort(error); }
  bool is_short(const Operation& op) const override { return is_eager(op); }
  // A few bytes are copied to the host and travel with the line. Of all_to_allv only two members know where a block is.
  bool takes_memory(const Operation& op) const override {
    return !op.device || (!op.program && !is_eager(op) && op.kind != OpKind::all_to_allv && op.device->device >= 0 &&
                          op.device->driver->shares_memory());
  }
  bool keeps_arrays() const override { return has_left_device_arrays_; }

 private:
  // The most that any member gives, which all of them know.
  uint64_t contribution(const Operation& op) const {
    if (!op.blocks) return op.in_nbytes(size_);
    if (op.kind == OpKind::all_to_allv) return UINT64_MAX;
    return has_input_blocks(op.kind) ? op.nbytes : op.largest_block();
  }
  bool is_eager(const Operation& op) const { return !op.program && contribution(op) <= kEagerBytes; }
  std::vector<int> missing() const;
  void need_executor();
  Progress execute(Operation& op);
  void consume_eager(const Operation& op);
  void do_alone(const Operation& op) const;
  void forget_task() {
    task_ = Task();
    host_copies_.reset();
    in_use_.clear();
  }
  // `largest`: the largest block of all members.
  Task start(const Operation& op, uint64_t largest);

  // What a member says in its line of an operation that is not eager.
  struct Offer {
    uint64_t address;    // of its input
    uint64_t largest;    // the largest block that it knows, of all_to_allv; else 0
    uint64_t in_place;   // of its input in its part of the heap, or in its allocation on a device; or kNotShared
    uint64_t out_place;  // likewise, of its output
    bool reads_peers;    // its address is of the host, and it reads those of the others
    bool is_on_device;
    bool sees_others;  // it has mapped the heap, or can open what the others share of their devices
  };
  // Beside it, where the arrays lie on a device.
  struct DeviceOffer {
    SharedAllocation in;
    SharedAllocation out;
  };
  static constexpr uint64_t kNotShared = UINT64_MAX;
  void offer_arrays(const Operation& op);
  void offer_device_arrays(const Operation& op, Offer& offer);
  void read_offers(const Operation& op);
  void map_heap();
  void try_to_open(const Operation& op);
  // Where the chunks of an operation lie in every member's areas: in slots of one size, one after the other, behind
  // those of the operation before.
  struct Slots {
    uint64_t nbytes;
    uint64_t first;
    uint64_t count;
    uint64_t offset(uint64_t k) const { return (first + k) % count * nbytes; }
  };
  // The algorithms for arrays that all members see, in shared_arrays.cpp: which arrays are used where they are.
  enum class Sharing : uint8_t { none, in, out, both };
  Sharing find_sharing(const Operation& op) const;
  Task start_shared(const Operation& op, Sharing sharing);
  Task reduce_in_place(Operation op);
  Task reduce_scatter_in_place(Operation op);
  Task scan_in_place(Operation op);
  Task copy_in_place(Operation op, Sharing sharing);
  std::byte* in_of(const Operation& op, int peer);
  std::byte* out_of(const Operation& op, int peer);
  std::byte* opened(const Operation& op, int peer, const SharedAllocation& allocation);
  // Of pieces on devices; returns the result in memory of the host, which the next call uses again.
  std::byte* reduce_on_host(const Operation& op, const std::vector<const std::byte*>& sources, uint64_t nbytes);
  // The direct algorithms, in direct.cpp.
  bool is_direct(const Operation& op, uint64_t largest) const;
  Task read_directly(Operation op);
  // The staged algorithms, in staged.cpp.
  Task reduce_in_slices(Operation op);
  Task reduce_scatter(Operation op);
  Task scan(Operation op);
  Task all_gather(Operation op);
  Task broadcast(Operation op);
  Task all_to_all(Operation op, uint64_t largest);
  Task gather(Operation op);
  Task scatter(Operation op);
  Reached staged_by(int peer, uint64_t epoch) const { return {region_->flags(peer).staged.value, epoch, peer}; }
  Reached finished_by(int peer, uint64_t epoch) const { return {region_->flags(peer).finished.value, epoch, peer}; }
  Reached step() const { return finished_by(rank_, 0); }  // reached at once
  void publish_staged(uint64_t epoch) const;
  void publish_finished(uint64_t epoch) const;
  uint64_t take_epochs(uint64_t num_chunks);
  Slots take_slots(uint64_t nbytes, uint64_t num_chunks);
  // How blocks, of which the largest is given, go in pieces.
  struct Pieces {
    Slots slots;
    uint64_t nbytes;  // of one
    uint64_t num_chunks;
  };
  Pieces take_pieces(uint64_t largest);
  std::byte* piece_at(const Pieces& pieces, uint64_t k, int from, int to) const;
  void stage_pieces(const Operation& op, const Pieces& pieces, uint64_t k);

  std::shared_ptr<Region> region_;
  const int rank_;
  const int size_;
  Agreement agreement_;
  Task task_;                           // of a staged operation, once its members agree
  std::unique_ptr<Executor> executor_;  // of operations with a program, made for the first of them
  bool is_executing_ = false;
  uint64_t epoch_ = 1;     // chunks staged by operations so far, equal on all members; 1: see Region::open
  uint64_t position_ = 0;  // in the areas, equal on all members
  SharedWriter writer_;
  std::vector<const std::byte*> sources_;
  bool reads_peers_;            // the memory of all other members
  std::vector<Offer> offers_;   // of the members, for the operation at hand
  std::shared_ptr<Heap> heap_;  // null: nobody has offered an array in it
  bool cannot_map_ = false;
  bool is_shared_ = false;                  // others read and write the arrays of the operation at hand
  std::vector<DeviceOffer> device_offers_;  // likewise, of those whose arrays lie on a device
  // The members whose memory was opened, by the device of this process for which it was; kCannot if one's could not be.
  std::map<std::pair<const MemoryDriver*, int>, std::set<int>> proven_;
  static constexpr int kCannot = -1;
  std::vector<std::shared_ptr<const OpenedAllocation>> in_use_;  // by the operation at hand
  std::vector<std::byte> scratch_;                               // what is reduced before it is copied elsewhere
  std::optional<HostCopies> host_copies_;                        // of arrays on a device that not all members see
  bool has_left_device_arrays_ = false;  // in an operation that was given up, whose other members may write on
};

}  // namespace hocket
