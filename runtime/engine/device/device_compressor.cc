#include "runtime/engine/device/device_compressor.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "compression/device_coding.h"
#include "runtime/base/check.h"

namespace sirtaki::engine {

Result<std::unique_ptr<DeviceCompressor>> DeviceCompressor::create(DeviceTransport& transport,
                                                                   net::DeviceCollectives* nccl,
                                                                   const scheduler::Plan& plan,
                                                                   const Traffic& traffic) {
  std::unique_ptr<DeviceCompressor> compressor(new DeviceCompressor(transport, nccl));
  SRT_TRY(compressor->reserve_tensors(plan.tensors(), traffic.net.host_groups() == nullptr));
  SRT_TRY(compressor->reserve_buffers(plan, traffic));
  return compressor;
}

// `whole`: every rank encodes its whole gradient, which the codec may want to see first.
Status DeviceCompressor::reserve_tensors(const std::vector<scheduler::PlannedTensor>& tensors, bool whole) {
  for (const scheduler::PlannedTensor& tensor : tensors) {
    Tensor& own = tensors_.emplace_back();
    own.bytes = static_cast<std::size_t>(tensor.numel) * sizeof(float);
    if (!tensor.decision.format().compressed()) {
      continue;
    }
    if (tensor.decision.params[params::kFeedback] != 0 && own.bytes > 0) {
      SRT_ASSIGN(own.residual, transport_.keep(own.bytes));
    }
    const auto coder = coder_of(tensor);
    SRT_CHECK(coder && coder->on_device() != nullptr);
    if (const std::size_t bytes = coder->on_device()->whole_bytes(); whole && bytes > 0) {
      SRT_ASSIGN(own.whole, transport_.keep(bytes));
    }
  }
  return {};
}

// Holds as much as the reductions that are in flight together, the largest of which count, and returns it for them.
Status DeviceCompressor::reserve_buffers(const scheduler::Plan& plan, const Traffic& traffic) {
  struct Buffers {
    std::vector<std::size_t> bytes;
    std::int64_t wire_bytes;
  };
  std::vector<Buffers> all;
  for (const scheduler::Partition& partition : plan.partitions()) {
    if (partition.format.compressed()) {
      all.push_back({DeviceGather::buffers(partition, plan.tensors(), traffic.net), partition.wire_bytes});
    }
  }
  std::ranges::stable_sort(all, std::greater(), [](const Buffers& buffers) { return buffers.bytes.front(); });
  std::vector<std::shared_ptr<std::byte>> held;
  std::int64_t in_flight = 0;
  for (const Buffers& buffers : all) {
    for (const std::size_t bytes : buffers.bytes) {
      SRT_ASSIGN(held.emplace_back(), transport_.take(bytes));
    }
    in_flight += buffers.wire_bytes;
    if (in_flight > traffic.credit_bytes) {
      break;
    }
  }
  return {};
}

bool DeviceCompressor::supports(const scheduler::PlannedTensor& tensor, int ranks) {
  const scheduler::Decision& decision = tensor.decision;
  if (decision.reduction != ReductionKind::kGather || !decision.keeps.empty() || ranks > kernels::cuda::kMostPayloads) {
    return false;
  }
  const auto coder = coder_of(tensor);
  return coder && coder->on_device() != nullptr;
}

Result<std::byte*> DeviceCompressor::residual(int tensor) {
  Tensor& own = tensors_[static_cast<std::size_t>(tensor)];
  if (own.residual && !std::exchange(own.any, true)) {
    SRT_TRY(transport_.fill(own.residual.get(), own.bytes, 0.0F));
  }
  return own.residual.get();
}

Result<std::vector<SliceMemory>> DeviceCompressor::memory_of(const scheduler::Partition& partition) {
  std::vector<SliceMemory> of;
  for (const scheduler::Slice& slice : partition.slices) {
    SRT_ASSIGN(std::byte* const memory, residual(slice.tensor));
    of.push_back({memory == nullptr ? nullptr : memory + static_cast<std::size_t>(slice.offset) * sizeof(float),
                  tensors_[static_cast<std::size_t>(slice.tensor)].whole.get()});
  }
  return of;
}

std::shared_ptr<Reduction> DeviceCompressor::reduce(const scheduler::Partition& partition, ReductionSpec spec,
                                                    ReductionDeps deps, StageNote note) {
  transport_.encoded_bytes().add(partition.size_bytes());
  // The average divides by the number of ranks, not of hosts.
  spec.divisor = deps.net.size();
  return std::make_shared<DeviceGather>(std::move(spec), deps, std::move(note), transport_, nccl_,
                                        memory_of(partition));
}

Status DeviceCompressor::admit(int tensor, compression::CodecState& state, const TensorView& gradient) {
  SRT_TRY(claim_residual(tensor, state.ownership(), gradient));
  const Tensor& own = tensors_[static_cast<std::size_t>(tensor)];
  if (!own.whole) {
    return {};
  }
  kernels::Feedback arrays{gradient.bytes().data()};
  if (own.residual) {
    SRT_ASSIGN(arrays.residual, residual(tensor));
    arrays.left = gradient.bytes().data();
  }
  const Status queued =
      DeviceTransport::queued(state.coder().on_device()->begin(transport_.queue(), arrays, own.whole.get()));
  return queued.ok() ? queued : transport_.stage().fail(queued);
}

// ---- residuals ----

// Another rank of the host may own stripes of a restored residual, so the gradient carries their residual to it.
Status DeviceCompressor::claim_residual(int tensor, const compression::Ownership& ownership,
                                        const TensorView& gradient) {
  Tensor& own = tensors_[static_cast<std::size_t>(tensor)];
  if (!std::exchange(own.foreign, false) || !own.any) {
    return {};
  }
  device::PinnedBlock zeros;
  const auto give = [&](std::int64_t offset, std::int64_t numel) -> Status {
    if (zeros.bytes().empty()) {
      SRT_ASSIGN(zeros, transport_.stage().take(static_cast<std::size_t>(ownership.stripe) * sizeof(float)));
      std::ranges::fill(zeros.bytes(), std::byte{0});
    }
    std::byte* const part = own.residual.get() + static_cast<std::size_t>(offset) * sizeof(float);
    std::byte* const to = gradient.bytes().data() + static_cast<std::size_t>(offset) * sizeof(float);
    const std::byte* const terms[] = {to, part};
    const kernels::cuda::Reduce sum{ReduceOp::kSum, DType::kF32, terms, to, numel};
    const compression::DeviceQueue queue = transport_.queue();
    SRT_TRY(DeviceTransport::queued(queue.kernels.reduce(sum, queue.stream)));
    return transport_.copy(part, zeros.bytes().data(), static_cast<std::size_t>(numel) * sizeof(float));
  };
  Status given;
  for (std::int64_t offset = 0; given.ok() && offset < gradient.numel; offset += ownership.stripe) {
    if (!ownership.exchanges(offset)) {
      given = give(offset, std::min(ownership.stripe, gradient.numel - offset));
    }
  }
  transport_.when_copied(given, [zeros = std::move(zeros)](const Status& /*written*/) {});
  return given.ok() ? given : transport_.stage().fail(given);
}

struct DeviceCompressor::Reading {
  struct Tensor {
    int index;
    std::shared_ptr<std::byte> memory;
    std::size_t bytes;
  };
  DeviceTransport& transport;
  std::vector<Tensor> left;  // the next one last
  MoveFunction<void(int tensor, ConstBytes residual)> each;
  Done done;
};

void DeviceCompressor::read_residuals(std::vector<int> tensors,
                                      MoveFunction<void(int tensor, ConstBytes residual)> each, Done done) {
  auto reading = std::make_shared<Reading>(Reading{transport_, {}, std::move(each), std::move(done)});
  std::ranges::reverse(tensors);
  for (const int tensor : tensors) {
    const Tensor& own = tensors_[static_cast<std::size_t>(tensor)];
    if (own.any) {
      reading->left.push_back({tensor, own.residual, own.bytes});
    }
  }
  read_next(std::move(reading));
}

void DeviceCompressor::read_next(std::shared_ptr<Reading> reading) {
  DeviceTransport& transport = reading->transport;
  if (reading->left.empty()) {
    transport.when_copied({}, [reading](const Status& status) { reading->done(status); });
    return;
  }
  const Reading::Tensor& next = reading->left.back();
  auto block = transport.stage().try_take(next.bytes);
  if (!block) {
    transport.loop().post([reading, why = block.status()] { reading->done(why); });
    return;
  }
  const Status copied = transport.copy(block->bytes().data(), next.memory.get(), next.bytes);
  transport.when_copied(copied, [reading, block = std::move(*block)](const Status& status) mutable {
    if (!status.ok()) {
      reading->done(status);
      return;
    }
    reading->each(reading->left.back().index, block.bytes());
    reading->left.pop_back();
    block = {};  // returned before the next tensor takes one
    read_next(std::move(reading));
  });
}

Status DeviceCompressor::restore_residual(int tensor, std::span<const float> in) {
  if (std::ranges::all_of(in, [](float value) { return value == 0; })) {
    clear_residual(tensor);
    return {};
  }
  const auto queue = [&]() -> Status {
    SRT_ASSIGN(device::PinnedBlock block, transport_.stage().take(in.size_bytes()));
    std::memcpy(block.bytes().data(), in.data(), in.size_bytes());
    Tensor& own = tensors_[static_cast<std::size_t>(tensor)];
    own.any = true;
    own.foreign = true;
    Status copied = transport_.copy(own.residual.get(), block.bytes().data(), in.size_bytes());
    transport_.when_copied(copied, [block = std::move(block)](const Status& /*arrived*/) {});
    return copied;
  };
  const Status queued = queue();
  return queued.ok() ? queued : transport_.stage().fail(queued);
}

}  // namespace sirtaki::engine
