// Collectives with an array that has a block for every rank, of equal sizes or of sizes that the caller gives.
#include "bind/arguments.hpp"
#include "bind/gil.hpp"
#include "bind/methods.hpp"
#include "bind/operands.hpp"

namespace hocket {

namespace {

// The arguments that differ between these operations; counts are given only for the kinds with counts.
struct BlockArguments {
  PyObject* out;
  PyObject* x;
  PyObject* counts = nullptr;     // for the array with blocks; for all_to_allv, for out
  PyObject* in_counts = nullptr;  // for all_to_allv
  bool has_out = true;            // gather: on the root only
  bool has_x = true;              // scatter: likewise
};

void check_on_root_only(const Operation& op, const char* argument, PyObject* object, bool is_root) {
  const bool is_given = object && object != Py_None;
  if (is_given == is_root) return;
  throw Failure(ErrorCode::invalid_argument,
                std::string(name(op.kind)) + ": " + (is_root ? "the root needs " : "only the root has ") + argument +
                    (is_root ? ", with a block for every rank" : "; pass None on the other ranks"));
}

std::string items_of(const Array& array, const Operation& op) {
  std::string found = std::to_string(array.nbytes() / itemsize(op.dtype)) + " items";
  if (const std::string shape = text(array.shape()); !shape.empty()) found.append(" ").append(shape);
  return found;
}

[[noreturn]] void fail_sizes(const Operation& op, const Arrays& arrays, const std::string& rule, size_t expected,
                             bool is_swapped) {
  std::string message(name(op.kind));
  message.append(": out has ").append(items_of(arrays.out, op)).append(" and x has ").append(items_of(arrays.in, op));
  message.append(", but ").append(rule).append(": ").append(std::to_string(expected / itemsize(op.dtype)));
  message.append(" items");
  if (is_swapped) message.append("; out comes first: ").append(name(op.kind)).append("(out, x)");
  throw Failure(ErrorCode::invalid_argument, message);
}

// All blocks have the size of the array without blocks, or, in all_to_all, an equal part of both arrays.
void set_equal_blocks(Operation& op, const BlockArguments& given, const Arrays& arrays, int size) {
  if (!given.has_x || !given.has_out) return;  // the one array is the block
  const auto n = static_cast<size_t>(size);
  if (op.kind == OpKind::all_to_all) {
    if (arrays.out.nbytes() != arrays.in.nbytes())
      fail_sizes(op, arrays, "out must have the size of x", arrays.in.nbytes(), false);
    if (arrays.in.nbytes() % (n * itemsize(op.dtype)) != 0)
      throw Failure(ErrorCode::invalid_argument,
                    "all_to_all: x has " + std::to_string(arrays.in.nbytes() / itemsize(op.dtype)) +
                        " items, which cannot be split into " + std::to_string(size) + " equal blocks");
    op.nbytes = arrays.in.nbytes() / n;
  } else if (has_output_blocks(op.kind)) {
    op.nbytes = arrays.in.nbytes();
    if (arrays.out.nbytes() != n * op.nbytes)
      fail_sizes(op, arrays, "out must hold the x of every rank", n * op.nbytes,
                 n * arrays.out.nbytes() == arrays.in.nbytes());
  } else {
    op.nbytes = arrays.out.nbytes();
    if (arrays.in.nbytes() != n * op.nbytes)
      fail_sizes(op, arrays, "x must hold one block like out for every rank", n * op.nbytes,
                 n * arrays.in.nbytes() == arrays.out.nbytes());
  }
}

void check_items(const Operation& op, const char* array, const char* counts, uint64_t has, uint64_t expected) {
  if (has == expected) return;
  throw Failure(ErrorCode::invalid_argument, std::string(name(op.kind)) + ": " + array + " has " +
                                                 std::to_string(has / itemsize(op.dtype)) + " items, but " + counts +
                                                 " says " + std::to_string(expected / itemsize(op.dtype)));
}

std::shared_ptr<const Blocks> set_counted_blocks(Operation& op, const BlockArguments& given, uint64_t in_nbytes,
                                                 uint64_t out_nbytes, int rank, int size) {
  auto blocks = std::make_shared<Blocks>();
  blocks->in_nbytes = in_nbytes;
  blocks->out_nbytes = out_nbytes;
  const bool both = op.kind == OpKind::all_to_allv;
  BlockOffsets counts = read_counts(given.counts, both ? "out_counts" : "counts", size, itemsize(op.dtype));
  const uint64_t total = counts.back();
  if (has_output_blocks(op.kind)) {
    if (given.has_out) check_items(op, "out", both ? "out_counts" : "counts", out_nbytes, total);
    if (!both) check_items(op, "x", "counts of this rank", in_nbytes, block_of(counts, rank).nbytes);
    blocks->out = std::move(counts);
  } else {
    if (given.has_x) check_items(op, "x", "counts", in_nbytes, total);
    check_items(op, "out", "counts of this rank", out_nbytes, block_of(counts, rank).nbytes);
    blocks->in = std::move(counts);
  }
  if (both) {
    blocks->in = read_counts(given.in_counts, "in_counts", size, itemsize(op.dtype));
    check_items(op, "x", "in_counts", in_nbytes, blocks->in.back());
    const uint64_t to_itself = block_of(blocks->in, rank).nbytes;
    if (to_itself != block_of(blocks->out, rank).nbytes)
      throw Failure(ErrorCode::invalid_argument,
                    "all_to_allv: in_counts and out_counts of this rank itself differ: " +
                        std::to_string(to_itself / itemsize(op.dtype)) + " and " +
                        std::to_string(block_of(blocks->out, rank).nbytes / itemsize(op.dtype)));
  }
  op.nbytes = both ? in_nbytes : total;
  if (!both) blocks->agreed = hash_of(blocks->in.empty() ? blocks->out : blocks->in);
  op.blocks = blocks.get();
  return blocks;
}

// x may be this rank's own block of out, as in FSDP, or the reverse; any other overlap is an error.
void check_overlap(const Operation& op, const BlockArguments& given, const Arrays& arrays, int rank) {
  if (!given.has_x || !given.has_out || !arrays.out.overlaps(arrays.in)) return;
  const bool in_blocks = has_input_blocks(op.kind);
  const bool out_blocks = has_output_blocks(op.kind);
  if (in_blocks && !out_blocks) {
    const Block own = op.in_block(rank);
    if (arrays.out.is_same_range(op.in + own.offset, own.nbytes) && !arrays.in.is_copy()) return;
  } else if (out_blocks && !in_blocks) {
    const Block own = op.out_block(rank);
    if (arrays.in.is_same_range(op.out + own.offset, own.nbytes)) return;
  }
  throw Failure(ErrorCode::invalid_argument,
                std::string(name(op.kind)) + ": out and x overlap in memory; pass a copy of x");
}

PyObject* run_blocks(PyObject* self, const Entry& entry, Operation op, BlockArguments given, const Options& options) {
  const int rank = entry.core().rank;
  const int size = entry.core().size;
  auto arrays = arrays_pool().take();
  uint64_t in_nbytes = 0;
  uint64_t out_nbytes = 0;
  if (without_counts(op.kind) == OpKind::gather) {
    given.has_out = op.root == rank;
    check_on_root_only(op, "out", given.out, given.has_out);
  } else if (without_counts(op.kind) == OpKind::scatter) {
    given.has_x = op.root == rank;
    check_on_root_only(op, "x", given.x, given.has_x);
  }
  if (!given.has_out) {
    take_in_place(entry, given.x, Access::read, op, *arrays);
    in_nbytes = op.nbytes;
    op.out = nullptr;
  } else if (!given.has_x) {
    take_in_place(entry, given.out, Access::write, op, *arrays);
    out_nbytes = op.nbytes;
    op.in = nullptr;
  } else {
    take_in_and_out(entry, given.out, given.x, op, *arrays);
    in_nbytes = arrays->in.nbytes();
    out_nbytes = arrays->out.nbytes();
  }
  if (reduces(op.kind)) check_reducible(op);
  if (has_counts(op.kind))
    arrays->blocks = set_counted_blocks(op, given, in_nbytes, out_nbytes, rank, size);
  else
    set_equal_blocks(op, given, *arrays, size);
  check_overlap(op, given, *arrays, rank);
  return run(self, entry, op, std::move(arrays), options);
}

}  // namespace

PyObject* all_gather(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<7> signature{
      "all_gather", {"out", "x", "backend", "algorithm", "async_op", "deps", "timeout"}, 2, 2};
  return collective(signature, self, args, nargs, kwnames,
                    [&](const auto& v, const Entry& entry, const Options& options) {
                      return run_blocks(self, entry, {.kind = OpKind::all_gather}, {v[0], v[1]}, options);
                    });
}

PyObject* reduce_scatter(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<8> signature{
      "reduce_scatter", {"out", "x", "op", "backend", "algorithm", "async_op", "deps", "timeout"}, 2, 3};
  return collective(signature, self, args, nargs, kwnames,
                    [&](const auto& v, const Entry& entry, const Options& options) {
                      return run_blocks(self, entry, {.kind = OpKind::reduce_scatter, .reduce = read_reduce(v[2])},
                                        {v[0], v[1]}, options);
                    });
}

PyObject* all_to_all(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<7> signature{
      "all_to_all", {"out", "x", "backend", "algorithm", "async_op", "deps", "timeout"}, 2, 2};
  return collective(signature, self, args, nargs, kwnames,
                    [&](const auto& v, const Entry& entry, const Options& options) {
                      return run_blocks(self, entry, {.kind = OpKind::all_to_all}, {v[0], v[1]}, options);
                    });
}

PyObject* gather(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<8> signature{
      "gather", {"out", "x", "root", "backend", "algorithm", "async_op", "deps", "timeout"}, 3, 3};
  return collective(
      signature, self, args, nargs, kwnames, [&](const auto& v, const Entry& entry, const Options& options) {
        return run_blocks(self, entry, {.kind = OpKind::gather, .root = read_rank(v[2], "root", entry.core().size)},
                          {v[0], v[1]}, options);
      });
}

PyObject* scatter(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<8> signature{
      "scatter", {"out", "x", "root", "backend", "algorithm", "async_op", "deps", "timeout"}, 3, 3};
  return collective(
      signature, self, args, nargs, kwnames, [&](const auto& v, const Entry& entry, const Options& options) {
        return run_blocks(self, entry, {.kind = OpKind::scatter, .root = read_rank(v[2], "root", entry.core().size)},
                          {v[0], v[1]}, options);
      });
}

PyObject* all_gatherv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<8> signature{
      "all_gatherv", {"out", "x", "counts", "backend", "algorithm", "async_op", "deps", "timeout"}, 3, 3};
  return collective(signature, self, args, nargs, kwnames,
                    [&](const auto& v, const Entry& entry, const Options& options) {
                      return run_blocks(self, entry, {.kind = OpKind::all_gatherv}, {v[0], v[1], v[2]}, options);
                    });
}

