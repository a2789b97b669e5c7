#include "runtime/engine/wire_size.h"

#include "compression/catalog.h"

namespace sirtaki::engine {

DType wire_dtype(const scheduler::Partition& partition) {
  return compression::codec(partition.decision.codec).wire_dtype(partition.dtype);
}

std::int64_t wire_bytes(const scheduler::Partition& partition, std::int64_t numel) {
  return numel * static_cast<std::int64_t>(dtype_size(wire_dtype(partition)));
}

std::vector<std::int64_t> wire_bytes_by_tensor(const scheduler::Plan& plan) {
  std::vector<std::int64_t> bytes(plan.tensors().size(), 0);
  for (const scheduler::Partition& partition : plan.partitions()) {
    for (const scheduler::Slice& slice : partition.slices) {
      bytes[static_cast<std::size_t>(slice.tensor)] += wire_bytes(partition, slice.numel);
    }
  }
  return bytes;
}

}  // namespace sirtaki::engine
