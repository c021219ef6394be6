// Operations over an MPI library: posted by non-blocking functions, driven by MPI_Test.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "mpi/functions.hpp"
#include "mpi/library.hpp"
#include "mpi/user_reduction.hpp"
#include "reduce/reduce.hpp"

namespace hocket {

template <typename Handle, typename Count>
class MpiLibraryOf final : public MpiLibrary, public std::enable_shared_from_this<MpiLibraryOf<Handle, Count>> {
 public:
  MpiLibraryOf(const MpiFacts& facts, void* library) : facts(facts), call(library) {}

  static Handle handle(uint64_t number) {
    if constexpr (std::is_pointer_v<Handle>)
      return reinterpret_cast<Handle>(number);  // NOLINT: an address that mpi4py gave us as a number
    else
      return static_cast<Handle>(number);
  }
  Handle datatype(DType dtype) const { return handle(facts.datatypes[static_cast<size_t>(dtype)]); }

  // The library's reduction, or a user reduction if the library has none for this type.
  Handle reduction(DType dtype, ReduceOp op) {
    if (op == ReduceOp::avg) op = ReduceOp::sum;  // divided afterwards
    const UserReduction<Handle> user = find_user_reduction<Handle>(dtype, op);
    if (!user) return handle(facts.reductions[static_cast<size_t>(op)]);
    std::optional<Handle>& made = user_reductions_[static_cast<size_t>(dtype)][static_cast<size_t>(op)];
    if (!made) {
      Handle created;
      check(call.op_create(user, 1, &created), "MPI_Op_create");
      made = created;
    }
    return *made;
  }

  void check(int code, const char* what) const {
    if (code != 0)
      throw Failure(ErrorCode::aborted, std::string(what) + " of " + facts.backend + ": " + call.text(code));
  }

  std::unique_ptr<Lane> make_collective_lane(uint64_t communicator, int rank, int size) override;
  std::unique_ptr<Lane> make_point_to_point_lane(uint64_t communicator, int rank, int size) override;

  // A lane calls open() when it is made and close() at its end: its communicator may be used between these calls.
  void open(Handle communicator) {
    const std::lock_guard guard(mutex_);
    open_.push_back(communicator);
    note_use();  // other members may still be making the communicator, and wait for data that this one has to send
  }
  void close(Handle communicator) {
    const std::lock_guard guard(mutex_);
    open_.erase(std::find(open_.begin(), open_.end(), communicator));
  }

  const MpiFacts facts;
  const MpiFunctions<Handle, Count> call;

 private:
  // MPI has no function that only makes progress. A probe for a message that no rank sends drives all operations.
  void drive() override {
    const std::lock_guard guard(mutex_);
    int is_finalized = 0;  // a program that initialised MPI itself may also have finalized it
    if (open_.empty() || call.finalized(&is_finalized) != 0 || is_finalized) return;
    int has_message = 0;
    typename MpiFunctions<Handle, Count>::Status status;
    call.iprobe(facts.any_source, facts.max_tag, open_.back(), &has_message, &status);
  }

  std::mutex mutex_;          // lanes are made without the progress lock
  std::vector<Handle> open_;  // one for each lane
  std::array<std::array<std::optional<Handle>, kNumReduceOps>, kNumDTypes> user_reductions_;
};

// The base of the lanes for collectives and for messages.
template <typename Handle, typename Count>
class MpiLane : public Lane {
 public:
  using Library = MpiLibraryOf<Handle, Count>;

  MpiLane(std::shared_ptr<Library> library, Handle communicator, int rank, int size)
      : library_(std::move(library)), communicator_(communicator), rank_(rank), size_(size) {
    library_->open(communicator_);
  }
  ~MpiLane() override { library_->close(communicator_); }

  const char* backend() const override { return library_->facts.backend.c_str(); }
  std::vector<int> missing(const Operation& op) const override {
    // MPI does not report which ranks it waits for.
    if (is_point_to_point(op.kind)) return {op.root};
    return {};
  }
  Polling polling() const override { return Polling::eager; }
  bool keeps_arrays() const override { return true; }
  std::optional<Error> health() override {
    int is_finalized = 0;
    if (library_->call.finalized(&is_finalized) == 0 && !is_finalized) return std::nullopt;
    return Error{ErrorCode::aborted, "the program has finalized MPI while hocket uses it"};
  }

