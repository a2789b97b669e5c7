#include "scheduler/plan.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_set>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/wire.h"
#include "scheduler/arith.h"

namespace sirtaki::scheduler {
namespace {

constexpr std::int64_t kLargestElement = 8;  // bytes
// Every partition costs memory on every rank, and a tag has 20 bits for its position, of which the two largest are the
// stream's own exchanges (runtime/engine/tags.h).
constexpr std::int64_t kMaxPartitions = (1 << 20) - 2;
// The first bucket is small, so that the network has something to do early, and those that follow grow. Twice the
// bytes take twice as long, so the next one is complete in time.
constexpr std::int64_t kFirstBucketBytes = 64 << 10;

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

// Walks the tensors in order. Partitions are sent strictly by position, so a bucket takes the place of its last
// member: earlier it would hold up tensors that are ready before it is.
class Layout {
 public:
  Layout(const std::vector<PlannedTensor>& tensors, const LayoutOptions& options)
      : tensors_(tensors), options_(options), bucket_bytes_(std::min(options.fusion_bytes, kFirstBucketBytes)) {}

  void add(int index, std::int64_t place) {
    const PlannedTensor& tensor = tensors_[static_cast<std::size_t>(index)];
    if (tensor.numel == 0) {
      return;
    }
    if (bytes_of(tensor) <= options_.fusion_bytes) {
      add_to_bucket(index, place);
    } else {
      cut(index, place);
    }
  }

  Result<std::vector<Partition>> finish(const Decision& decision) {
    for (Placed& bucket : open_) {
      close(bucket);
    }
    if (partition_count_ > kMaxPartitions) {
      return invalid_argument("the tensors make " + std::to_string(partition_count_) + " partitions, more than " +
                              std::to_string(kMaxPartitions) + "; raise partition_bytes");
    }
    std::stable_sort(done_.begin(), done_.end(), [](const Placed& a, const Placed& b) { return a.place < b.place; });
    std::vector<Partition> partitions;
    partitions.reserve(done_.size());
    for (Placed& placed : done_) {
      placed.partition.decision = decision;
      partitions.push_back(std::move(placed.partition));
    }
    return partitions;
  }

 private:
  struct Placed {
    Partition partition;
    std::int64_t place = 0;  // of its last member in the order
  };

  void add_to_bucket(int index, std::int64_t place) {
    const PlannedTensor& tensor = tensors_[static_cast<std::size_t>(index)];
    Placed& bucket = open_[static_cast<std::size_t>(tensor.dtype)];
    if (static_cast<std::int64_t>(bucket.partition.size_bytes()) + bytes_of(tensor) > bucket_bytes_) {
      close(bucket);
    }
    bucket.partition.dtype = tensor.dtype;
    bucket.partition.slices.push_back({index, 0, tensor.numel, bucket.partition.numel});
    bucket.partition.numel += tensor.numel;
    bucket.place = place;
  }

  void close(Placed& bucket) {
    if (!bucket.partition.slices.empty()) {
      ++partition_count_;
      bucket_bytes_ = std::min(2 * bucket_bytes_, options_.fusion_bytes);
      done_.push_back(std::move(bucket));
    }
    bucket = {};
  }

  // Nearly equal pieces: no small rest that costs a round trip of its own.
  void cut(int index, std::int64_t place) {
    const PlannedTensor& tensor = tensors_[static_cast<std::size_t>(index)];
    const auto size = static_cast<std::int64_t>(dtype_size(tensor.dtype));
    const std::int64_t blocks = divide_up(tensor.numel, options_.alignment);
    const std::int64_t pieces = divide_up(blocks, options_.partition_bytes / size / options_.alignment);
    partition_count_ += pieces;
    if (partition_count_ > kMaxPartitions) {
      return;
    }
    std::int64_t offset = 0;
    for (std::int64_t i = 0; i < pieces; ++i) {
      const std::int64_t share = blocks / pieces + (i < blocks % pieces ? 1 : 0);
      const std::int64_t numel = std::min(share * options_.alignment, tensor.numel - offset);
      Placed piece;
      piece.partition.dtype = tensor.dtype;
      piece.partition.numel = numel;
      piece.partition.slices.push_back({index, offset, numel, 0});
      piece.place = place;
      done_.push_back(std::move(piece));
      offset += numel;
    }
  }

