// From the structs of the C interface to the engine's values, with every check that needs no other rank.
//
// Pure functions; any thread. Errors are kInvalidArgument and name the field and the tensor.
#pragma once

#include <string>
#include <vector>

#include "adapters/c/sirtaki.h"
#include "runtime/base/task.h"
#include "runtime/base/tensor.h"
#include "runtime/engine/session.h"

namespace sirtaki::adapters {

// A described tensor: its memory, dimensions and strides (empty: row-major).
struct TensorSpec {
  TensorView view;
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> strides;
};

enum class Data { kNeeded, kMayBeNull };

// A struct of the interface that is at least as new as this library.
template <class Struct>
Status check_size(const Struct& value, const char* name) {
  if (value.struct_size < sizeof(Struct)) {
    return invalid_argument(std::string(name) + ".struct_size is " + std::to_string(value.struct_size) +
                            ", expected sizeof(" + name + ") = " + std::to_string(sizeof(Struct)) +
                            "; set it before the call");
  }
  return {};
}

// `what` names the tensor in messages.
Result<TensorSpec> to_tensor(const sirtaki_tensor& tensor, Data data, const std::string& what);
// As to_tensor() for one whose dimensions were checked before: no copy of them is made.
Result<TensorView> to_view(const sirtaki_tensor& tensor, const std::string& what);
Result<engine::OpSpec> to_op(const sirtaki_request_args& args);
Result<engine::StreamSpec> to_stream(const sirtaki_stream_args& args);

// A timeout in milliseconds; negative ones wait without limit.
Duration to_duration(std::int64_t timeout_ms);
// What a wait answers whose time is over.
Status timed_out();

// True when `strides` walks dims' elements without hole or overlap.
bool is_dense(const std::vector<std::int64_t>& dims, const std::vector<std::int64_t>& strides);

}  // namespace sirtaki::adapters
