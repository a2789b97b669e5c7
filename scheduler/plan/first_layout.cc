#include "scheduler/plan/first_layout.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "scheduler/plan/arith.h"
#include "scheduler/plan/pieces.h"

namespace sirtaki::scheduler {
namespace {

// The first bucket is small, so that the network starts early, and later ones grow. Doubling is fast enough: twice the
// bytes take twice as long to send, which is the time the next bucket has to fill.
constexpr std::int64_t kFirstBucketBytes = 64 << 10;

// Visits the tensors in order. Partitions are sent strictly by position, so a bucket takes the place of its last
// member: an earlier place would hold up tensors that are ready before that member is.
class Layout {
 public:
  Layout(const std::vector<PlannedTensor>& tensors, const LayoutOptions& options)
      : tensors_(tensors), options_(options), bucket_bytes_(std::min(options.fusion_bytes, kFirstBucketBytes)) {}

  void add(int index, std::int64_t place) {
    const PlannedTensor& tensor = tensors_[static_cast<std::size_t>(index)];
    if (tensor.numel == 0) {
      return;
    }
    if (weight_of(tensor) <= options_.fusion_bytes && few_elements(tensor, tensor.numel)) {
      add_to_bucket(index, place);
    } else {
      cut(index, place);
    }
  }

  Result<std::vector<Partition>> finish() {
    for (auto& [kind, bucket] : open_) {
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
      partitions.push_back(std::move(placed.partition));
    }
    return partitions;
  }

 private:
  struct Placed {
    Partition partition;
    std::int64_t weight = 0;
    std::int64_t place = 0;  // that of the last member in the order
  };

  void add_to_bucket(int index, std::int64_t place) {
    const PlannedTensor& tensor = tensors_[static_cast<std::size_t>(index)];
    Placed& bucket = open_[kind_of(tensor)];
    if (bucket.weight + weight_of(tensor) > bucket_bytes_ ||
        !few_elements(tensor, bucket.partition.numel + tensor.numel)) {
      close(bucket);
    }
    bucket.partition.dtype = tensor.dtype;
    bucket.partition.format = tensor.decision.format();
    bucket.partition.slices.push_back({index, 0, tensor.numel, bucket.partition.numel});
    bucket.partition.numel += tensor.numel;
    bucket.weight += weight_of(tensor);
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

  // Returns the limit of a piece in elements.
  std::int64_t largest_piece(const PlannedTensor& tensor) const {
    if (!tensor.decision.format().compressed()) {
      return options_.partition_bytes / static_cast<std::int64_t>(dtype_size(tensor.dtype));
    }
    const Wide by_weight = Wide{options_.partition_bytes} * tensor.numel / std::max<std::int64_t>(weight_of(tensor), 1);
    return static_cast<std::int64_t>(std::min<Wide>(by_weight, kMaxCompressedElements));
  }

  void cut(int index, std::int64_t place) {
    const PlannedTensor& tensor = tensors_[static_cast<std::size_t>(index)];
    const Pieces pieces(tensor, index, options_.alignment, largest_piece(tensor));
    partition_count_ += pieces.count();
    if (partition_count_ > kMaxPartitions) {
      return;
    }
    for (std::int64_t i = 0; i < pieces.count(); ++i) {
      const Slice slice = pieces.slice(i);
      done_.push_back({make_partition(tensors_, {&slice, 1}), 0, place});
    }
  }

  const std::vector<PlannedTensor>& tensors_;
  const LayoutOptions& options_;
  std::int64_t bucket_bytes_;  // limit of the next bucket
  std::map<Kind, Placed> open_;
  std::vector<Placed> done_;
  std::int64_t partition_count_ = 0;
};

}  // namespace

Result<std::vector<Partition>> first_layout(const std::vector<PlannedTensor>& tensors, std::span<const int> order,
                                            const LayoutOptions& options) {
  Layout layout(tensors, options);
  for (std::size_t place = 0; place < order.size(); ++place) {
    layout.add(order[place], static_cast<std::int64_t>(place));
  }
  return layout.finish();
}

}  // namespace sirtaki::scheduler
