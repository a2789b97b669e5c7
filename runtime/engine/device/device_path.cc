#include "runtime/engine/device/device_path.h"

#include <algorithm>
#include <utility>

#include "runtime/base/round_up.h"
#include "runtime/engine/reduction/wire_size.h"

namespace sirtaki::engine {
namespace {

// Alignment of memory that CUDA allocates.
constexpr std::size_t kAlign = 256;

std::size_t packed_bytes(const scheduler::Partition& partition) {
  return static_cast<std::size_t>(partition.numel) * dtype_size(wire_dtype(partition));
}

// Size of the device buffer through which a residual is added in pieces.
constexpr std::size_t kAddedBytes = std::size_t{4} << 20;

// Adds float32 in host memory to a gradient.
Status add_on_device(DeviceTransport& transport, ConstBytes from, Bytes gradient) {
  SRT_ASSIGN(const std::shared_ptr<std::byte> part, transport.take(std::min(from.size(), kAddedBytes)));
  const compression::DeviceQueue work = transport.queue();
  for (std::size_t at = 0; at < from.size(); at += kAddedBytes) {
    const std::size_t bytes = std::min(from.size() - at, kAddedBytes);
    SRT_TRY(transport.copy(part.get(), from.data() + at, bytes));
    std::byte* const to = gradient.data() + at;
    const std::byte* const terms[] = {to, part.get()};
    const auto numel = static_cast<std::int64_t>(bytes / sizeof(float));
    SRT_TRY(DeviceTransport::queued(work.kernels.reduce({ReduceOp::kSum, DType::kF32, terms, to, numel}, work.stream)));
  }
  return {};
}

}  // namespace

// Each element is packed at most once in a step. The first plan may use less memory than a later one.
Status DevicePath::reserve(const scheduler::Plan& plan, std::int64_t fusion_bytes) {
  std::size_t bytes = 0;
  for (const scheduler::PlannedTensor& tensor : plan.tensors()) {
    const scheduler::WireFormat format = tensor.decision.format();
    if (format.compressed()) {
      continue;
    }
    const DType wire = wire_dtype(format, tensor.dtype);
    const auto size = static_cast<std::size_t>(tensor.numel) * dtype_size(wire);
    bytes += wire != tensor.dtype || static_cast<std::int64_t>(size) <= fusion_bytes ? round_up(size, kAlign) : 0;
  }
  if (bytes > 0) {
    SRT_ASSIGN(memory_, transport_.keep(bytes));
    held_ = bytes;
  }
  return {};
}

void DevicePath::adopt(const scheduler::Plan& plan) {
  places_.assign(plan.partitions().size(), 0);
  needed_ = 0;
  for (const scheduler::Partition& partition : plan.partitions()) {
    if (!partition.format.compressed() && !in_place(partition)) {
      places_[static_cast<std::size_t>(partition.position)] = needed_;
      needed_ += round_up(packed_bytes(partition), kAlign);
    }
  }
  discard_step();
  // An error ends the job through the stage, so it needs no handling here.
  static_cast<void>(make_memory());
}

void DevicePath::discard_step() {
  if (*in_flight_ > 0) {
    memory_.reset();
    in_flight_ = std::make_shared<int>(0);
  }
}

Status DevicePath::make_memory() {
  if (needed_ == 0 || (memory_ && held_ >= needed_)) {
    return {};
  }
  auto memory = transport_.keep(needed_);
  if (!memory) {
    return transport_.stage().fail(memory.status());
  }
  memory_ = std::move(*memory);
  held_ = needed_;
  return {};
}

Result<DensePath::Packed> DevicePath::gather(const scheduler::Partition& partition, std::span<const TensorView> views) {
  Packed packed;
  if (in_place(partition)) {
    packed.in_place = slice_of(partition.slices.front(), views);
    return packed;
  }
  SRT_TRY(make_memory());
  const DType wire = wire_dtype(partition);
  const Bytes memory(memory_.get() + places_[static_cast<std::size_t>(partition.position)], packed_bytes(partition));
  for (const scheduler::Slice& slice : partition.slices) {
    const Bytes to = packed_slice(slice, memory, wire);
    SRT_TRY(move(partition.dtype, slice_of(slice, views), wire, to, slice.numel));
  }
  packed.memory = BufferPool::Buffer(net::SharedBuffer{memory_, memory});
  return packed;
}

Status DevicePath::move(DType from, ConstBytes in, DType to, Bytes out, std::int64_t numel) {
  const compression::DeviceQueue queue = transport_.queue();
  const Status queued =
      from == to ? transport_.copy(out.data(), in.data(), in.size())
                 : DeviceTransport::queued(queue.kernels.cast({from, in.data(), to, out.data(), numel}, queue.stream));
  return queued.ok() ? queued : transport_.stage().fail(queued);
}

void DevicePath::start(net::CollectiveArgs args, Done done) {
  auto ready = transport_.mark_copies();
  net::DeviceWork work;
  if (!ready) {
    // Without a mark, the end of packing is unknown.
    transport_.loop().post(
        [done = std::move(done), lost = transport_.stage().fail(ready.status())]() mutable { done(lost); });
    return;
  }
  work.ready = ready->event();
  transport_.nccl_bytes().add(args.out.size());
  ++*in_flight_;
  net_.start_work(
      std::move(args), work,
      [ready = std::move(ready), flying = in_flight_, done = std::move(done)](const Status& status) mutable {
        --*flying;
        done(status);
      });
}

Status DevicePath::scatter(const scheduler::Partition& partition, std::span<const TensorView> views,
                           BufferPool::Buffer packed) {
  if (in_place(partition)) {
    return {};
  }
  const DType wire = wire_dtype(partition);
  for (const scheduler::Slice& slice : partition.slices) {
    const Bytes from = packed_slice(slice, packed.bytes(), wire);
    SRT_TRY(move(wire, from, partition.dtype, slice_of(slice, views), slice.numel));
  }
  return {};
}

Result<std::byte*> DeviceZeros::make(DeviceTransport& transport, std::size_t bytes) {
  if (bytes == 0) {
    return nullptr;
  }
  const auto queue = [&]() -> Status {
    if (!memory_) {
      SRT_ASSIGN(memory_, transport.take(bytes));
    }
    return transport.fill(memory_.get(), bytes, 0.0F);
  };
  const Status queued = queue();
  return queued.ok() ? Result<std::byte*>(memory_.get()) : Result<std::byte*>(transport.stage().fail(queued));
}

Status add_residual_on_device(DeviceTransport& transport, const TensorView& gradient,
                              const DensePath::AddResidual& add) {
  const auto queue = [&]() -> Status {
    SRT_ASSIGN(device::PinnedBlock block, transport.stage().take(gradient.size_bytes()));
    std::ranges::fill(block.bytes(), std::byte{0});
    add({block.bytes().data(), gradient.numel, gradient.dtype, {}});
    Status queued = add_on_device(transport, block.bytes().first(gradient.size_bytes()), gradient.bytes());
    transport.when_copied(queued, [block = std::move(block)](const Status& /*arrived*/) {});
    return queued;
  };
  const Status queued = queue();
  return queued.ok() ? queued : transport.stage().fail(queued);
}

}  // namespace sirtaki::engine