 protected:
  struct Request {
    // The blocks of an array in items, kept until MPI has completed the operation.
    struct Layout {
      std::vector<Count> counts;
      std::vector<typename MpiFunctions<Handle, Count>::Displacement> displacements;
      void set(const BlockOffsets& offsets, size_t itemsize) {
        counts.clear();
        displacements.clear();
        for (size_t r = 0; r + 1 < offsets.size(); ++r) {
          counts.push_back(static_cast<Count>((offsets[r + 1] - offsets[r]) / itemsize));
          displacements.push_back(static_cast<decltype(displacements)::value_type>(offsets[r] / itemsize));
        }
      }
    };
    Handle handle;
    std::vector<std::byte> result;  // used if MPI does not allow the result to be written to op.out
    Layout in;
    Layout out;
  };

  Request& start(Operation& op) {
    if (spare_.empty()) spare_.push_back(std::make_unique<Request>());
    std::unique_ptr<Request> request = std::move(spare_.back());
    spare_.pop_back();
    op.token = request.release();  // owned again in end()
    return request_of(op);
  }
  static Request& request_of(const Operation& op) { return *static_cast<Request*>(op.token); }
  void end(Operation& op) {
    request_of(op).result.clear();
    spare_.emplace_back(static_cast<Request*>(op.token));
    op.token = nullptr;
    library_->note_use();
  }

  std::shared_ptr<Library> library_;
  const Handle communicator_;
  const int rank_;
  const int size_;

 private:
  std::vector<std::unique_ptr<Request>> spare_;
};

template <typename Handle, typename Count>
class MpiCollectiveLane final : public MpiLane<Handle, Count> {
  using Base = MpiLane<Handle, Count>;

 public:
  using Base::Base;

  size_t depth() const override { return 16; }

  std::optional<std::string> refuses(const Operation& op) const override {
    if (reduces(op.kind) && op.reduce == ReduceOp::avg && is_half(op.dtype))
      return "MPI would round the sum to 16 bits before it is divided";
    const uint64_t most = op.blocks ? std::max(op.blocks->in_nbytes, op.blocks->out_nbytes) : op.nbytes;
    if (most / itemsize(op.dtype) > MpiFunctions<Handle, Count>::kMaxCount)
      return "this MPI library takes at most " + std::to_string(MpiFunctions<Handle, Count>::kMaxCount) + " elements";
    return std::nullopt;
  }

  Progress post(Operation& op) override {
    auto& request = this->start(op);
    try {
      this->library_->check(call(op, request), name(op.kind));
    } catch (...) {
      this->end(op);
      throw;
    }
    return Progress::moved;
  }

  Progress test(Operation& op) override {
    auto& request = this->request_of(op);
    int is_done = 0;
    typename MpiFunctions<Handle, Count>::Status status;
    const int code = this->library_->call.test(&request.handle, &is_done, &status);
    if (code == 0 && !is_done) return Progress::waiting;
    if (code == 0) {
      if (!request.result.empty()) std::memcpy(op.out, request.result.data(), request.result.size());
      if (reduces(op.kind) && op.reduce == ReduceOp::avg) divide_sum(op);
    }
    this->end(op);
    this->library_->check(code, name(op.kind));
    return Progress::done;
  }

  bool cancel(Operation& op) noexcept override {
    op.token = nullptr;  // leaked: a collective cannot be cancelled, and MPI continues to use its request
    this->library_->note_use();
    return false;
  }

