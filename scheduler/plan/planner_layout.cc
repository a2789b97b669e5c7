#include "scheduler/plan/planner_layout.h"

#include <algorithm>
#include <map>
#include <utility>

#include "scheduler/plan/arith.h"
#include "scheduler/plan/pieces.h"

namespace sirtaki::scheduler {
namespace {

constexpr std::int64_t kEndlessSlack = std::int64_t{1} << 62;

class Grouper {
 public:
  Grouper(const LayoutInputs& inputs, const GroupingRule& rule)
      : in_(inputs), rule_(rule), full_(inputs.model.occupancy(rule.partition_bytes)), open_(inputs.kind_count) {}

  Grouping run() && {
    for (std::size_t place = 0; place < in_.by_ready.size(); ++place) {
      const int index = in_.by_ready[place];
      const PlannedTensor& tensor = in_.tensors[static_cast<std::size_t>(index)];
      const bool small = in_.payload[static_cast<std::size_t>(index)] <= rule_.partition_bytes &&
                         weight_of(tensor) <= in_.limits.fusion_bytes && few_elements(tensor, tensor.numel);
      if (small) {
        add_to_bucket(index, place);
      } else {
        cut(index);
      }
    }
    for (Bucket& bucket : open_) {
      close(bucket);
    }
    return std::move(out_);
  }

 private:
  struct Bucket {
    std::vector<Slice> slices;
    Job job;
    std::int64_t numel = 0;
    std::int64_t weight = 0;
    std::int64_t last_need = 0;
    std::int64_t slack = 0;  // remaining slack
    std::size_t first_place = 0;
  };

  bool fits(const Bucket& bucket, int index) const {
    const PlannedTensor& tensor = in_.tensors[static_cast<std::size_t>(index)];
    const std::int64_t payload = in_.payload[static_cast<std::size_t>(index)];
    return bucket.weight + weight_of(tensor) <= in_.limits.fusion_bytes &&
           bucket.job.payload + payload <= rule_.partition_bytes && few_elements(tensor, bucket.numel + tensor.numel);
  }

  const TensorTiming* timing(int index) const {
    return rule_.timings.empty() ? nullptr : &rule_.timings[static_cast<std::size_t>(index)];
  }

  std::int64_t time_of(int index) const { return in_.model.occupancy(in_.payload[static_cast<std::size_t>(index)]); }

  // Returns true if the tensors of the bucket may wait until `index` is ready.
  bool may_wait(const Bucket& bucket, int index) {
    const std::int64_t ready = in_.model.ready(index);
    const std::int64_t lost = std::min(ready - bucket.job.ready, in_.model.occupancy(bucket.job.payload));
    if (lost <= in_.model.latency()) {
      return true;
    }
    const std::int64_t in_time = std::max(in_.latest[bucket.first_place], in_.starts[bucket.first_place]);
    const TensorTiming* first = timing(bucket.slices.front().tensor);
    const bool harmless =
        first == nullptr ? ready <= in_time : ready <= first->start || (ready <= in_time && lost <= first->slack / 2);
    out_.same_without_patience &= !harmless;
    return rule_.patient && harmless;
  }

  // Returns true if bucket and `index` have the time to wait for the bytes of each other.
  bool may_carry(const Bucket& bucket, int index) const {
    const TensorTiming* own = timing(index);
    return own == nullptr || (time_of(index) <= bucket.slack &&
                              in_.model.occupancy(bucket.job.payload) <= std::max(own->slack / 2, in_.model.latency()));
  }

  // Returns true if tensors that are needed late delay no other tensor by travelling with early ones.
  bool same_urgency(const Bucket& bucket, int index) const {
    const std::int64_t need = in_.model.need(index);
    const std::int64_t first = std::min(bucket.job.need, need);
    const std::int64_t last = std::max(bucket.last_need, need);
    if (last - first <= full_) {
      return true;
    }
    const auto begin = std::lower_bound(in_.needs.begin(), in_.needs.end(), first) - in_.needs.begin();
    const auto end = std::upper_bound(in_.needs.begin(), in_.needs.end(), last) - in_.needs.begin();
    const std::int64_t between =
        in_.need_bytes[static_cast<std::size_t>(end)] - in_.need_bytes[static_cast<std::size_t>(begin)];
    return between == bucket.job.payload + in_.payload[static_cast<std::size_t>(index)];
  }

