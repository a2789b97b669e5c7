// Compressed partitions: a Reduction encodes, exchanges and decodes each of them.
#include <utility>

#include "runtime/base/check.h"
#include "runtime/engine/common/tags.h"
#include "runtime/engine/stream/gradient_stream.h"

namespace sirtaki::engine {

void GradientStream::launch_compressed(const scheduler::Partition& partition) {
  const int position = partition.position;
  const auto place = static_cast<std::uint32_t>(position);
  ReductionSpec spec;
  spec.reduction = partition.format.reduction;
  spec.priority = position;
  spec.op = spec_.reduce_op;
  spec.postscale = spec_.postscale;
  spec.exchange_bytes = static_cast<std::size_t>(plan_->exchange_bytes());
  for (std::uint32_t phase = 0; phase < kStreamPhases; ++phase) {
    spec.tags[phase] = stream_tag(id_, attempt_, place, step_, phase);
  }
  for (const scheduler::Slice& slice : partition.slices) {
    const auto tensor = static_cast<std::size_t>(slice.tensor);
    spec.slices.push_back(residuals_.slice(slice, plan_->tensors()[tensor], state_.views, state_.present[tensor] == 0));
  }
  trace_.launched(position);
  deps_.raw_bytes.add(partition.size_bytes());
  deps_.wire_bytes.add(static_cast<std::uint64_t>(partition.wire_bytes));
  agreement_->partition_started();
  ++in_flight_count_;
  const auto note = [this, attempt = attempt_, position](ReductionStage next, std::int64_t bytes) {
    if (attempt != attempt_) {
      return;
    }
    if (next == ReductionStage::kWire) {
      trace_.encoded(position, bytes);
    } else {
      trace_.received(position, bytes);
    }
  };
  const ReductionDeps deps{deps_.net, deps_.buffers};
  const auto reduction = residuals_.reduce(partition, std::move(spec), deps, note);
  SRT_CHECK(reduction);
  state_.reductions[position] = reduction;
  // The callback belongs to the reduction, which therefore outlives it.
  reduction->start([this, attempt = attempt_, position, one = reduction.get()](const Status& status) {
    on_compressed(attempt, position, one->allreduced(), status);
  });
}

void GradientStream::on_compressed(std::uint32_t attempt, int position, net::Traffic traffic, const Status& status) {
  if (attempt == attempt_) {
    state_.reductions.erase(position);
  }
  if (arrived(attempt, status)) {
    const scheduler::Partition& partition = plan_->partitions()[static_cast<std::size_t>(position)];
    agreement_->partition_done(partition, traffic);
    trace_.decoded(position, static_cast<std::int64_t>(partition.size_bytes()));
    end_partition(position, Status());
  }
  answer();
}

// Pumps in a turn of the loop of its own, so that encoded payloads are sent before the next partition is encoded.
void GradientStream::pump_later() {
  if (pump_timer_ == TimerId()) {
    pump_timer_ = deps_.loop.after(Duration(0), [this] {
      pump_timer_ = {};
      pump();
    });
  }
}

}  // namespace sirtaki::engine
