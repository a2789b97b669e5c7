#include "runtime/engine/ops/op_check.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "runtime/control/scope.h"

namespace sirtaki::engine {
namespace {

// Returns an error text if `ranks` of an operation or stream are no valid process set, or if `name` ends like one;
// empty if both are valid.
std::string scope_error(const std::string& name, const std::vector<Rank>& ranks, Rank rank, int size) {
  if (control::has_scope(name)) {
    return "a name that ends like this one means a process set; take another";
  }
  if (ranks.empty()) {
    return {};
  }
  const bool ascending = std::ranges::adjacent_find(ranks, std::greater_equal<>()) == ranks.end();
  if (!ascending || ranks.front() < 0 || ranks.back() >= size) {
    return "a process set has ranks from 0 to " + std::to_string(size - 1) + ", each once, in order";
  }
  if (!std::ranges::binary_search(ranks, rank)) {
    return "this rank is not in the process set, so it takes no part in its operations";
  }
  return {};
}

class Checker {
 public:
  Checker(const OpSpec& spec, Rank rank, int size)
      : spec_(spec),
        rank_(rank),
        job_size_(size),
        size_(spec.ranks.empty() ? size : static_cast<int>(spec.ranks.size())) {}

  Status check() const {
    SRT_TRY(check_scope());
    if (spec_.kind == OpKind::kBarrier) {
      return {};
    }
    SRT_TRY(check_memory());
    switch (spec_.kind) {
      case OpKind::kAllreduce:
        SRT_TRY(check_reduction());
        return check_output();
      case OpKind::kReduceScatter:
        SRT_TRY(check_rows());
        SRT_TRY(check_block());
        return check_reduction();
      case OpKind::kBroadcast:
        SRT_TRY(check_root());
        return check_output();
      case OpKind::kAllgather:
        SRT_TRY(check_rows());
        return check_dtype();
      case OpKind::kAlltoall:
        SRT_TRY(check_rows());
        SRT_TRY(check_dtype());
        return check_splits();
      case OpKind::kBarrier:
        break;
    }
    return {};
  }

 private:
  Status error(const std::string& what, Code code = Code::kInvalidArgument) const {
    const std::string name = spec_.name.empty() ? "an unnamed tensor" : "tensor '" + spec_.name + "'";
    return {code,
            std::string(op_kind_name(spec_.kind)) + " of " + name + " on rank " + std::to_string(rank_) + ": " + what,
            {rank_, spec_.name}};
  }

  Status check_scope() const {
    const std::string wrong = scope_error(spec_.name, spec_.ranks, rank_, job_size_);
    return wrong.empty() ? Status() : error(wrong);
  }

  Status check_memory() const {
    if (spec_.output.data != nullptr && spec_.output.device != spec_.input.device) {
      return error("the input is on " + device_name(spec_.input.device) + " and the output on " +
                   device_name(spec_.output.device));
    }
    if (std::any_of(spec_.dims.begin(), spec_.dims.end(), [](std::int64_t d) { return d < 0; })) {
      return error("negative dimension in " + dims_to_string(spec_.dims));
    }
    const std::int64_t numel =
        std::accumulate(spec_.dims.begin(), spec_.dims.end(), std::int64_t{1}, std::multiplies<>());
    if (numel != spec_.input.numel) {
      return error("shape " + dims_to_string(spec_.dims) + " does not hold " + std::to_string(spec_.input.numel) +
                   " elements");
    }
    if (numel != 0 && spec_.input.data == nullptr) {
      return error("no memory given");
    }
    if (!spec_.strides.empty() && spec_.strides.size() != spec_.dims.size()) {
      return error("strides and shape differ in length");
    }
    return {};
  }

  Status check_output() const {
    if (spec_.output.numel != spec_.input.numel || spec_.output.dtype != spec_.input.dtype) {
      return error("input and output differ in size or data type");
    }
    return {};
  }

  // The sizes of blocks are known later, when the ranks have exchanged them.
  Status check_dtype() const {
    if (spec_.output.data != nullptr && spec_.output.dtype != spec_.input.dtype) {
      return error("input and output differ in data type");
    }
    return {};
  }

  Status check_reduction() const {
    if (spec_.reduce_op == ReduceOp::kAverage && spec_.input.dtype == DType::kBool) {
      return error("the average of bool values is not defined; use sum (or), product (and), or cast the tensor");
    }
    if (spec_.reduce_op == ReduceOp::kAdasum && spec_.kind != OpKind::kAllreduce) {
      return error("Adasum combines whole tensors; use allreduce, or average", Code::kUnsupported);
    }
    if (spec_.reduce_op == ReduceOp::kAdasum && !dtype_is_floating(spec_.input.dtype)) {
      return error("Adasum combines floating-point values, not " + std::string(dtype_name(spec_.input.dtype)) +
                   "; use average, or cast the tensor");
    }
    const bool scaled = spec_.prescale != 1.0 || spec_.postscale != 1.0;
    if (scaled && spec_.input.dtype == DType::kBool) {
      return error("bool values cannot be scaled");
    }
    return {};
  }

