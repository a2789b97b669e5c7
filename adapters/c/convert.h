// Converts structs of the C interface to values of the engine, with every check that needs no other rank.
//
// Pure functions; any thread. Errors are kInvalidArgument and name the field and the tensor. The conversions honor
// struct_size (struct_size.h).
#pragma once

#include <string>
#include <vector>

#include "adapters/c/sirtaki.h"
#include "runtime/base/task.h"
#include "runtime/base/tensor.h"
#include "runtime/engine/session/session.h"

namespace sirtaki::adapters {

// A checked tensor: its memory, dimensions and strides (empty: row-major).
struct TensorSpec {
  TensorView view;
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> strides;
};

enum class Data { kNeeded, kMayBeNull };

// Checks and converts a tensor; messages name it by `what`.
Result<TensorSpec> to_tensor(const sirtaki_tensor& given, Data data, const std::string& what);
// Converts a tensor without copying dims and strides; requires that its strides were checked before.
Result<TensorView> to_view(const sirtaki_tensor& given, const std::string& what);
// Returns the operation, or the stream, that the struct describes.
Result<engine::OpSpec> to_op(const sirtaki_request_args& given);
Result<engine::StreamSpec> to_stream(const sirtaki_stream_args& given);

// Returns the ranks of a process set; none if `ranks` is NULL, which stands for all.
Result<std::vector<Rank>> to_ranks(const std::int32_t* ranks, std::int32_t count, const std::string& what);

// Returns a timeout given in milliseconds; a negative one waits without limit.
Duration to_duration(std::int64_t timeout_ms);
// Returns the status of a wait whose timeout has passed.
Status timed_out();

// Returns true if a tensor of these dims and strides has neither holes nor overlaps.
bool is_dense(const std::vector<std::int64_t>& dims, const std::vector<std::int64_t>& strides);

}  // namespace sirtaki::adapters
