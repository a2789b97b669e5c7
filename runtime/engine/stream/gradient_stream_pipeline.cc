// The stages of a dense partition: gathered, reduced, scattered.
#include <utility>

#include "runtime/base/check.h"
#include "runtime/engine/common/tags.h"
#include "runtime/engine/reduction/wire_size.h"
#include "runtime/engine/stream/gradient_stream.h"

namespace sirtaki::engine {

void GradientStream::pump() {
  while (phase_ == Phase::kOpen && (state_.finished || state_.partitions_started < commit_position_)) {
    const scheduler::Partition* partition = dispatcher_.next();
    if (partition == nullptr) {
      return;
    }
    ++state_.partitions_started;
    if (partition->format.compressed()) {
      launch_compressed(*partition);
      pump_later();
      return;
    }
    launch(*partition);
  }
}

void GradientStream::launch(const scheduler::Partition& partition) {
  const int position = partition.position;
  trace_.launched(position);
  auto packed = paths_.current->gather(partition, state_.views);
  if (!packed) {
    give_up(packed.status());
    return;
  }
  net::CollectiveArgs args;
  args.kind = OpKind::kAllreduce;
  args.tag = stream_tag(id_, attempt_, static_cast<std::uint32_t>(position), step_);
  args.dtype = wire_dtype(partition);
  args.op = spec_.reduce_op;
  args.out = packed->bytes();
  args.in = args.out;
  args.priority = position;
  args.exchange_bytes = static_cast<std::size_t>(plan_->exchange_bytes());
  deps_.raw_bytes.add(partition.size_bytes());
  deps_.wire_bytes.add(args.out.size());
  trace_.packed(position, static_cast<std::int64_t>(args.out.size()));
  const net::Traffic traffic = deps_.net.traffic(args);
  agreement_->partition_started();
  ++in_flight_count_;
  // The buffer lives in the callback, so memory in flight outlives whatever happens to the step.
  paths_.current->start(std::move(args), [this, attempt = attempt_, position, traffic,
                                          held = std::move(packed->memory)](const Status& status) mutable {
    on_partition(attempt, position, traffic, std::move(held), status);
  });
}

void GradientStream::on_partition(std::uint32_t attempt, int position, net::Traffic traffic, BufferPool::Buffer buffer,
                                  const Status& status) {
  if (arrived(attempt, status)) {
    const scheduler::Partition& partition = plan_->partitions()[static_cast<std::size_t>(position)];
    const auto size = static_cast<std::int64_t>(partition.size_bytes());
    agreement_->partition_done(partition, traffic);
    trace_.received(position, size);
    // Scatter comes before the credit is returned, so that its memory is free for the partitions that follow.
    const Status decoded = paths_.current->scatter(partition, state_.views, std::move(buffer));
    trace_.unpacked(position, size);
    end_partition(position, decoded);
  }
  answer();
}

// Returns whether the operation succeeded and belongs to the step in progress.
bool GradientStream::arrived(std::uint32_t attempt, const Status& status) {
  --in_flight_count_;
  ++progress_;
  const bool current = attempt == attempt_ && phase_ == Phase::kOpen;
  if (current && !status.ok()) {
    give_up(status);
  }
  return current && status.ok();
}

void GradientStream::end_partition(int position, const Status& decoded) {
  const Status given_back = dispatcher_.finished(position);
  SRT_CHECK(given_back.ok());
  ++state_.partitions_done;
  if (state_.partitions_done == static_cast<int>(plan_->partitions().size())) {
    board_->reduced_in(deps_.loop.now() - state_.first_ready);
  }
  if (decoded.ok()) {
    record_results(plan_->partitions()[static_cast<std::size_t>(position)]);
  } else {
    give_up(decoded);
  }
  pump();
}

}  // namespace sirtaki::engine