PyObject* reduce_scatterv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<9> signature{
      "reduce_scatterv", {"out", "x", "counts", "op", "backend", "algorithm", "async_op", "deps", "timeout"}, 3, 4};
  return collective(signature, self, args, nargs, kwnames,
                    [&](const auto& v, const Entry& entry, const Options& options) {
                      return run_blocks(self, entry, {.kind = OpKind::reduce_scatterv, .reduce = read_reduce(v[3])},
                                        {v[0], v[1], v[2]}, options);
                    });
}

PyObject* all_to_allv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<9> signature{
      "all_to_allv",
      {"out", "x", "out_counts", "in_counts", "backend", "algorithm", "async_op", "deps", "timeout"},
      4,
      4};
  return collective(signature, self, args, nargs, kwnames,
                    [&](const auto& v, const Entry& entry, const Options& options) {
                      return run_blocks(self, entry, {.kind = OpKind::all_to_allv}, {v[0], v[1], v[2], v[3]}, options);
                    });
}

PyObject* gatherv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<9> signature{
      "gatherv", {"out", "x", "counts", "root", "backend", "algorithm", "async_op", "deps", "timeout"}, 4, 4};
  return collective(
      signature, self, args, nargs, kwnames, [&](const auto& v, const Entry& entry, const Options& options) {
        return run_blocks(self, entry, {.kind = OpKind::gatherv, .root = read_rank(v[3], "root", entry.core().size)},
                          {v[0], v[1], v[2]}, options);
      });
}

