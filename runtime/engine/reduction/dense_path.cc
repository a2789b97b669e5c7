#include "runtime/engine/reduction/dense_path.h"

#include <algorithm>
#include <utility>

#include "compression/codecs/catalog.h"
#include "kernels/scale/scale.h"
#include "runtime/engine/reduction/wire_size.h"

namespace sirtaki::engine {

Bytes slice_of(const scheduler::Slice& slice, std::span<const TensorView> views) {
  const TensorView& view = views[static_cast<std::size_t>(slice.tensor)];
  const std::size_t element = dtype_size(view.dtype);
  return view.bytes().subspan(static_cast<std::size_t>(slice.offset) * element,
                              static_cast<std::size_t>(slice.numel) * element);
}

Bytes packed_slice(const scheduler::Slice& slice, Bytes packed, DType wire) {
  return packed.subspan(static_cast<std::size_t>(slice.at) * dtype_size(wire),
                        static_cast<std::size_t>(slice.numel) * dtype_size(wire));
}

bool in_place(const scheduler::Partition& partition) {
  return partition.slices.size() == 1 && wire_dtype(partition) == partition.dtype;
}

Result<DensePath::Packed> HostPath::gather(const scheduler::Partition& partition, std::span<const TensorView> views) {
  Packed packed;
  const DType wire = wire_dtype(partition);
  if (in_place(partition)) {
    packed.in_place = slice_of(partition.slices.front(), views);
    if (scales_.before != 1.0) {
      kernels::scale(wire, packed.in_place.data(), partition.numel, scales_.before);
    }
    return packed;
  }
  packed.memory = memory(static_cast<std::size_t>(partition.numel) * dtype_size(wire));
  pack(partition, views, packed.memory.bytes());
  return packed;
}

BufferPool::Buffer HostPath::memory(std::size_t bytes) {
  net::SharedBuffer shared = net_.allocate_shared(bytes);
  if (!shared.keeps) {
    return buffers_.take(bytes);
  }
  shared_bytes_.add(bytes);
  return BufferPool::Buffer(std::move(shared));
}

void HostPath::pack(const scheduler::Partition& partition, std::span<const TensorView> views, Bytes out) {
  const compression::Codec& codec = compression::codec(partition.format.codec);
  const DType wire = codec.wire_dtype(partition.dtype);
  for (const scheduler::Slice& slice : partition.slices) {
    const Bytes from = slice_of(slice, views);
    const Bytes to = packed_slice(slice, out, wire);
    if (wire == partition.dtype) {
      std::ranges::copy(from, to.data());
      if (scales_.before != 1.0) {
        kernels::scale(wire, to.data(), slice.numel, scales_.before);
      }
      continue;
    }
    if (scales_.before == 1.0) {
      codec.encode(partition.dtype, from, to);
      continue;
    }
    BufferPool::Buffer scaled = buffers_.take(from.size());
    std::ranges::copy(from, scaled.bytes().data());
    kernels::scale(partition.dtype, scaled.bytes().data(), slice.numel, scales_.before);
    codec.encode(partition.dtype, scaled.bytes(), to);
  }
}

Status HostPath::scatter(const scheduler::Partition& partition, std::span<const TensorView> views,
                         BufferPool::Buffer packed) {
  const compression::Codec& codec = compression::codec(partition.format.codec);
  const DType wire = codec.wire_dtype(partition.dtype);
  const bool moved = !in_place(partition);
  for (const scheduler::Slice& slice : partition.slices) {
    const Bytes to = slice_of(slice, views);
    if (moved) {
      const ConstBytes from = packed_slice(slice, packed.bytes(), wire);
      if (wire == partition.dtype) {
        std::ranges::copy(from, to.data());
      } else {
        SRT_TRY(codec.decode(partition.dtype, from, to));
      }
    }
    if (scales_.after != 1.0) {
      kernels::scale(partition.dtype, to.data(), slice.numel, scales_.after);
    }
  }
  return {};
}

Status HostPath::add_residual(const TensorView& gradient, const AddResidual& add) {
  add(gradient);
  return {};
}

Result<std::byte*> HostPath::zeros(std::size_t bytes) {
  zeros_.assign(bytes, std::byte{0});
  return zeros_.data();
}

}  // namespace sirtaki::engine