  const std::vector<PlannedTensor>& tensors_;
  const LayoutOptions& options_;
  std::int64_t bucket_bytes_;  // what a bucket may hold now
  std::array<Placed, kDTypeCount> open_;
  std::vector<Placed> done_;
  std::int64_t partition_count_ = 0;
};

void put_decision(WireWriter& out, const Decision& decision) {
  out.put(static_cast<std::uint16_t>(decision.codec));
  out.put(static_cast<std::uint16_t>(decision.recipe));
  out.put_list(decision.params);
}

void put_tensors(WireWriter& out, const std::vector<PlannedTensor>& tensors) {
  out.put(static_cast<std::uint64_t>(tensors.size()));
  for (const PlannedTensor& tensor : tensors) {
    out.put_string(tensor.name);
    out.put(tensor.numel);
    out.put(tensor.dtype);
  }
}

// What the layout was made from as well as the layout: ranks that run different builds, or differ in an option that
// happens not to matter for these tensors, are found at once.
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
    put_decision(out, partition.decision);
  }
}

Status bad_slice(const PlannedTensor& tensor, std::string text) {
  return {Code::kInvalidArgument, "tensor '" + tensor.name + "' " + std::move(text), {-1, tensor.name}};
}

Status check_slice(const Slice& slice, const Partition& partition, const PlanParts& parts) {
  if (slice.tensor < 0 || static_cast<std::size_t>(slice.tensor) >= parts.tensors.size()) {
    return invalid_argument("a partition holds a part of tensor " + std::to_string(slice.tensor) + " of " +
                            std::to_string(parts.tensors.size()));
  }
  const PlannedTensor& tensor = parts.tensors[static_cast<std::size_t>(slice.tensor)];
  if (tensor.dtype != partition.dtype) {
    return bad_slice(tensor, "is in a partition of another dtype");
  }
  if (slice.offset < 0 || slice.offset > tensor.numel || slice.numel < 1 || slice.numel > tensor.numel - slice.offset) {
    return bad_slice(tensor, "of " + std::to_string(tensor.numel) + " elements has no part of " +
                                 std::to_string(slice.numel) + " from " + std::to_string(slice.offset) + " on");
  }
  if (slice.offset % parts.alignment != 0) {
    return bad_slice(tensor, "is cut at element " + std::to_string(slice.offset) + ", not a multiple of " +
                                 std::to_string(parts.alignment));
  }
  return {};
}

// Inside a partition slices follow each other without a gap.
Status check_partition(const Partition& partition, const PlanParts& parts) {
  std::int64_t at = 0;
  for (const Slice& slice : partition.slices) {
    SRT_TRY(check_slice(slice, partition, parts));
    if (slice.at != at || slice.numel > std::numeric_limits<std::int64_t>::max() / kLargestElement - at) {
      return bad_slice(parts.tensors[static_cast<std::size_t>(slice.tensor)], "is at a wrong place in its partition");
    }
    at += slice.numel;
  }
  if (at == 0 || at != partition.numel) {
    return invalid_argument("a partition of " + std::to_string(partition.numel) + " elements has parts of " +
                            std::to_string(at));
  }
  return {};
}

// Every element of every tensor exactly once.
Status check_coverage(const PlanParts& parts) {
  std::vector<Slice> slices;
  std::vector<std::size_t> last_in(parts.tensors.size(), 0);
  for (std::size_t i = 0; i < parts.partitions.size(); ++i) {
    for (const Slice& slice : parts.partitions[i].slices) {
      const auto tensor = static_cast<std::size_t>(slice.tensor);
      if (std::exchange(last_in[tensor], i + 1) == i + 1) {
        return bad_slice(parts.tensors[tensor], "has two parts in one partition");
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
        return bad_slice(parts.tensors[i], (slice->offset < covered ? "is in two partitions from element "
                                                                    : "is in no partition from element ") +
                                               std::to_string(std::min(covered, slice->offset)) + " on");
      }
      covered += slice->numel;
    }
    if (covered != parts.tensors[i].numel) {
      return bad_slice(parts.tensors[i], "is in no partition from element " + std::to_string(covered) + " on");
    }
  }
  return {};
}