PyObject* scatterv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<9> signature{
      "scatterv", {"out", "x", "counts", "root", "backend", "algorithm", "async_op", "deps", "timeout"}, 4, 4};
  return collective(
      signature, self, args, nargs, kwnames, [&](const auto& v, const Entry& entry, const Options& options) {
        return run_blocks(self, entry, {.kind = OpKind::scatterv, .root = read_rank(v[3], "root", entry.core().size)},
                          {v[0], v[1], v[2]}, options);
      });
}

// An all_gather under the name of the operation that needs it, so that a mismatch names this operation.
PyObject* gather_for(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<3> signature{"_gather_for", {"kind", "out", "x"}, 3, 3};
  return guarded([&] {
    const auto v = signature.read(args, nargs, kwnames);
    const Entry entry(self);
    Operation op{.kind = PyUnicode_CompareWithASCIIString(v[0], "split") == 0 ? OpKind::split : OpKind::dup};
    {
      // The first backend carries the communicator's internal operations, by a schedule if necessary.
      const ProgressGuard guard;
      Communicator& core = entry.core();
      if (core.refuses(0, op)) op.program = core.choose({.kind = OpKind::all_gather}, {.backend = 0}).program;
    }
    return run_blocks(self, entry, op, {v[1], v[2]},
                      {.timeout_s = entry.communicator().timeout_s, .is_internal = true});
  });
}

}  // namespace hocket
