// Collectives over shared memory.
//
// Every operation begins with an agreement: every rank reads one line of every member before data moves
// (docs/decisions/collectives-complete-after-all-have-entered.md).
//  - All members see a mismatch. They then exchange descriptions of their operations and raise; the operation is
//    skipped.
//  - The lane carries one operation at a time. So when the members agree on an operation, all of them have completed
//    the previous one, and all stages are free.
// Contributions up to kEagerBytes travel with the line (eager): such an operation is complete when all lines are read.
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
  // Eager contributions are copied to the host and travel with the line. In all_to_allv only two members know the place
  // of a block.
  bool takes_memory(const Operation& op) const override {
    return !op.device || (!op.program && !is_eager(op) && op.kind != OpKind::all_to_allv && op.device->device >= 0 &&
                          op.device->driver->shares_memory());
  }
  bool keeps_arrays() const override { return has_left_device_arrays_; }

 private:
  // The largest contribution of a member; all members know it.
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
  void run_single_rank(const Operation& op) const;
  void reset_task() {
    task_ = Task();
    host_copies_.reset();
    in_use_.clear();
  }
  // `largest`: the largest block of all members.
  Task start(const Operation& op, uint64_t largest);

  // Payload of a member's line for an operation that is not eager.
  struct Offer {
    uint64_t address;    // of its input
    uint64_t largest;    // all_to_allv: the largest block that it knows; else 0
    uint64_t in_place;   // offset of its input in its part of the heap or in its device allocation; or kNotShared
    uint64_t out_place;  // the same for its output
    bool reads_peers;    // its address is host memory, and it may read the memory of all others
    bool is_on_device;
    bool sees_others;  // it has mapped the heap, or can open the device memory that the others share
  };
  // In addition to Offer, for arrays on a device.
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
  // Places of an operation's chunks in every member's areas: consecutive slots of one size, behind the slots of the
  // previous operation.
  struct Slots {
    uint64_t nbytes;
    uint64_t first;
    uint64_t count;
    uint64_t offset(uint64_t k) const { return (first + k) % count * nbytes; }
  };
  // The algorithms for arrays that all members see, in shared_arrays.cpp. Sharing: which arrays are used in place.
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
  // Reduces pieces on devices; returns the result in host memory, which the next call reuses.
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
  Reached step() const { return finished_by(rank_, 0); }  // already reached: only ends a step
  void publish_staged(uint64_t epoch) const;
  void publish_finished(uint64_t epoch) const;
  uint64_t take_epochs(uint64_t num_chunks);
  Slots take_slots(uint64_t nbytes, uint64_t num_chunks);
  // Division of blocks into pieces; the size of the largest block gives their number.
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
  Task task_;                           // the algorithm of the current operation, once the members agree
  std::unique_ptr<Executor> executor_;  // for operations with a program; made for the first of them
  bool is_executing_ = false;
  uint64_t epoch_ = 1;     // 1 + number of chunks staged so far, equal on all members; why 1: see Region::open
  uint64_t position_ = 0;  // in the areas, equal on all members
  SharedWriter writer_;
  std::vector<const std::byte*> sources_;
  bool reads_peers_;            // whether this process may read the memory of all other members
  std::vector<Offer> offers_;   // of the members, for the current operation
  std::shared_ptr<Heap> heap_;  // null: no member has offered an array in it
  bool cannot_map_ = false;
  bool is_shared_ = false;                  // others read and write the arrays of the current operation
  std::vector<DeviceOffer> device_offers_;  // of the members whose arrays are on a device
  // Per device of this process: the members whose memory it has opened; contains kCannot if opening one failed.
  std::map<std::pair<const MemoryDriver*, int>, std::set<int>> proven_;
  static constexpr int kCannot = -1;
  std::vector<std::shared_ptr<const OpenedAllocation>> in_use_;  // by the current operation
  std::vector<std::byte> scratch_;                               // results of reductions before they are copied
  std::optional<HostCopies> host_copies_;                        // of arrays on a device that not all members see
  bool has_left_device_arrays_ = false;  // a cancelled operation had device arrays, which other members may still write
};

}  // namespace hocket
