#include "bind/errors.hpp"

namespace hocket {

namespace {

const char* class_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "InvalidArgument";
    case ErrorCode::invalid_type:
      return "InvalidType";
    case ErrorCode::unsupported_dtype:
      return "UnsupportedDtype";
    case ErrorCode::invalid_state:
      return "InvalidState";
    case ErrorCode::collective_mismatch:
      return "CollectiveMismatch";
    case ErrorCode::comm_timeout:
      return "CommTimeout";
    case ErrorCode::peer_failure:
      return "PeerFailure";
    case ErrorCode::aborted:
      return "Aborted";
    case ErrorCode::resource_exhausted:
      return "ResourceExhausted";
    case ErrorCode::backend_unavailable:
      return "BackendUnavailable";
    case ErrorCode::bootstrap_mismatch:
      return "BootstrapMismatch";
    case ErrorCode::interrupted:
      break;
  }
  return "HocketError";
}

}  // namespace

PyObject* make_exception(const Error& error) {
  nb::object type = nb::module_::import_("hocket.errors").attr(class_name(error.code));
  if (error.code != ErrorCode::comm_timeout && error.code != ErrorCode::peer_failure)
    return type(error.message.c_str()).release().ptr();
  nb::list ranks;
  for (int rank : error.ranks) ranks.append(rank);
  return type(error.message.c_str(), nb::tuple(ranks)).release().ptr();
}

void set_error(const Error& error) {
  try {
    nb::object exception = nb::steal(make_exception(error));
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  } catch (nb::python_error& failed) {
    failed.restore();  // at interpreter exit the import may fail; that error is shown instead
  }
}

}  // namespace hocket