 private:
  int call(const Operation& op, typename Base::Request& request) {
    auto& library = *this->library_;
    const auto& mpi = library.call;
    const Handle type = library.datatype(op.dtype);
    const Handle comm = this->communicator_;
    const auto count = static_cast<Count>(op.count());
    const auto rank = static_cast<size_t>(this->rank_);
    const auto* in_place = reinterpret_cast<const void*>(library.facts.in_place);  // NOLINT: MPI's marker
    const auto in_or_in_place = [&](const std::byte* own) -> const void* { return op.in == own ? in_place : op.in; };
    if (op.blocks) {
      request.in.set(op.blocks->in, itemsize(op.dtype));
      request.out.set(op.blocks->out, itemsize(op.dtype));
    }
    const Count* in_counts = request.in.counts.data();
    const auto* in_offsets = request.in.displacements.data();
    const Count* out_counts = request.out.counts.data();
    const auto* out_offsets = request.out.displacements.data();
    const bool is_root = op.root == this->rank_;
    switch (op.kind) {
      case OpKind::barrier:
        return mpi.ibarrier(comm, &request.handle);
      case OpKind::all_reduce:
        return mpi.iallreduce(in_or_in_place(op.out), op.out, count, type, library.reduction(op.dtype, op.reduce), comm,
                              &request.handle);
      case OpKind::reduce:
        return mpi.ireduce(op.root == this->rank_ ? in_or_in_place(op.out) : op.in, op.out, count, type,
                           library.reduction(op.dtype, op.reduce), op.root, comm, &request.handle);
      case OpKind::scan:
        return mpi.iscan(in_or_in_place(op.out), op.out, count, type, library.reduction(op.dtype, op.reduce), comm,
                         &request.handle);
      case OpKind::broadcast:
        return mpi.ibcast(op.out, count, type, op.root, comm, &request.handle);
      case OpKind::reduce_scatter:
        return mpi.ireduce_scatter_block(op.in, result_of_reduce_scatter(op, request), count, type,
                                         library.reduction(op.dtype, op.reduce), comm, &request.handle);
      case OpKind::reduce_scatterv:
        return mpi.ireduce_scatter(op.in, result_of_reduce_scatter(op, request), in_counts, type,
                                   library.reduction(op.dtype, op.reduce), comm, &request.handle);
      case OpKind::all_to_all:
        return mpi.ialltoall(op.in, count, type, op.out, count, type, comm, &request.handle);
      case OpKind::all_to_allv:
        return mpi.ialltoallv(op.in, in_counts, in_offsets, type, op.out, out_counts, out_offsets, type, comm,
                              &request.handle);
      case OpKind::gather:
        return mpi.igather(is_root ? in_or_in_place(op.out + rank * op.nbytes) : op.in, count, type, op.out, count,
                           type, op.root, comm, &request.handle);
      case OpKind::gatherv:
        return mpi.igatherv(is_root ? in_or_in_place(op.out + op.out_block(this->rank_).offset) : op.in,
                            request.out.counts[rank], type, op.out, out_counts, out_offsets, type, op.root, comm,
                            &request.handle);
      case OpKind::scatter:
        return mpi.iscatter(op.in, count, type, place_of_scatter(op), count, type, op.root, comm, &request.handle);
      case OpKind::scatterv:
        return mpi.iscatterv(op.in, in_counts, in_offsets, type, place_of_scatter(op), request.in.counts[rank], type,
                             op.root, comm, &request.handle);
      case OpKind::all_gatherv:
        return mpi.iallgatherv(in_or_in_place(op.out + op.out_block(this->rank_).offset), request.out.counts[rank],
                               type, op.out, out_counts, out_offsets, type, comm, &request.handle);
      default:  // all_gather, and split and dup, which gather their arguments
        return mpi.iallgather(in_or_in_place(op.out + rank * op.nbytes), count, type, op.out, count, type, comm,
                              &request.handle);
    }
  }

  // If the output is a block of the input, MPI would write the result to the front of the input.
  std::byte* result_of_reduce_scatter(const Operation& op, typename Base::Request& request) const {
    const Block own = op.in_block(this->rank_);
    if (own.nbytes && op.out != op.in + own.offset) return op.out;
    request.result.reserve(1);  // an empty result needs an address too
    request.result.resize(own.nbytes);
    return request.result.data();
  }

  void* place_of_scatter(const Operation& op) const {
    const bool is_in_place = op.root == this->rank_ && op.out == op.in + op.in_block(this->rank_).offset;
    return is_in_place
               ? const_cast<void*>(reinterpret_cast<const void*>(this->library_->facts.in_place))  // NOLINT: as above
               : op.out;
  }

