#include "adapters/c/convert.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "adapters/c/struct_size.h"

namespace sirtaki::adapters {
namespace {

constexpr int kMaxDims = 64;

Status bad(const std::string& what, const std::string& why) {
  return {Code::kInvalidArgument, what + ": " + why, Blame{-1, what}};
}

// Returns the number of elements; nullopt if their size in bytes overflows.
std::optional<std::int64_t> count_elements(const sirtaki_tensor& tensor, DType dtype) {
  const std::int64_t limit = std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(dtype_size(dtype));
  std::int64_t numel = 1;
  bool empty = false;
  for (int i = 0; i < tensor.ndim; ++i) {
    const std::int64_t dim = tensor.dims[i];
    if (dim == 0) {
      empty = true;
    } else if (numel > limit / dim) {
      return std::nullopt;
    } else {
      numel *= dim;
    }
  }
  return empty ? 0 : numel;
}

Status check_shape(const sirtaki_tensor& tensor, const std::string& what) {
  if (tensor.ndim < 0 || tensor.ndim > kMaxDims) {
    return bad(what, "ndim is " + std::to_string(tensor.ndim) + ", expected 0 to " + std::to_string(kMaxDims));
  }
  if (tensor.ndim > 0 && tensor.dims == nullptr) {
    return bad(what, "dims is NULL");
  }
  for (int i = 0; i < tensor.ndim; ++i) {
    if (tensor.dims[i] < 0) {
      return bad(what, "dimension " + std::to_string(i) + " is " + std::to_string(tensor.dims[i]));
    }
  }
  return {};
}

// `owner` completes the message: "" or " of the stream".
template <class Args>
Status check_scales(const Args& args, const std::string& what, const std::string& owner) {
  if (!std::isfinite(args.prescale) || !std::isfinite(args.postscale)) {
    return bad(what, "prescale and postscale" + owner + " must be finite numbers");
  }
  return {};
}

Status check_ranks_count(std::int32_t count, const std::string& what) {
  if (count < 1 || count > std::numeric_limits<int>::max() / 2) {
    return bad(what, "ranks_count is " + std::to_string(count) + "; a process set has a rank or more");
  }
  return {};
}

Status check_op_fields(const sirtaki_request_args& args, const std::string& what) {
  if (args.op < 0 || args.op >= kOpKindCount) {
    return bad(what, "op " + std::to_string(args.op) + " is no sirtaki_op");
  }
  if (args.reduce_op < 0 || args.reduce_op >= kReduceOpCount) {
    return bad(what, "reduce_op " + std::to_string(args.reduce_op) + " is no sirtaki_reduce_op");
  }
  SRT_TRY(check_scales(args, what, ""));
  if (args.splits != nullptr && (args.splits_count < 0 || args.splits_count > std::numeric_limits<int>::max() / 2)) {
    return bad(what, "splits_count is " + std::to_string(args.splits_count));
  }
  return args.ranks == nullptr ? Status() : check_ranks_count(args.ranks_count, what);
}

bool may_allocate(OpKind kind) {
  return kind == OpKind::kAllgather || kind == OpKind::kAlltoall || kind == OpKind::kReduceScatter;
}

std::string name_of(const sirtaki_request_args& args) {
  if (args.name != nullptr && args.name[0] != '\0') {
    return args.name;
  }
  const bool known = args.op >= 0 && args.op < kOpKindCount;
  return known ? std::string(op_kind_name(static_cast<OpKind>(args.op))) + " (unnamed)" : "request";
}

Status set_tensors(const sirtaki_request_args& args, const std::string& what, engine::OpSpec& op) {
  SRT_ASSIGN(auto input, to_tensor(args.input, Data::kNeeded, what));
  op.input = input.view;
  op.cuda_stream = args.input.cuda_stream;
  op.dims = std::move(input.dims);
  op.strides = std::move(input.strides);
  op.output.dtype = op.input.dtype;
  op.output.device = op.input.device;
  if (args.output.data == nullptr) {
    const bool optional = may_allocate(op.kind) || op.input.numel == 0;
    return optional ? Status() : bad(what, "output.data is NULL");
  }
  SRT_ASSIGN(auto output, to_tensor(args.output, Data::kNeeded, what));
  if (output.view.dtype != op.input.dtype || output.view.device != op.input.device) {
    return bad(what, "input and output differ in dtype or device");
  }
  const bool same_shape = op.kind == OpKind::kAllreduce || op.kind == OpKind::kBroadcast;
  if (same_shape && (output.dims != op.dims || output.strides != op.strides)) {
    return bad(what, "input and output differ in dims or strides");
  }
  if (op.kind == OpKind::kBroadcast && output.view.data != op.input.data) {
    return bad(what, "broadcast is in place: give the same tensor as input and output");
  }
  op.output = output.view;
  return {};
}

}  // namespace

bool is_dense(const std::vector<std::int64_t>& dims, const std::vector<std::int64_t>& strides) {
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) {
    return true;
  }
  std::vector<std::size_t> order(dims.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return strides[a] < strides[b]; });
  std::int64_t expected = 1;
  for (const std::size_t i : order) {
    if (dims[i] == 1) {
      continue;
    }
    if (strides[i] != expected) {
      return false;
    }
    expected *= dims[i];
  }
  return true;
}

