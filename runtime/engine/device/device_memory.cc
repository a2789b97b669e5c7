#include "runtime/engine/device/device_memory.h"

namespace sirtaki::engine {

DeviceMemory::Block DeviceMemory::hand_out(std::byte* data, std::size_t bytes, Blocks Spare::*kind) {
  return Block(data, [weak = std::weak_ptr(spare_), kind, bytes](std::byte* memory) {
    if (const auto spare = weak.lock()) {
      ((*spare).*kind).emplace(bytes, memory);
    }
  });
}

std::optional<DeviceMemory::Block> DeviceMemory::reuse(Blocks Spare::*kind, std::size_t bytes) {
  Blocks& blocks = (*spare_).*kind;
  const auto fitting = blocks.lower_bound(bytes);
  if (fitting == blocks.end()) {
    return std::nullopt;
  }
  const auto [size, data] = *fitting;
  blocks.erase(fitting);
  return hand_out(data, size, kind);
}

Result<DeviceMemory::Block> DeviceMemory::find(Blocks Spare::*kind, Blocks Spare::*other, std::size_t bytes) {
  if (auto block = reuse(kind, bytes)) {
    return std::move(*block);
  }
  const auto made = device_.allocate(device::Place::kDevice, bytes);
  if (made) {
    made_.push_back(*made);
    return hand_out(*made, bytes, kind);
  }
  if (made.status().code() == Code::kExhausted) {
    if (auto block = reuse(other, bytes)) {
      return std::move(*block);
    }
  }
  refused_bytes_ = bytes;
  return made.status();
}

void DeviceMemory::put_back(Spare spare) {
  spare_->for_operations.merge(spare.for_operations);
  spare_->for_streams.merge(spare.for_streams);
}

void DeviceMemory::release(const Spare& spare) {
  for (const Blocks* const blocks : {&spare.for_operations, &spare.for_streams}) {
    for (const auto& [size, data] : *blocks) {
      std::erase(made_, data);
      device_.release(device::Place::kDevice, data);
    }
  }
}

// Blocks that are dropped later find the old list of returned ones gone.
void DeviceMemory::close(bool drained) {
  spare_ = std::make_shared<Spare>();
  for (std::byte* const data : std::exchange(made_, {})) {
    if (drained) {
      device_.release(device::Place::kDevice, data);
    }
  }
}

}  // namespace sirtaki::engine
