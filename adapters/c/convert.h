// From the structs of the C interface to the engine's values, with every check that needs no other rank.
//
// Pure functions; any thread. Errors are kInvalidArgument and name the field and the tensor. Structs are read as their
// struct_size says (struct_size.h).
#pragma once

#include <string>
#include <vector>

#include "adapters/c/sirtaki.h"
#include "runtime/base/task.h"
#include "runtime/base/tensor.h"
#include "runtime/engine/session/session.h"

namespace sirtaki::adapters {

// A described tensor: its memory, dimensions and strides (empty: row-major).
struct TensorSpec {
  TensorView view;
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> strides;
};

enum class Data { kNeeded, kMayBeNull };

// `what` names the tensor in messages.
Result<TensorSpec> to_tensor(const sirtaki_tensor& given, Data data, const std::string& what);
// As to_tensor() for one whose dimensions were checked before: no copy of them is made.
Result<TensorView> to_view(const sirtaki_tensor& given, const std::string& what);
Result<engine::OpSpec> to_op(const sirtaki_request_args& given);
Result<engine::StreamSpec> to_stream(const sirtaki_stream_args& given);

// A timeout in milliseconds; negative ones wait without limit.
Duration to_duration(std::int64_t timeout_ms);
// What a wait answers whose time is over.
Status timed_out();

// True when `strides` walks dims' elements without hole or overlap.
bool is_dense(const std::vector<std::int64_t>& dims, const std::vector<std::int64_t>& strides);

}  // namespace sirtaki::adapters
