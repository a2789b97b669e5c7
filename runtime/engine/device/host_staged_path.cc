#include "runtime/engine/device/host_staged_path.h"

#include <algorithm>
#include <utility>

namespace sirtaki::engine {

Result<DensePath::Packed> HostStagedPath::gather(const scheduler::Partition& partition,
                                                 std::span<const TensorView> views) {
  SRT_ASSIGN(device::PinnedBlock taken, transport_.stage().take(partition.size_bytes()));
  const auto block = std::make_shared<device::PinnedBlock>(std::move(taken));
  for (const scheduler::Slice& slice : partition.slices) {
    const Bytes from = slice_of(slice, views);
    const Bytes to = packed_slice(slice, block->bytes(), partition.dtype);
    if (const Status copied = transport_.copy(to.data(), from.data(), from.size()); !copied.ok()) {
      return transport_.stage().fail(copied);
    }
  }
  Packed packed;
  packed.memory = BufferPool::Buffer(net::SharedBuffer{block, block->bytes()});
  return packed;
}

void HostStagedPath::start(net::CollectiveArgs args, Done done) {
  const auto starting = std::make_shared<Starting>(Starting{args.tag, {}});
  starting_.push_back(starting);
  transport_.when_copied(
      {}, [this, starting, args = std::move(args), done = std::move(done)](const Status& copied) mutable {
        std::erase(starting_, starting);
        if (const Status& bad = copied.ok() ? starting->cancelled : copied; !bad.ok()) {
          done(bad);
          return;
        }
        net_.start(std::move(args), std::move(done));
      });
}

// The collectives of the host cancel operations that they know; these have not reached them yet.
void HostStagedPath::cancel(const net::TagGroup& tags, const Status& cause) {
  for (const auto& starting : starting_) {
    if (tags.contains(starting->tag)) {
      starting->cancelled.update(cause);
    }
  }
}

Status HostStagedPath::scatter(const scheduler::Partition& partition, std::span<const TensorView> views,
                               BufferPool::Buffer packed) {
  Status queued;
  for (const scheduler::Slice& slice : partition.slices) {
    const Bytes to = slice_of(slice, views);
    const Bytes from = packed_slice(slice, packed.bytes(), partition.dtype);
    queued.update(queued.ok() ? transport_.copy(to.data(), from.data(), to.size()) : Status());
  }
  // Copies read `packed` until they are done.
  transport_.when_copied(queued, [packed = std::move(packed)](const Status& /*arrived*/) {});
  return queued.ok() ? queued : transport_.stage().fail(queued);
}

}  // namespace sirtaki::engine
