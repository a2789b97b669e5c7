// DeviceMemory: memory of a device that is allocated once and reused, since a release waits for all work of the device.
//
// Owner: DeviceTransport. Thread: loop. Does not know when the device has done its work with a block: its copy stream
// orders the uses of all blocks.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/device/device_api.h"

namespace sirtaki::engine {

class DeviceMemory {
 public:
  using Block = std::shared_ptr<std::byte>;
  using Blocks = std::multimap<std::size_t, std::byte*>;  // keys are sizes
  // Returned blocks, by what they were made for.
  struct Spare {
    Blocks for_operations;
    Blocks for_streams;
    bool empty() const { return for_operations.empty() && for_streams.empty(); }
  };

  // `device` must outlive this.
  explicit DeviceMemory(device::DeviceApi& device) : device_(device) {}

  // Returns a block for an operation. A dropped block is reused. kExhausted if the device has no memory left.
  Result<Block> take(std::size_t bytes) { return find(&Spare::for_operations, &Spare::for_streams, bytes); }
  // Returns a block for the life of a stream. Blocks that operations return are used for it only if the device has no
  // memory left, so that those that were taken ahead for operations stay there.
  Result<Block> keep(std::size_t bytes) { return find(&Spare::for_streams, &Spare::for_operations, bytes); }
  // Returns the size of the block that could not be allocated since the last call of this method, if there is one.
  std::optional<std::size_t> take_refusal() { return std::exchange(refused_bytes_, std::nullopt); }

  // Returns all returned blocks, which nobody gets until put_back().
  Spare take_spare() { return std::exchange(*spare_, {}); }
  void put_back(Spare spare);
  // Releases blocks, whose uses must be over.
  void release(const Spare& spare);

  // Forgets all blocks; releases them, whether they are returned or not, if `drained`.
  void close(bool drained);

 private:
  // Finds a returned block, makes one, or takes a returned one of the other kind, in this order.
  Result<Block> find(Blocks Spare::*kind, Blocks Spare::*other, std::size_t bytes);
  std::optional<Block> reuse(Blocks Spare::*kind, std::size_t bytes);
  Block hand_out(std::byte* data, std::size_t bytes, Blocks Spare::*kind);

  device::DeviceApi& device_;
  std::shared_ptr<Spare> spare_ = std::make_shared<Spare>();
  std::vector<std::byte*> made_;  // all blocks
  std::optional<std::size_t> refused_bytes_;
};

}  // namespace sirtaki::engine