Duration to_duration(std::int64_t timeout_ms) {
  constexpr std::int64_t kLongest = 1000LL * 60 * 60 * 24 * 365;
  return timeout_ms < 0 ? Duration(-1) : Duration(std::chrono::milliseconds(std::min(timeout_ms, kLongest)));
}

Status timed_out() {
  return {Code::kTimeout, "the operation has not finished in time and goes on"};
}

Result<TensorView> to_view(const sirtaki_tensor& given, const std::string& what) {
  SRT_ASSIGN(const sirtaki_tensor tensor, known_tensor(&given));
  SRT_TRY(check_shape(tensor, what));
  const auto dtype = dtype_from_wire(static_cast<std::uint8_t>(tensor.dtype));
  if (tensor.dtype < 0 || tensor.dtype >= kDTypeCount || !dtype) {
    return bad(what, "dtype " + std::to_string(tensor.dtype) + " is no sirtaki_dtype");
  }
  const bool on_gpu = tensor.device_type == SIRTAKI_CUDA;
  if (!on_gpu && tensor.device_type != SIRTAKI_CPU) {
    return bad(what, "device_type " + std::to_string(tensor.device_type) + " is no sirtaki_device_type");
  }
  if (on_gpu && tensor.device_index < 0) {
    return bad(what, "device_index is " + std::to_string(tensor.device_index) + "; it is the number of a GPU");
  }
  const auto numel = count_elements(tensor, *dtype);
  if (!numel) {
    return bad(what, "the dimensions multiply to more bytes than there are addresses");
  }
  TensorView view;
  view.data = static_cast<std::byte*>(tensor.data);
  view.numel = *numel;
  view.dtype = *dtype;
  view.device = on_gpu ? Device{DeviceType::kCuda, tensor.device_index} : Device();
  return view;
}

Result<TensorSpec> to_tensor(const sirtaki_tensor& given, Data data, const std::string& what) {
  SRT_ASSIGN(const sirtaki_tensor tensor, known_tensor(&given));
  TensorSpec spec;
  SRT_ASSIGN(spec.view, to_view(tensor, what));
  if (data == Data::kNeeded && spec.view.data == nullptr && spec.view.numel > 0) {
    return bad(what, "data is NULL");
  }
  spec.dims.assign(tensor.dims, tensor.dims + tensor.ndim);
  if (tensor.strides != nullptr) {
    spec.strides.assign(tensor.strides, tensor.strides + tensor.ndim);
    if (!is_dense(spec.dims, spec.strides)) {
      return bad(what, "memory with holes or overlaps (dims " + dims_to_string(spec.dims) + ", strides " +
                           dims_to_string(spec.strides) + "); copy it into dense memory first");
    }
  }
  return spec;
}

