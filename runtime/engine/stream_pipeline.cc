// The way of a partition: gathered, encoded, reduced, decoded.
#include <algorithm>
#include <utility>

#include "compression/catalog.h"
#include "kernels/scale/scale.h"
#include "runtime/base/check.h"
#include "runtime/engine/stream.h"
#include "runtime/engine/tags.h"
#include "runtime/engine/wire_size.h"

namespace sirtaki::engine {

bool Stream::in_place(const scheduler::Partition& partition) const {
  return partition.slices.size() == 1 && wire_dtype(partition) == partition.dtype;
}

Bytes Stream::slice_of(const scheduler::Slice& slice) const {
  const TensorView& view = views_[static_cast<std::size_t>(slice.tensor)];
  const std::size_t element = dtype_size(view.dtype);
  return view.bytes().subspan(static_cast<std::size_t>(slice.offset) * element,
                              static_cast<std::size_t>(slice.numel) * element);
}

void Stream::pump() {
  while (phase_ == Phase::kOpen && (finished_ || partitions_started_ < gate_)) {
    const scheduler::Partition* partition = dispatcher_.next();
    if (partition == nullptr) {
      return;
    }
    ++partitions_started_;
    if (partition->way.lossy()) {
      launch_lossy(*partition);
      pump_later();
      return;
    }
    launch(*partition);
  }
}

void Stream::launch(const scheduler::Partition& partition) {
  const int position = partition.position;
  const DType wire = wire_dtype(partition);
  trace_.launched(position);
  BufferPool::Buffer buffer;
  net::CollectiveArgs args;
  if (in_place(partition)) {
    args.out = slice_of(partition.slices.front());
    if (spec_.prescale != 1.0) {
      kernels::scale(wire, args.out.data(), partition.numel, spec_.prescale);
    }
  } else {
    buffer = pack_memory(static_cast<std::size_t>(partition.numel) * dtype_size(wire));
    gather(partition, buffer.bytes());
    args.out = buffer.bytes();
  }
  args.kind = OpKind::kAllreduce;
  args.tag = stream_tag(id_, attempt_, static_cast<std::uint32_t>(position), step_);
  args.dtype = wire;
  args.op = spec_.reduce_op;
  args.in = args.out;
  args.priority = position;
  deps_.raw_bytes.add(partition.size_bytes());
  deps_.wire_bytes.add(args.out.size());
  trace_.packed(position, static_cast<std::int64_t>(args.out.size()));
  keeper_.partition_started();
  ++in_flight_count_;
  // The buffer lives in the callback, so memory in flight outlives whatever happens to the step.
  deps_.net.start(std::move(args),
                  [this, attempt = attempt_, position, held = std::move(buffer)](const Status& status) mutable {
                    on_partition(attempt, position, std::move(held), status);
                  });
}

BufferPool::Buffer Stream::pack_memory(std::size_t bytes) {
  net::Lent lent = deps_.net.lend(bytes);
  if (!lent.keeps) {
    return deps_.buffers.take(bytes);
  }
  deps_.lent_bytes.add(bytes);
  return BufferPool::Buffer(std::move(lent));
}

void Stream::gather(const scheduler::Partition& partition, Bytes out) const {
  const compression::Codec& codec = compression::codec(partition.way.codec);
  const DType wire = codec.wire_dtype(partition.dtype);
  for (const scheduler::Slice& slice : partition.slices) {
    const Bytes from = slice_of(slice);
    const Bytes to = out.subspan(static_cast<std::size_t>(slice.at) * dtype_size(wire),
                                 static_cast<std::size_t>(slice.numel) * dtype_size(wire));
    if (wire == partition.dtype) {
      std::ranges::copy(from, to.data());
      if (spec_.prescale != 1.0) {
        kernels::scale(wire, to.data(), slice.numel, spec_.prescale);
      }
      continue;
    }
    if (spec_.prescale == 1.0) {
      codec.encode(partition.dtype, from, to);
      continue;
    }
    BufferPool::Buffer scaled = deps_.buffers.take(from.size());
    std::ranges::copy(from, scaled.bytes().data());
    kernels::scale(partition.dtype, scaled.bytes().data(), slice.numel, spec_.prescale);
    codec.encode(partition.dtype, scaled.bytes(), to);
  }
}

Status Stream::scatter(const scheduler::Partition& partition, ConstBytes in) const {
  const compression::Codec& codec = compression::codec(partition.way.codec);
  const DType wire = codec.wire_dtype(partition.dtype);
  const bool moved = !in_place(partition);
  for (const scheduler::Slice& slice : partition.slices) {
    const Bytes to = slice_of(slice);
    if (moved) {
      const ConstBytes from = in.subspan(static_cast<std::size_t>(slice.at) * dtype_size(wire),
                                         static_cast<std::size_t>(slice.numel) * dtype_size(wire));
      if (wire == partition.dtype) {
        std::ranges::copy(from, to.data());
      } else {
        SRT_TRY(codec.decode(partition.dtype, from, to));
      }
    }
    if (spec_.postscale != 1.0) {
      kernels::scale(partition.dtype, to.data(), slice.numel, spec_.postscale);
    }
  }
  return {};
}

void Stream::on_partition(std::uint32_t attempt, int position, BufferPool::Buffer buffer, const Status& status) {
  if (arrived(attempt, status)) {
    const scheduler::Partition& partition = plan_->partitions()[static_cast<std::size_t>(position)];
    const auto size = static_cast<std::int64_t>(partition.size_bytes());
    keeper_.partition_done(partition);
    trace_.received(position, size);
    const Status decoded = scatter(partition, buffer.bytes());
    buffer = {};  // for the partitions that follow
    trace_.unpacked(position, size);
    end_partition(position, decoded);
  }
  answer();
}

// Whether it is of the step in progress, and well.
bool Stream::arrived(std::uint32_t attempt, const Status& status) {
  --in_flight_count_;
  ++progress_;
  const bool current = attempt == attempt_ && phase_ == Phase::kOpen;
  if (current && !status) {
    give_up(status);
  }
  return current && status;
}

void Stream::end_partition(int position, const Status& decoded) {
  const Status given_back = dispatcher_.finished(position);
  SRT_CHECK(given_back);
  ++partitions_done_;
  if (partitions_done_ == static_cast<int>(plan_->partitions().size())) {
    board_->reduced_in(deps_.loop.now() - first_ready_);
  }
  if (decoded) {
    record_results(plan_->partitions()[static_cast<std::size_t>(position)]);
  } else {
    give_up(decoded);
  }
  pump();
}

}  // namespace sirtaki::engine
