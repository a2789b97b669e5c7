#include "scheduler/plan/plan.h"

#include <algorithm>
#include <limits>
#include <unordered_set>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/digest.h"
#include "runtime/base/wire.h"
#include "scheduler/plan/arith.h"
#include "scheduler/plan/first_layout.h"

namespace sirtaki::scheduler {
namespace {

constexpr std::int64_t kLargestElement = 8;  // bytes
constexpr std::int64_t kMostBytes = std::numeric_limits<std::int64_t>::max();

Status check_order(std::span<const int> order, const std::vector<PlannedTensor>& tensors) {
  if (order.size() != tensors.size()) {
    return invalid_argument("the order has " + std::to_string(order.size()) + " entries for " +
                            std::to_string(tensors.size()) + " tensors");
  }
  std::vector<bool> seen(tensors.size(), false);
  for (const int index : order) {
    if (index < 0 || static_cast<std::size_t>(index) >= tensors.size()) {
      return invalid_argument("the order names tensor " + std::to_string(index) + " of " +
                              std::to_string(tensors.size()));
    }
    if (seen[static_cast<std::size_t>(index)]) {
      return invalid_argument("the order names tensor " + std::to_string(index) + " ('" +
                              tensors[static_cast<std::size_t>(index)].name + "') twice");
    }
    seen[static_cast<std::size_t>(index)] = true;
  }
  return {};
}

void put_format(WireWriter& out, const WireFormat& format) {
  out.put(static_cast<std::uint16_t>(format.codec));
  out.put(static_cast<std::uint16_t>(format.reduction));
}

void put_tensors(WireWriter& out, const std::vector<PlannedTensor>& tensors) {
  out.put(static_cast<std::uint64_t>(tensors.size()));
  for (const PlannedTensor& tensor : tensors) {
    out.put_string(tensor.name);
    out.put(tensor.numel);
    out.put(tensor.dtype);
    put_format(out, tensor.decision.format());
    out.put_list(tensor.decision.params);
    out.put_list(tensor.decision.keeps);
    out.put(tensor.stripe);
    out.put(tensor.wire_bytes);
  }
}

// Covers the inputs of the layout as well as the layout: ranks that run different builds, or differ in an option that
// has no effect on these tensors, are found at once.
void put_inputs(WireWriter& out, const std::vector<PlannedTensor>& tensors, std::span<const int> order,
                const LayoutOptions& options) {
  put_tensors(out, tensors);
  for (const int index : order) {
    out.put(index);
  }
  out.put(options.fusion_bytes);
  out.put(options.partition_bytes);
  out.put(options.alignment);
}

void put_partitions(WireWriter& out, const std::vector<Partition>& partitions) {
  out.put(static_cast<std::uint64_t>(partitions.size()));
  for (const Partition& partition : partitions) {
    out.put(partition.dtype);
    out.put(partition.numel);
    out.put(static_cast<std::uint64_t>(partition.slices.size()));
    for (const Slice& slice : partition.slices) {
      out.put(slice.tensor);
      out.put(slice.offset);
      out.put(slice.numel);
      out.put(slice.at);
    }
    put_format(out, partition.format);
  }
}

Status bad_tensor(const PlannedTensor& tensor, std::string text) {
  return {Code::kInvalidArgument, "tensor '" + tensor.name + "' " + std::move(text), {-1, tensor.name}};
}

Status check_slice(const Slice& slice, const Partition& partition, const PlanParts& parts) {
  if (slice.tensor < 0 || static_cast<std::size_t>(slice.tensor) >= parts.tensors.size()) {
    return invalid_argument("a partition holds a slice of tensor " + std::to_string(slice.tensor) + " of " +
                            std::to_string(parts.tensors.size()));
  }
  const PlannedTensor& tensor = parts.tensors[static_cast<std::size_t>(slice.tensor)];
  if (tensor.dtype != partition.dtype) {
    return bad_tensor(tensor, "is in a partition of another dtype");
  }
  if (tensor.decision.format() != partition.format) {
    return bad_tensor(tensor, "is in a partition of another codec or reduction");
  }
  if (slice.offset < 0 || slice.offset > tensor.numel || slice.numel < 1 || slice.numel > tensor.numel - slice.offset) {
    return bad_tensor(tensor, "of " + std::to_string(tensor.numel) + " elements has no slice of " +
                                  std::to_string(slice.numel) + " from " + std::to_string(slice.offset) + " on");
  }
  if (const std::int64_t border = border_of(tensor, parts.alignment); slice.offset % border != 0) {
    return bad_tensor(
        tensor, "is cut at element " + std::to_string(slice.offset) + ", not a multiple of " + std::to_string(border));
  }
  return {};
}

// Inside a partition slices follow each other without a gap.
Status check_partition(const Partition& partition, const PlanParts& parts) {
  std::int64_t at = 0;
  for (const Slice& slice : partition.slices) {
    SRT_TRY(check_slice(slice, partition, parts));
    if (slice.at != at || slice.numel > std::numeric_limits<std::int64_t>::max() / kLargestElement - at) {
      return bad_tensor(parts.tensors[static_cast<std::size_t>(slice.tensor)], "has a wrong offset in its partition");
    }
    at += slice.numel;
  }
  if (at == 0 || at != partition.numel) {
    return invalid_argument("a partition of " + std::to_string(partition.numel) + " elements has slices of " +
                            std::to_string(at));
  }
  return {};
}

// Requires that the partitions hold every element of every tensor exactly once.
Status check_coverage(const PlanParts& parts) {
  std::vector<Slice> slices;
  std::vector<std::size_t> last_in(parts.tensors.size(), 0);
  for (std::size_t i = 0; i < parts.partitions.size(); ++i) {
    for (const Slice& slice : parts.partitions[i].slices) {
      const auto tensor = static_cast<std::size_t>(slice.tensor);
      if (std::exchange(last_in[tensor], i + 1) == i + 1) {
        return bad_tensor(parts.tensors[tensor], "has two slices in one partition");
      }
      slices.push_back(slice);
    }
  }
  std::sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
    return std::pair(a.tensor, a.offset) < std::pair(b.tensor, b.offset);
  });
  auto slice = slices.begin();
  for (std::size_t i = 0; i < parts.tensors.size(); ++i) {
    std::int64_t covered = 0;
    for (; slice != slices.end() && static_cast<std::size_t>(slice->tensor) == i; ++slice) {
      if (slice->offset != covered) {
        return bad_tensor(parts.tensors[i], (slice->offset < covered ? "is in two partitions from element "
                                                                     : "is in no partition from element ") +
                                                std::to_string(std::min(covered, slice->offset)) + " on");
      }
      covered += slice->numel;
    }
    if (covered != parts.tensors[i].numel) {
      return bad_tensor(parts.tensors[i], "is in no partition from element " + std::to_string(covered) + " on");
    }
  }
  return {};
}