Result<engine::OpSpec> to_op(const sirtaki_request_args& given) {
  SRT_ASSIGN(const sirtaki_request_args args, known_request(&given));
  const std::string what = name_of(args);
  SRT_TRY(check_op_fields(args, what));
  engine::OpSpec op;
  op.kind = static_cast<OpKind>(args.op);
  op.name = args.name != nullptr ? args.name : "";
  op.reduce_op = static_cast<ReduceOp>(args.reduce_op);
  op.root = args.root;
  op.prescale = args.prescale;
  op.postscale = args.postscale;
  op.priority = args.priority;
  if (args.splits != nullptr) {
    op.splits.assign(args.splits, args.splits + args.splits_count);
  }
  if (args.ranks != nullptr) {
    op.ranks.assign(args.ranks, args.ranks + args.ranks_count);
  }
  if (op.kind != OpKind::kBarrier) {
    SRT_TRY(set_tensors(args, what, op));
  }
  return op;
}

Result<std::vector<Rank>> to_ranks(const std::int32_t* ranks, std::int32_t count, const std::string& what) {
  if (ranks == nullptr) {
    return std::vector<Rank>();
  }
  SRT_TRY(check_ranks_count(count, what));
  return std::vector<Rank>(ranks, ranks + count);
}

Result<engine::StreamSpec> to_stream(const sirtaki_stream_args& given) {
  SRT_ASSIGN(const sirtaki_stream_args args, known_stream(&given));
  if (args.name == nullptr || args.name[0] == '\0') {
    return invalid_argument("sirtaki_stream_args.name is missing; a stream needs a name that is the same on all ranks");
  }
  if (args.count < 0 || (args.count > 0 && (args.names == nullptr || args.tensors == nullptr))) {
    return bad(args.name, "names, tensors and count of the stream do not fit together");
  }
  if (args.reduce_op != SIRTAKI_SUM && args.reduce_op != SIRTAKI_AVERAGE) {
    return bad(args.name, "a stream sums or averages; reduce_op is " + std::to_string(args.reduce_op));
  }
  SRT_TRY(check_scales(args, args.name, " of the stream"));
  if (args.prescale == 0) {
    // Residuals of compressed gradients are divided by prescale.
    return bad(args.name, "prescale of the stream is 0, which sends nothing");
  }
  engine::StreamSpec spec;
  spec.name = args.name;
  spec.reduce_op = static_cast<ReduceOp>(args.reduce_op);
  spec.prescale = args.prescale;
  spec.postscale = args.postscale;
  spec.codec = args.codec != nullptr ? args.codec : "";
  if (args.first_step < 0) {
    return bad(args.name, "first_step of the stream is " + std::to_string(args.first_step));
  }
  spec.first_step = static_cast<std::uint64_t>(args.first_step);
  SRT_ASSIGN(spec.ranks, to_ranks(args.ranks, args.ranks_count, args.name));
  spec.tensors.reserve(static_cast<std::size_t>(args.count));
  for (int i = 0; i < args.count; ++i) {
    if (args.names[i] == nullptr) {
      return bad(args.name, "names[" + std::to_string(i) + "] is NULL");
    }
    SRT_ASSIGN(const sirtaki_tensor described, tensor_at(args.tensors, i));
    SRT_ASSIGN(auto tensor, to_tensor(described, Data::kMayBeNull, args.names[i]));
    spec.tensors.push_back(
        {args.names[i], std::move(tensor.dims), std::move(tensor.strides), tensor.view.dtype, tensor.view.device});
  }
  if (args.order != nullptr) {
    spec.order.assign(args.order, args.order + args.count);
  }
  return spec;
}

}  // namespace sirtaki::adapters