Status check_parts(const PlanParts& parts) {
  SRT_TRY(check_tensors(parts.tensors));
  if (parts.alignment < 1) {
    return invalid_argument("alignment is " + std::to_string(parts.alignment) + "; it must be 1 or more");
  }
  if (parts.credit_bytes < 0) {
    return invalid_argument("credit_bytes is " + std::to_string(parts.credit_bytes) + "; it must be 0 or more");
  }
  if (parts.partitions.size() > static_cast<std::size_t>(kMaxPartitions)) {
    return invalid_argument(std::to_string(parts.partitions.size()) + " partitions are more than " +
                            std::to_string(kMaxPartitions) + "; raise partition_bytes");
  }
  for (const Partition& partition : parts.partitions) {
    SRT_TRY(check_partition(partition, parts));
  }
  return check_coverage(parts);
}

std::uint64_t hash_of(const WireWriter& bytes) {
  return XXH64(bytes.bytes().data(), bytes.bytes().size(), 0);
}

}  // namespace

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
      return {Code::kInvalidArgument, "tensor '" + tensor.name + "' is listed twice", {-1, tensor.name}};
    }
    if (tensor.numel < 0 || tensor.numel > std::numeric_limits<std::int64_t>::max() / kLargestElement) {
      return {Code::kInvalidArgument,
              "tensor '" + tensor.name + "' cannot have " + std::to_string(tensor.numel) + " elements",
              {-1, tensor.name}};
    }
  }
  return {};
}

Plan::Plan(std::vector<PlannedTensor> tensors, std::vector<Partition> partitions, std::uint64_t version)
    : version_(version), tensors_(std::move(tensors)), partitions_(std::move(partitions)), of_tensor_(tensors_.size()) {
  for (std::size_t position = 0; position < partitions_.size(); ++position) {
    Partition& partition = partitions_[position];
    partition.position = static_cast<int>(position);
    for (const Slice& slice : partition.slices) {
      of_tensor_[static_cast<std::size_t>(slice.tensor)].push_back(partition.position);
    }
  }
}

Result<std::shared_ptr<const Plan>> Plan::build(std::vector<PlannedTensor> tensors, std::span<const int> order,
                                                const LayoutOptions& options, const Decision& decision,
                                                std::uint64_t version) {
  SRT_TRY(check_layout_options(options));
  SRT_TRY(check_tensors(tensors));
  SRT_TRY(check_order(order, tensors));
  Layout layout(tensors, options);
  for (std::size_t place = 0; place < order.size(); ++place) {
    layout.add(order[place], static_cast<std::int64_t>(place));
  }
  SRT_ASSIGN(auto partitions, layout.finish(decision));
  std::shared_ptr<Plan> plan(new Plan(std::move(tensors), std::move(partitions), version));
  WireWriter bytes;
  bytes.put(version);
  put_decision(bytes, decision);
  put_inputs(bytes, plan->tensors_, order, options);
  put_partitions(bytes, plan->partitions_);
  plan->digest_ = hash_of(bytes);
  return std::shared_ptr<const Plan>(std::move(plan));
}

Result<std::shared_ptr<const Plan>> Plan::from_partitions(PlanParts parts) {
  SRT_TRY(check_parts(parts));
  std::shared_ptr<Plan> plan(new Plan(std::move(parts.tensors), std::move(parts.partitions), parts.version));
  plan->credit_bytes_ = parts.credit_bytes;
  WireWriter bytes;
  bytes.put(parts.version);
  bytes.put(parts.alignment);
  bytes.put(parts.credit_bytes);
  put_tensors(bytes, plan->tensors_);
  put_partitions(bytes, plan->partitions_);
  plan->digest_ = hash_of(bytes);
  return std::shared_ptr<const Plan>(std::move(plan));
}

const std::vector<int>& Plan::partitions_of(int index) const {
  SRT_CHECK(index >= 0 && static_cast<std::size_t>(index) < of_tensor_.size());
  return of_tensor_[static_cast<std::size_t>(index)];
}

}  // namespace sirtaki::scheduler