Status check_exchange(std::int64_t exchange_bytes) {
  return exchange_bytes >= 0
             ? Status()
             : invalid_argument("exchange_bytes is " + std::to_string(exchange_bytes) + "; it must be 0 or more");
}

Status check_parts(const PlanParts& parts) {
  SRT_TRY(check_tensors(parts.tensors));
  if (parts.alignment < 1) {
    return invalid_argument("alignment is " + std::to_string(parts.alignment) + "; it must be 1 or more");
  }
  if (parts.credit_bytes < 0) {
    return invalid_argument("credit_bytes is " + std::to_string(parts.credit_bytes) + "; it must be 0 or more");
  }
  SRT_TRY(check_exchange(parts.exchange_bytes));
  if (parts.partitions.size() > static_cast<std::size_t>(kMaxPartitions)) {
    return invalid_argument(std::to_string(parts.partitions.size()) + " partitions are more than " +
                            std::to_string(kMaxPartitions) + "; raise partition_bytes");
  }
  for (const Partition& partition : parts.partitions) {
    SRT_TRY(check_partition(partition, parts));
  }
  return check_coverage(parts);
}

void put_exchange(WireWriter& bytes, std::int64_t exchange_bytes) {
  if (exchange_bytes != kAnySize) {
    bytes.put(exchange_bytes);
  }
}

std::uint64_t hash_of(const WireWriter& bytes) {
  return digest_of(bytes.bytes());
}

}  // namespace

std::vector<std::int64_t> Decision::params_of(int rank) const {
  std::vector<std::int64_t> own = params;
  if (!keeps.empty()) {
    own.at(sirtaki::params::kKeep) = keeps.at(static_cast<std::size_t>(rank));
  }
  return own;
}

std::int64_t PlannedTensor::wire_bytes_of(std::int64_t part) const {
  if (wire_bytes == kAsHeld) {
    return part * static_cast<std::int64_t>(dtype_size(dtype));
  }
  return numel == 0 ? 0 : static_cast<std::int64_t>((Wide{wire_bytes} * part + numel - 1) / numel);
}

