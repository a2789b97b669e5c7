#include "runtime/engine/device_path.h"

#include <algorithm>
#include <utility>

#include "runtime/device/arena.h"

namespace sirtaki::engine {
namespace {

constexpr std::size_t kAlign = device::Arena::kAlignment;

}  // namespace

void DevicePath::adopt(const scheduler::Plan& plan) {
  places_.assign(plan.partitions().size(), 0);
  needed_ = 0;
  for (const scheduler::Partition& partition : plan.partitions()) {
    if (!in_place(partition)) {
      places_[static_cast<std::size_t>(partition.position)] = needed_;
      needed_ += (partition.size_bytes() + kAlign - 1) / kAlign * kAlign;
    }
  }
  step_void();
  // What fails ends the job.
  static_cast<void>(make_memory());
}

void DevicePath::step_void() {
  if (*in_flight_ > 0) {
    memory_.reset();
    in_flight_ = std::make_shared<int>(0);
  }
}

Status DevicePath::make_memory() {
  if (needed_ == 0 || (memory_ && held_ >= needed_)) {
    return {};
  }
  auto memory = plane_.take(needed_);
  if (!memory) {
    return plane_.stage().fail(memory.status());
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
  const std::size_t element = dtype_size(partition.dtype);
  const Bytes memory(memory_.get() + places_[static_cast<std::size_t>(partition.position)], partition.size_bytes());
  for (const scheduler::Slice& slice : partition.slices) {
    const Bytes from = slice_of(slice, views);
    std::byte* const to = memory.data() + static_cast<std::size_t>(slice.at) * element;
    if (const Status copied = plane_.copy(to, from.data(), from.size()); !copied) {
      return plane_.stage().fail(copied);
    }
  }
  packed.memory = BufferPool::Buffer(net::Lent{memory_, memory});
  return packed;
}

void DevicePath::start(net::CollectiveArgs args, Done done) {
  auto ready = plane_.mark_copies();
  net::DeviceWork work;
  if (!ready) {
    // Nobody knows when it is packed.
    plane_.loop().post([done = std::move(done), lost = plane_.stage().fail(ready.status())]() mutable { done(lost); });
    return;
  }
  work.ready = ready->event();
  plane_.nccl_bytes().add(args.out.size());
  ++*in_flight_;
  net_.start_work(
      std::move(args), std::move(work),
      [ready = std::move(ready), flying = in_flight_, done = std::move(done)](const Status& status) mutable {
        --*flying;
        done(status);
      });
}

Status DevicePath::scatter(const scheduler::Partition& partition, std::span<const TensorView> views,
                           ConstBytes packed) {
  if (in_place(partition)) {
    return {};
  }
  const std::size_t element = dtype_size(partition.dtype);
  for (const scheduler::Slice& slice : partition.slices) {
    const Bytes to = slice_of(slice, views);
    const std::byte* const from = packed.data() + static_cast<std::size_t>(slice.at) * element;
    if (const Status copied = plane_.copy(to.data(), from, to.size()); !copied) {
      return plane_.stage().fail(copied);
    }
  }
  return {};
}

Result<std::byte*> DevicePath::zeros(std::size_t bytes) {
  auto made = make_zeros(bytes);
  return made ? std::move(made) : Result<std::byte*>(plane_.stage().fail(made.status()));
}

Result<std::byte*> DevicePath::make_zeros(std::size_t bytes) {
  if (bytes == 0) {
    return nullptr;
  }
  if (!zeros_) {
    SRT_ASSIGN(zeros_, plane_.take(bytes));
  }
  if (zeros_here_.bytes().empty()) {
    SRT_ASSIGN(zeros_here_, plane_.stage().take(bytes));
    std::ranges::fill(zeros_here_.bytes(), std::byte{0});
  }
  SRT_TRY(plane_.copy(zeros_.get(), zeros_here_.bytes().data(), bytes));
  return zeros_.get();
}

}  // namespace sirtaki::engine