  void divide_sum(const Operation& op) const {
    if (op.kind == OpKind::reduce && op.root != this->rank_) return;
    divide(op.dtype, op.out, op.blocks ? op.blocks->out_nbytes : op.nbytes, this->size_);
  }
};

template <typename Handle, typename Count>
class MpiPointToPointLane final : public MpiLane<Handle, Count> {
  using Base = MpiLane<Handle, Count>;

 public:
  using Base::Base;

  size_t depth() const override { return SIZE_MAX; }

  std::optional<std::string> refuses(const Operation& op) const override {
    if (op.tag > this->library_->facts.max_tag)
      return "this MPI library takes tags up to " + std::to_string(this->library_->facts.max_tag) + ", not " +
             std::to_string(op.tag);
    if (op.nbytes > MpiFunctions<Handle, Count>::kMaxCount)
      return "this MPI library sends at most " + std::to_string(MpiFunctions<Handle, Count>::kMaxCount) +
             " bytes in a message";
    return std::nullopt;
  }

  Progress post(Operation& op) override {
    auto& request = this->start(op);
    auto& library = *this->library_;
    const Handle byte = library.handle(library.facts.byte);
    const auto count = static_cast<Count>(op.nbytes);
    const int code =
        op.kind == OpKind::send
            ? library.call.isend(op.in, count, byte, op.root, op.tag, this->communicator_, &request.handle)
            : library.call.irecv(op.out, count, byte, op.root, op.tag, this->communicator_, &request.handle);
    if (code != 0) this->end(op);
    library.check(code, name(op.kind));
    return Progress::moved;
  }

  Progress test(Operation& op) override {
    auto& library = *this->library_;
    int is_done = 0;
    typename MpiFunctions<Handle, Count>::Status status{};
    const int code = library.call.test(&this->request_of(op).handle, &is_done, &status);
    if (code == 0 && !is_done) return Progress::waiting;
    this->end(op);
    if (code != 0) {
      int error_class = 0;
      if (op.kind == OpKind::recv && library.call.error_class(code, &error_class) == 0 &&
          error_class == library.facts.error_truncate)
        throw mismatch(op, "more");
      library.check(code, name(op.kind));
    }
    Count received = 0;
    if (op.kind == OpKind::recv &&
        library.call.get_count(&status, library.handle(library.facts.byte), &received) == 0 &&
        static_cast<uint64_t>(received) != op.nbytes)
      throw mismatch(op, std::to_string(received));
    return Progress::done;
  }

  bool cancel(Operation& op) noexcept override {
    bool unnoticed = false;
    int is_finalized = 0;
    const bool is_running = this->library_->call.finalized(&is_finalized) == 0 && !is_finalized;
    if (op.kind == OpKind::recv && is_running) {
      int is_done = 0;
      typename MpiFunctions<Handle, Count>::Status status;
      Handle& handle = this->request_of(op).handle;
      const auto& mpi = this->library_->call;
      unnoticed = mpi.cancel(&handle) == 0 && mpi.test(&handle, &is_done, &status) == 0 && is_done;
    }
    op.token = nullptr;
    this->library_->note_use();
    return unnoticed;
  }

 private:
  Failure mismatch(const Operation& op, const std::string& nbytes) const {
    return {ErrorCode::collective_mismatch,
            "rank " + std::to_string(this->rank_) + ": " + describe(op) + " at " + (op.site ? op.site : "?") +
                "; rank " + std::to_string(op.root) + " sent " + nbytes + " bytes",
            {op.root}};
  }
};

template <typename Handle, typename Count>
std::unique_ptr<Lane> MpiLibraryOf<Handle, Count>::make_collective_lane(uint64_t communicator, int rank, int size) {
  return std::make_unique<MpiCollectiveLane<Handle, Count>>(this->shared_from_this(), handle(communicator), rank, size);
}

template <typename Handle, typename Count>
std::unique_ptr<Lane> MpiLibraryOf<Handle, Count>::make_point_to_point_lane(uint64_t communicator, int rank, int size) {
  return std::make_unique<MpiPointToPointLane<Handle, Count>>(this->shared_from_this(), handle(communicator), rank,
                                                              size);
}

}  // namespace hocket