  Status check_rows() const {
    if (spec_.dims.empty()) {
      return error("a tensor without dimensions has no rows to distribute; reshape it to [1]");
    }
    return {};
  }

  // An allocation on a GPU may wait for its kernels, and those of NCCL for other ranks. Requires check_rows().
  Status check_block() const {
    if (spec_.input.device.type == DeviceType::kCpu || spec_.output.data != nullptr) {
      return {};
    }
    const std::int64_t rows = spec_.dims.front();
    const auto place = spec_.ranks.empty() ? rank_ : std::ranges::lower_bound(spec_.ranks, rank_) - spec_.ranks.begin();
    const std::int64_t own = scattered_rows(rows, size_, static_cast<Rank>(place));
    const std::int64_t numel = rows == 0 ? 0 : own * (spec_.input.numel / rows);
    if (numel == 0) {
      return {};
    }
    return error("the runtime allocates no results on a GPU; give an output of " + std::to_string(numel) +
                 " elements on " + device_name(spec_.input.device));
  }

  Status check_root() const {
    if (spec_.root < 0 || spec_.root >= job_size_) {
      return error("root rank " + std::to_string(spec_.root) + " does not exist; ranks are 0 to " +
                   std::to_string(job_size_ - 1));
    }
    if (!spec_.ranks.empty() && !std::ranges::binary_search(spec_.ranks, spec_.root)) {
      return error("root rank " + std::to_string(spec_.root) + " is not in the process set");
    }
    return {};
  }

  Status check_splits() const {
    const std::int64_t rows = spec_.dims.front();
    if (spec_.splits.empty()) {
      if (rows % size_ != 0) {
        return error("splits not provided, but the first dimension (" + std::to_string(rows) +
                     ") is not a multiple of the number of ranks (" + std::to_string(size_) + ")");
      }
      return {};
    }
    if (static_cast<int>(spec_.splits.size()) != size_) {
      return error("splits has " + std::to_string(spec_.splits.size()) + " entries but there are " +
                   std::to_string(size_) + " ranks");
    }
    if (std::any_of(spec_.splits.begin(), spec_.splits.end(), [](std::int64_t s) { return s < 0; })) {
      return error("negative number of rows in splits");
    }
    const std::int64_t sum = std::accumulate(spec_.splits.begin(), spec_.splits.end(), std::int64_t{0});
    if (sum != rows) {
      return error("the sum of splits (" + std::to_string(sum) + ") is not the first dimension (" +
                   std::to_string(rows) + ")");
    }
    return {};
  }

  const OpSpec& spec_;
  const Rank rank_;
  const int job_size_;
  const int size_;  // number of ranks that take part
};

}  // namespace

std::int64_t scattered_rows(std::int64_t rows, int size, Rank place) {
  return rows / size + (place < rows % size ? 1 : 0);
}

Status check_op(const OpSpec& spec, Rank rank, int size) {
  return Checker(spec, rank, size).check();
}

Status check_stream(const StreamSpec& spec, Rank rank, int size) {
  if (spec.name.empty()) {
    return invalid_argument("a stream needs a name");
  }
  if (const std::string wrong = scope_error(spec.name, spec.ranks, rank, size); !wrong.empty()) {
    return invalid_argument("stream '" + spec.name + "' on rank " + std::to_string(rank) + ": " + wrong);
  }
  if (spec.reduce_op != ReduceOp::kSum && spec.reduce_op != ReduceOp::kAverage) {
    return invalid_argument("stream '" + spec.name + "': only sum and average are possible, not " +
                            std::string(reduce_op_name(spec.reduce_op)));
  }
  std::set<std::string> names;
  for (const StreamTensor& tensor : spec.tensors) {
    if (!names.insert(tensor.name).second) {
      return invalid_argument("stream '" + spec.name + "': two tensors are named '" + tensor.name + "'");
    }
    if (spec.reduce_op == ReduceOp::kAverage && tensor.dtype == DType::kBool) {
      return invalid_argument("stream '" + spec.name + "': the average of bool tensor '" + tensor.name +
                              "' is not defined");
    }
  }
  return {};
}

}  // namespace sirtaki::engine
