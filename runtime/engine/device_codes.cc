#include "runtime/engine/device_codes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "compression/catalog.h"
#include "compression/device_coding.h"
#include "runtime/engine/recipes/device_gather.h"

namespace sirtaki::engine {

DeviceCodes::DeviceCodes(DevicePlane& plane, const std::vector<scheduler::PlannedTensor>& tensors) : plane_(plane) {
  for (const scheduler::PlannedTensor& tensor : tensors) {
    bytes_.push_back(static_cast<std::size_t>(tensor.numel) * sizeof(float));
  }
  owed_.resize(bytes_.size());
}

bool DeviceCodes::can(const scheduler::PlannedTensor& tensor, int ranks) {
  const scheduler::Decision& decision = tensor.decision;
  const compression::PayloadCodec* codec = compression::find_payload_codec(decision.codec);
  if (codec == nullptr || decision.recipe != Recipe::kGather || !decision.keeps.empty() ||
      ranks > kernels::cuda::kMostPayloads) {
    return false;
  }
  return codec->open(decision.params, {tensor.numel, 1})->on_device() != nullptr;
}

std::size_t DeviceCodes::bytes_of(int tensor) const {
  return bytes_[static_cast<std::size_t>(tensor)];
}

// Zeros at first.
Result<std::byte*> DeviceCodes::owed(int tensor) {
  std::shared_ptr<std::byte>& memory = owed_[static_cast<std::size_t>(tensor)];
  if (!memory) {
    SRT_ASSIGN(auto made, plane_.take(bytes_of(tensor)));
    SRT_TRY(plane_.fill(made.get(), bytes_of(tensor), 0.0F));
    memory = std::move(made);
  }
  return memory.get();
}

Result<std::vector<std::byte*>> DeviceCodes::owed_of(const scheduler::Partition& partition, const ReductionSpec& spec) {
  std::vector<std::byte*> of;
  for (std::size_t i = 0; i < partition.slices.size(); ++i) {
    std::byte* at = nullptr;
    if (spec.slices[i].memory->params()[params::kFeedback] != 0) {
      const scheduler::Slice& slice = partition.slices[i];
      SRT_ASSIGN(std::byte* const memory, owed(slice.tensor));
      at = memory + static_cast<std::size_t>(slice.offset) * sizeof(float);
    }
    of.push_back(at);
  }
  return of;
}

std::shared_ptr<Reduction> DeviceCodes::reduce(const scheduler::Partition& partition, ReductionSpec spec,
                                               ReductionDeps deps, StageNote note) {
  plane_.encoded_bytes().add(partition.size_bytes());
  auto owed = owed_of(partition, spec);
  return std::make_shared<DeviceGather>(std::move(spec), deps, std::move(note), plane_, std::move(owed));
}

void DeviceCodes::read(std::vector<int> tensors, MoveFunction<void(int tensor, ConstBytes owed)> each, Done done) {
  std::erase_if(tensors, [this](int tensor) { return !owed_[static_cast<std::size_t>(tensor)]; });
  std::vector<device::PinnedBlock> blocks;
  const auto fetch = [&](int tensor) -> Status {
    SRT_ASSIGN(device::PinnedBlock block, plane_.stage().take(bytes_of(tensor)));
    const std::byte* const from = owed_[static_cast<std::size_t>(tensor)].get();
    SRT_TRY(plane_.copy(block.bytes().data(), from, bytes_of(tensor)));
    blocks.push_back(std::move(block));
    return {};
  };
  Status queued;
  for (const int tensor : tensors) {
    queued.update(queued ? fetch(tensor) : Status());
  }
  plane_.when_copied(queued, [tensors = std::move(tensors), blocks = std::move(blocks), each = std::move(each),
                              done = std::move(done)](const Status& copied) mutable {
    for (std::size_t i = 0; copied && i < tensors.size(); ++i) {
      each(tensors[i], blocks[i].bytes());
    }
    blocks.clear();
    done(copied);
  });
}

Status DeviceCodes::restore(int tensor, std::span<const float> in) {
  if (std::ranges::all_of(in, [](float value) { return value == 0; })) {
    forget(tensor);
    return {};
  }
  const auto queue = [&]() -> Status {
    SRT_ASSIGN(device::PinnedBlock block, plane_.stage().take(in.size_bytes()));
    std::memcpy(block.bytes().data(), in.data(), in.size_bytes());
    std::shared_ptr<std::byte>& memory = owed_[static_cast<std::size_t>(tensor)];
    if (!memory) {
      SRT_ASSIGN(memory, plane_.take(in.size_bytes()));
    }
    const Status copied = plane_.copy(memory.get(), block.bytes().data(), in.size_bytes());
    plane_.when_copied(copied, [block = std::move(block)](const Status& /*arrived*/) {});
    return copied;
  };
  const Status queued = queue();
  return queued ? queued : plane_.stage().fail(queued);
}

}  // namespace sirtaki::engine