  void add_to_bucket(int index, std::size_t place) {
    const PlannedTensor& tensor = in_.tensors[static_cast<std::size_t>(index)];
    Bucket& bucket = open_[in_.kinds[static_cast<std::size_t>(index)]];
    if (!bucket.slices.empty() &&
        !(fits(bucket, index) && same_urgency(bucket, index) && may_carry(bucket, index) && may_wait(bucket, index))) {
      close(bucket);
    }
    if (bucket.slices.empty()) {
      bucket.first_place = place;
      bucket.job.need = bucket.last_need = in_.model.need(index);
      bucket.slack = kEndlessSlack;
    }
    if (const TensorTiming* own = timing(index)) {
      bucket.slack = std::min(bucket.slack - time_of(index),
                              std::max(own->slack / 2, in_.model.latency()) - in_.model.occupancy(bucket.job.payload));
    }
    Job& job = bucket.job;
    bucket.slices.push_back({index, 0, tensor.numel, bucket.numel});
    bucket.numel += tensor.numel;
    bucket.weight += weight_of(tensor);
    bucket.last_need = std::max(bucket.last_need, in_.model.need(index));
    job.add(tensor, tensor.numel, in_.model.profile());
    job.ready = in_.model.ready(index);
    job.need = std::min(job.need, in_.model.need(index));
  }

  void close(Bucket& bucket) {
    if (!bucket.slices.empty()) {
      out_.slices.insert(out_.slices.end(), bucket.slices.begin(), bucket.slices.end());
      put(bucket.slices.size(), bucket.job);
    }
    bucket.slices.clear();
    bucket.job = {};
    bucket.numel = 0;
    bucket.weight = 0;
  }

  // Makes a group of the last `count` slices.
  void put(std::size_t count, const Job& job) {
    const auto end = static_cast<std::uint32_t>(out_.slices.size());
    out_.groups.push_back({end - static_cast<std::uint32_t>(count), end});
    out_.jobs.push_back(job);
  }

  // A tensor that is ready last and needed first is exposed: pieces of half the size halve its tail.
  std::int64_t piece_bytes(int index) const {
    const StepModel& model = in_.model;
    const bool exposed =
        model.ready(index) >= model.backward_end() - full_ && model.need(index) <= model.backward_end() + 2 * full_;
    return exposed ? rule_.partition_bytes / 2 : rule_.partition_bytes;
  }

  void cut(int index) {
    const PlannedTensor& tensor = in_.tensors[static_cast<std::size_t>(index)];
    const std::int64_t payload = std::max<std::int64_t>(in_.payload[static_cast<std::size_t>(index)], 1);
    const auto by_payload = static_cast<std::int64_t>(Wide{piece_bytes(index)} * tensor.numel / payload);
    const std::int64_t most = tensor.decision.format().compressed()
                                  ? kMaxCompressedElements
                                  : in_.limits.partition_bytes / static_cast<std::int64_t>(dtype_size(tensor.dtype));
    const Pieces pieces(tensor, index, in_.limits.alignment, std::min(by_payload, most));
    for (std::int64_t i = 0; i < pieces.count(); ++i) {
      out_.slices.push_back(pieces.slice(i));
      Job job;
      job.add(tensor, out_.slices.back().numel, in_.model.profile());
      job.ready = in_.model.ready(index);
      job.need = in_.model.need(index);
      put(1, job);
    }
  }

  const LayoutInputs& in_;
  const GroupingRule& rule_;
  const std::int64_t full_;   // time of a full partition on the link
  std::vector<Bucket> open_;  // indexed by kind
  Grouping out_;
};

}  // namespace

LayoutInputs::LayoutInputs(const std::vector<PlannedTensor>& all, const LayoutOptions& layout_limits,
                           const StepModel& step_model)
    : tensors(all), limits(layout_limits), model(step_model), payload(all.size(), 0), kinds(all.size(), 0) {
  std::map<Kind, std::uint32_t> numbers;
  for (const PlannedTensor& tensor : all) {
    numbers.try_emplace(kind_of(tensor));
  }
  for (auto& [kind, number] : numbers) {
    number = kind_count++;
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> by_need;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].numel > 0) {
      const auto index = static_cast<int>(i);
      kinds[i] = numbers[kind_of(all[i])];
      by_ready.push_back(index);
      payload[i] = all[i].wire_bytes_of(all[i].numel);
      total_payload += payload[i];
      by_need.emplace_back(model.need(index), payload[i]);
    }
  }
  std::stable_sort(by_ready.begin(), by_ready.end(), [&](int a, int b) { return model.ready(a) < model.ready(b); });
  std::int64_t link_free = 0;
  for (const int index : by_ready) {
    starts.push_back(std::max(link_free, model.ready(index)));
    link_free = starts.back() + model.occupancy(payload[static_cast<std::size_t>(index)]);
  }
  std::int64_t end = std::max(link_free, model.backward_end());
  latest.resize(by_ready.size());
  for (std::size_t place = by_ready.size(); place-- > 0;) {
    end -= model.occupancy(payload[static_cast<std::size_t>(by_ready[place])]);
    latest[place] = end;
  }
  std::sort(by_need.begin(), by_need.end());
  need_bytes.push_back(0);
  for (const auto& [need, bytes] : by_need) {
    needs.push_back(need);
    need_bytes.push_back(need_bytes.back() + bytes);
  }
}

Grouping group_tensors(const LayoutInputs& inputs, const GroupingRule& rule) {
  return Grouper(inputs, rule).run();
}

}  // namespace sirtaki::scheduler
