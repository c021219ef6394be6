#include "bind/methods.hpp"

#include "bind/arguments.hpp"
#include "bind/operands.hpp"

namespace hocket {

PyObject* all_reduce(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<7> signature{
      "all_reduce", {"x", "op", "backend", "algorithm", "async_op", "deps", "timeout"}, 1, 2};
  return collective(signature, self, args, nargs, kwnames,
                    [&](const auto& v, const Entry& entry, const Options& options) {
                      auto arrays = arrays_pool().take();
                      Operation op{.kind = OpKind::all_reduce, .reduce = read_reduce(v[1])};
                      take_in_place(entry, v[0], Access::write, op, *arrays);
                      check_reducible(op);
                      return run(self, entry, op, std::move(arrays), options);
                    });
}

PyObject* scan(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<7> signature{
      "scan", {"x", "op", "backend", "algorithm", "async_op", "deps", "timeout"}, 1, 2};
  return collective(signature, self, args, nargs, kwnames,
                    [&](const auto& v, const Entry& entry, const Options& options) {
                      auto arrays = arrays_pool().take();
                      Operation op{.kind = OpKind::scan, .reduce = read_reduce(v[1])};
                      take_in_place(entry, v[0], Access::write, op, *arrays);
                      if (op.reduce == ReduceOp::avg)
                        throw Failure(ErrorCode::invalid_argument, "scan has no 'avg'; divide its sums");
                      check_reducible(op);
                      return run(self, entry, op, std::move(arrays), options);
                    });
}

PyObject* reduce(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<8> signature{
      "reduce", {"x", "root", "op", "backend", "algorithm", "async_op", "deps", "timeout"}, 2, 3};
  return collective(
      signature, self, args, nargs, kwnames, [&](const auto& v, const Entry& entry, const Options& options) {
        auto arrays = arrays_pool().take();
        Operation op{
            .kind = OpKind::reduce, .reduce = read_reduce(v[2]), .root = read_rank(v[1], "root", entry.core().size)};
        take_in_place(entry, v[0], op.root == entry.core().rank ? Access::write : Access::read, op, *arrays);
        check_reducible(op);
        return run(self, entry, op, std::move(arrays), options);
      });
}

PyObject* broadcast(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<7> signature{
      "broadcast", {"x", "root", "backend", "algorithm", "async_op", "deps", "timeout"}, 2, 2};
  return collective(
      signature, self, args, nargs, kwnames, [&](const auto& v, const Entry& entry, const Options& options) {
        auto arrays = arrays_pool().take();
        Operation op{.kind = OpKind::broadcast, .root = read_rank(v[1], "root", entry.core().size)};
        take_in_place(entry, v[0], op.root == entry.core().rank ? Access::read : Access::write, op, *arrays);
        return run(self, entry, op, std::move(arrays), options);
      });
}

PyObject* all_reduce_coalesced(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<7> signature{
      "all_reduce_coalesced", {"xs", "op", "backend", "algorithm", "async_op", "deps", "timeout"}, 1, 2};
  return collective(signature, self, args, nargs, kwnames,
                    [&](const auto& v, const Entry& entry, const Options& options) {
                      auto arrays = arrays_pool().take();
                      Operation op{.kind = OpKind::all_reduce, .reduce = read_reduce(v[1])};
                      take_parts(entry, v[0], Access::write, op, *arrays);
                      check_reducible(op);
                      return run(self, entry, op, std::move(arrays), options);
                    });
}

PyObject* broadcast_coalesced(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<7> signature{
      "broadcast_coalesced", {"xs", "root", "backend", "algorithm", "async_op", "deps", "timeout"}, 2, 2};
  return collective(signature, self, args, nargs, kwnames,
                    [&](const auto& v, const Entry& entry, const Options& options) {
                      auto arrays = arrays_pool().take();
                      Operation op{.kind = OpKind::broadcast, .root = read_rank(v[1], "root", entry.core().size)};
                      take_parts(entry, v[0], op.root == entry.core().rank ? Access::read : Access::write, op, *arrays);
                      return run(self, entry, op, std::move(arrays), options);
                    });
}

PyObject* barrier(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<5> signature{"barrier", {"backend", "algorithm", "async_op", "deps", "timeout"}, 0, 0};
  return collective(signature, self, args, nargs, kwnames,
                    [&](const auto&, const Entry& entry, const Options& options) {
                      return run(self, entry, Operation{.kind = OpKind::barrier}, arrays_pool().take(), options);
                    });
}

namespace {

template <auto Function>
PyMethodDef method(const char* name, const char* doc) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(Function)), METH_FASTCALL | METH_KEYWORDS, doc};
}

}  // namespace

PyMethodDef* operation_methods() {
  static PyMethodDef methods[] = {
      method<all_reduce>("all_reduce", "Reduce x over all ranks, in place on every rank."),
      method<reduce>("reduce", "Reduce x over all ranks, in place on the root; x of the others stays as it is."),
      method<scan>("scan", "Reduce x over ranks 0 to this one, in place on every rank."),
      method<broadcast>("broadcast", "Copy x of the root into x of every rank."),
      method<all_reduce_coalesced>("all_reduce_coalesced", "all_reduce of several arrays as one, each in place."),
      method<broadcast_coalesced>("broadcast_coalesced", "broadcast of several arrays as one."),
      method<barrier>("barrier", "Return when all ranks have entered."),
      method<all_gather>("all_gather", "Put x of rank r into block r of out, on every rank."),
      method<reduce_scatter>("reduce_scatter",
                             "Reduce x over all ranks and put block r of the result into out of rank r."),
      method<all_to_all>("all_to_all", "Put block r of x into block (own rank) of out on rank r."),
      method<gather>("gather", "Put x of rank r into block r of out on the root; out is None on the others."),
      method<scatter>("scatter", "Put block r of the root's x into out of rank r; x is None on the others."),
      method<all_gatherv>("all_gatherv", "all_gather with counts[r] items of rank r."),
      method<reduce_scatterv>("reduce_scatterv", "reduce_scatter with counts[r] items for rank r."),
      method<all_to_allv>("all_to_allv", "all_to_all with in_counts[r] items to and out_counts[r] from rank r."),
      method<gatherv>("gatherv", "gather with counts[r] items of rank r."),
      method<scatterv>("scatterv", "scatter with counts[r] items for rank r."),
      method<send>("send", "Send x to rank dst."),
      method<recv>("recv", "Receive from rank src into x."),
      method<isend>("isend", "Send x to rank dst; returns a Work."),
      method<irecv>("irecv", "Receive from rank src into x; returns a Work."),
      method<sendrecv>("sendrecv", "Send x to rank dst while receiving from rank src into out."),
      method<batch>("_batch", nullptr),
      method<find_sender>("_find_sender", nullptr),
      method<gather_for>("_gather_for", nullptr),
      {nullptr, nullptr, 0, nullptr}};
  return methods;
}

}  // namespace hocket