Status check_layout_options(const LayoutOptions& options) {
  if (options.fusion_bytes < 0) {
    return invalid_argument("fusion_bytes is " + std::to_string(options.fusion_bytes) + "; it must be 0 or more");
  }
  if (options.alignment < 1) {
    return invalid_argument("alignment is " + std::to_string(options.alignment) + "; it must be 1 or more");
  }
  if (options.partition_bytes / kLargestElement < options.alignment) {
    return invalid_argument("partition_bytes is " + std::to_string(options.partition_bytes) +
                            ", less than one aligned block of " + std::to_string(options.alignment) +
                            " elements of 8 bytes; raise it or lower the alignment");
  }
  return {};
}

Status check_tensors(const std::vector<PlannedTensor>& tensors) {
  if (tensors.size() > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    return invalid_argument(std::to_string(tensors.size()) + " tensors are more than a stream can hold");
  }
  std::unordered_set<std::string_view> names;
  for (const PlannedTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      return bad_tensor(tensor, "is listed twice");
    }
    if (tensor.numel < 0 || tensor.numel > kMostBytes / kLargestElement) {
      return bad_tensor(tensor, "cannot have " + std::to_string(tensor.numel) + " elements");
    }
    if (tensor.stripe < 1) {
      return bad_tensor(tensor, "cannot have stripes of " + std::to_string(tensor.stripe) + " elements");
    }
    if (tensor.wire_bytes < PlannedTensor::kAsHeld || tensor.wire_bytes > kMostBytes) {
      return bad_tensor(tensor, "cannot be " + std::to_string(tensor.wire_bytes) + " bytes on the network");
    }
  }
  return {};
}

Plan::Plan(std::vector<PlannedTensor> tensors, std::vector<Partition> partitions, std::uint64_t version)
    : version_(version), tensors_(std::move(tensors)), partitions_(std::move(partitions)), of_tensor_(tensors_.size()) {
  for (std::size_t position = 0; position < partitions_.size(); ++position) {
    Partition& partition = partitions_[position];
    partition.position = static_cast<int>(position);
    partition.wire_bytes = 0;
    for (const Slice& slice : partition.slices) {
      partition.wire_bytes += tensors_[static_cast<std::size_t>(slice.tensor)].wire_bytes_of(slice.numel);
      of_tensor_[static_cast<std::size_t>(slice.tensor)].push_back(partition.position);
    }
  }
}

Result<std::shared_ptr<const Plan>> Plan::build(std::vector<PlannedTensor> tensors, std::span<const int> order,
                                                const LayoutOptions& options, std::uint64_t version,
                                                std::int64_t exchange_bytes) {
  SRT_TRY(check_layout_options(options));
  SRT_TRY(check_exchange(exchange_bytes));
  SRT_TRY(check_tensors(tensors));
  SRT_TRY(check_order(order, tensors));
  SRT_ASSIGN(auto partitions, first_layout(tensors, order, options));
  std::shared_ptr<Plan> plan(new Plan(std::move(tensors), std::move(partitions), version));
  plan->exchange_bytes_ = exchange_bytes;
  WireWriter bytes;
  bytes.put(version);
  put_inputs(bytes, plan->tensors_, order, options);
  put_partitions(bytes, plan->partitions_);
  put_exchange(bytes, plan->exchange_bytes_);
  plan->digest_ = hash_of(bytes);
  return std::shared_ptr<const Plan>(std::move(plan));
}

Result<std::shared_ptr<const Plan>> Plan::from_partitions(PlanParts parts) {
  SRT_TRY(check_parts(parts));
  std::shared_ptr<Plan> plan(new Plan(std::move(parts.tensors), std::move(parts.partitions), parts.version));
  plan->credit_bytes_ = parts.credit_bytes;
  plan->exchange_bytes_ = parts.exchange_bytes;
  WireWriter bytes;
  bytes.put(parts.version);
  bytes.put(parts.alignment);
  bytes.put(parts.credit_bytes);
  put_tensors(bytes, plan->tensors_);
  put_partitions(bytes, plan->partitions_);
  put_exchange(bytes, plan->exchange_bytes_);
  plan->digest_ = hash_of(bytes);
  return std::shared_ptr<const Plan>(std::move(plan));
}

const std::vector<int>& Plan::partitions_of(int index) const {
  SRT_CHECK(index >= 0 && static_cast<std::size_t>(index) < of_tensor_.size());
  return of_tensor_[static_cast<std::size_t>(index)];
}

}  // namespace sirtaki::scheduler
