#include "bind/methods.hpp"

#include "bind/arguments.hpp"
#include "bind/method_docs.hpp"
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
  static PyMethodDef methods[] = {method<all_reduce>("all_reduce", docs::kAllReduce),
                                  method<reduce>("reduce", docs::kReduce),
                                  method<scan>("scan", docs::kScan),
                                  method<broadcast>("broadcast", docs::kBroadcast),
                                  method<all_reduce_coalesced>("all_reduce_coalesced", docs::kAllReduceCoalesced),
                                  method<broadcast_coalesced>("broadcast_coalesced", docs::kBroadcastCoalesced),
                                  method<barrier>("barrier", docs::kBarrier),
                                  method<all_gather>("all_gather", docs::kAllGather),
                                  method<reduce_scatter>("reduce_scatter", docs::kReduceScatter),
                                  method<all_to_all>("all_to_all", docs::kAllToAll),
                                  method<gather>("gather", docs::kGather),
                                  method<scatter>("scatter", docs::kScatter),
                                  method<all_gatherv>("all_gatherv", docs::kAllGatherv),
                                  method<reduce_scatterv>("reduce_scatterv", docs::kReduceScatterv),
                                  method<all_to_allv>("all_to_allv", docs::kAllToAllv),
                                  method<gatherv>("gatherv", docs::kGatherv),
                                  method<scatterv>("scatterv", docs::kScatterv),
                                  method<send>("send", docs::kSend),
                                  method<recv>("recv", docs::kRecv),
                                  method<isend>("isend", docs::kIsend),
                                  method<irecv>("irecv", docs::kIrecv),
                                  method<sendrecv>("sendrecv", docs::kSendrecv),
                                  method<batch>("_batch", nullptr),
                                  method<find_sender>("_find_sender", nullptr),
                                  method<gather_for>("_gather_for", nullptr),
                                  {nullptr, nullptr, 0, nullptr}};
  return methods;
}

}  // namespace hocket
