#include "runtime/engine/device/device_memory.h"

namespace sirtaki::engine {

Result<DeviceMemory::Block> DeviceMemory::take_from(Blocks Spare::*spare, std::size_t bytes) {
  std::byte* data = nullptr;
  Blocks& blocks = (*spare_).*spare;
  if (const auto fitting = blocks.lower_bound(bytes); fitting != blocks.end()) {
    bytes = fitting->first;
    data = fitting->second;
    blocks.erase(fitting);
  } else {
    const auto made = device_.allocate(device::Place::kDevice, bytes);
    if (!made) {
      refused_bytes_ = bytes;
      return made.status();
    }
    data = *made;
    made_.push_back(data);
  }
  return Block(data, [weak = std::weak_ptr(spare_), spare, bytes](std::byte* memory) {
    if (const auto own = weak.lock()) {
      ((*own).*spare).emplace(bytes, memory);
    }
  });
}

void DeviceMemory::put_back(Spare spare) {
  spare_->taken.merge(spare.taken);
  spare_->kept.merge(spare.kept);
}

void DeviceMemory::release(const Spare& spare) {
  for (const Blocks* const blocks : {&spare.taken, &spare.kept}) {
    for (const auto& [size, data] : *blocks) {
      std::erase(made_, data);
      device_.release(device::Place::kDevice, data);
    }
  }
}

void DeviceMemory::close(bool drained) {
  spare_.reset();
  for (std::byte* const data : std::exchange(made_, {})) {
    if (drained) {
      device_.release(device::Place::kDevice, data);
    }
  }
}

}  // namespace sirtaki::engine
