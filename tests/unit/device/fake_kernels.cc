// The kernels of the fake device: reference kernels, queued as work of a stream.
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "kernels/cast/cast.h"
#include "kernels/group_topk/group_topk.h"
#include "kernels/magnitude/magnitude.h"
#include "kernels/reduce/reduce.h"
#include "kernels/scale/scale.h"
#include "kernels/scaled_cast/scaled_cast.h"
#include "kernels/sparse_sum/sparse_sum.h"
#include "kernels/threshold_select/threshold_select.h"
#include "kernels/twobit/exponent.h"
#include "kernels/twobit/twobit.h"
#include "tests/unit/device/fake_device.h"
#include "tests/unit/kernels/oracles.h"

#ifdef __SANITIZE_THREAD__
extern "C" void __tsan_read_range(const void* data, std::size_t bytes);
extern "C" void __tsan_write_range(void* data, std::size_t bytes);
#endif

namespace sirtaki::device::testing {
namespace {

// ThreadSanitizer does not see the memory that reference kernels read and write.
void reads([[maybe_unused]] const std::byte* data, [[maybe_unused]] std::size_t bytes) {
#ifdef __SANITIZE_THREAD__
  __tsan_read_range(data, bytes);
#endif
}

void writes([[maybe_unused]] std::byte* data, [[maybe_unused]] std::size_t bytes) {
#ifdef __SANITIZE_THREAD__
  __tsan_write_range(data, bytes);
#endif
}

std::size_t bytes_of(DType dtype, std::int64_t n) {
  return static_cast<std::size_t>(n) * dtype_size(dtype);
}

void uses_arrays(const kernels::Feedback& arrays, std::int64_t n) {
  const std::size_t bytes = bytes_of(DType::kF32, n);
  reads(arrays.gradient, bytes);
  if (arrays.residual != nullptr) {
    reads(arrays.residual, bytes);
    writes(arrays.left, bytes);
  }
}

kernels::cuda::Launch reduce(const kernels::cuda::Reduce& args, kernels::cuda::Stream stream) {
  const std::vector<const std::byte*> sources(args.sources.begin(), args.sources.end());
  FakeDevice::queue(stream, [args, sources] {
    const std::size_t bytes = bytes_of(args.dtype, args.n);
    for (const std::byte* source : sources) {
      reads(source, bytes);
    }
    writes(args.out, bytes);
    if (args.op == ReduceOp::kAverage) {
      kernels::ref::average(args.dtype, sources, args.out, args.n, static_cast<double>(args.divisor));
    } else {
      kernels::ref::reduce(args.op, args.dtype, sources, args.out, args.n);
    }
  });
  return {};
}

// A launch copies its arguments but not the memory that they point to, as on a real device.
template <class Sum>
void queue_sum(kernels::cuda::Stream stream, Sum args, void (*sum)(const Sum&, std::span<const std::byte* const>)) {
  const std::vector<const std::byte*> payloads(args.payloads.begin(), args.payloads.end());
  FakeDevice::queue(stream, [args, payloads, sum] {
    writes(args.out, bytes_of(DType::kF32, args.n));
    sum(args, payloads);
  });
}

template <class Sum>
void divide(const Sum& sum) {
  const std::byte* const sums[] = {sum.out};
  kernels::ref::average(DType::kF32, sums, sum.out, sum.n, static_cast<double>(sum.divisor));
}

void store_flag(std::uint32_t* not_finite, bool finite) {
  *not_finite = finite ? 0 : 1;
}

kernels::cuda::Launch group_topk_encode(const kernels::cuda::GroupTopkEncode& args, kernels::cuda::Stream stream) {
  FakeDevice::queue(stream, [args] {
    uses_arrays(args.arrays, args.n);
    store_flag(args.not_finite, kernels::ref::group_topk_encode(args.how, args.n, args.arrays, args.payload));
  });
  return {};
}

kernels::cuda::Launch group_topk_sum(const kernels::cuda::GroupTopkSum& args, kernels::cuda::Stream stream) {
  queue_sum<kernels::cuda::GroupTopkSum>(stream, args, [](const auto& sum, auto payloads) {
    kernels::ref::group_topk_sum(sum.how, sum.n, payloads, sum.out);
    divide(sum);
  });
  return {};
}

kernels::cuda::Launch scaled_encode(const kernels::cuda::ScaledEncode& args, kernels::cuda::Stream stream) {
  FakeDevice::queue(stream, [args] {
    uses_arrays(args.arrays, args.n);
    store_flag(args.not_finite, kernels::ref::scaled_encode(args.how, args.n, args.arrays, args.payload));
  });
  return {};
}

kernels::cuda::Launch scaled_sum(const kernels::cuda::ScaledSum& args, kernels::cuda::Stream stream) {
  queue_sum<kernels::cuda::ScaledSum>(stream, args, [](const auto& sum, auto payloads) {
    kernels::ref::scaled_sum(sum.how, sum.n, payloads, sum.out);
    divide(sum);
  });
  return {};
}

// Calls body(number, first, elements, place of the payload) for each block.
template <class Body>
void for_each_block(const kernels::cuda::TwobitBlocks& blocks, Body body) {
  std::size_t place = 0;
  for (std::int64_t first = 0, b = 0; first < blocks.n; first += blocks.block, ++b) {
    const std::int64_t elements = std::min(blocks.block, blocks.n - first);
    body(b, first, elements, place);
    place += 1 + kernels::twobit_bytes(elements);
  }
}

kernels::cuda::Launch twobit_measure(const kernels::cuda::TwobitMeasure& args, kernels::cuda::Stream stream) {
  FakeDevice::queue(stream, [args] {
    const std::size_t bytes = bytes_of(DType::kF32, args.blocks.n);
    reads(args.arrays.gradient, bytes);
    reads(args.arrays.residual, args.arrays.residual == nullptr ? 0 : bytes);
    for_each_block(args.blocks, [&](std::int64_t b, std::int64_t first, std::int64_t elements, std::size_t /*place*/) {
      const kernels::Magnitude size = kernels::ref::magnitude(elements, args.arrays.from(first));
      args.magnitudes[b] = {size.sum, size.largest};
    });
  });
  return {};
}

kernels::cuda::Launch twobit_choose(const kernels::cuda::TwobitChoose& args, kernels::cuda::Stream stream) {
  FakeDevice::queue(stream, [args] {
    double sum = 0;
    float largest = 0;
    bool finite = true;
    for_each_block(args.blocks,
                   [&](std::int64_t b, std::int64_t /*first*/, std::int64_t /*elements*/, std::size_t /*place*/) {
                     sum += args.magnitudes[b].sum;
                     largest = std::max(largest, args.magnitudes[b].largest);
                     finite = finite && std::isfinite(args.magnitudes[b].largest);
                   });
    if (args.whole) {
      args.magnitudes[(args.blocks.n + args.blocks.block - 1) / args.blocks.block] = {sum, largest};
    }
    const int common = kernels::twobit_wanted(args.factor, sum, args.blocks.n, largest);
    for_each_block(args.blocks, [&](std::int64_t b, std::int64_t /*first*/, std::int64_t elements,
                                    std::size_t /*place*/) {
      const kernels::cuda::TwobitMagnitude& size = args.magnitudes[b];
      const int wanted = args.whole ? common : kernels::twobit_wanted(args.factor, size.sum, elements, size.largest);
      const bool sound = args.whole ? finite : std::isfinite(size.largest);
      args.exponents[b] = sound ? static_cast<std::byte>(std::max(wanted, kernels::twobit_carrying(size.largest)))
                                : kernels::cuda::kTwobitNotFinite;
    });
  });
  return {};
}

kernels::cuda::Launch twobit_encode(const kernels::cuda::TwobitEncode& args, kernels::cuda::Stream stream) {
  FakeDevice::queue(stream, [args] {
    uses_arrays(args.arrays, args.blocks.n);
    bool finite = true;
    for_each_block(args.blocks, [&](std::int64_t b, std::int64_t first, std::int64_t elements, std::size_t place) {
      const auto exponent = std::to_integer<std::int8_t>(args.exponents[b]);
      finite = finite && args.exponents[b] != kernels::cuda::kTwobitNotFinite;
      args.payload[place] = args.exponents[b];
      kernels::ref::twobit_encode(exponent, elements, args.arrays.from(first), args.payload + place + 1);
    });
    store_flag(args.not_finite, finite);
  });
  return {};
}

kernels::cuda::Launch twobit_sum(const kernels::cuda::TwobitSum& args, kernels::cuda::Stream stream) {
  const std::vector<const std::byte*> payloads(args.payloads.begin(), args.payloads.end());
  FakeDevice::queue(stream, [args, payloads] {
    writes(args.out, bytes_of(DType::kF32, args.blocks.n));
    for_each_block(args.blocks, [&](std::int64_t /*b*/, std::int64_t first, std::int64_t elements, std::size_t place) {
      std::vector<kernels::TwobitPart> parts;
      for (const std::byte* payload : payloads) {
        parts.push_back({payload + place + 1, std::to_integer<std::int8_t>(payload[place])});
      }
      std::byte* const out = args.out + first * static_cast<std::int64_t>(sizeof(float));
      kernels::ref::twobit_sum(parts, elements, out);
      const std::byte* const sums[] = {out};
      kernels::ref::average(DType::kF32, sums, out, elements, static_cast<double>(args.divisor));
    });
  });
  return {};
}

// Returns the magnitude of a rank, the largest being 1.
float kth_magnitude(std::int64_t rank, std::int64_t n, const kernels::Feedback& arrays) {
  std::vector<std::uint32_t> keys;
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    keys.push_back(kernels::ref::magnitude_bits(kernels::ref::element(arrays, i)));
  }
  std::ranges::nth_element(keys, keys.begin() + (rank - 1), std::greater());
  return std::bit_cast<float>(keys[static_cast<std::size_t>(rank - 1)]);
}

kernels::cuda::Launch threshold_select(const kernels::cuda::ThresholdEncode& args, kernels::cuda::Stream stream) {
  FakeDevice::queue(stream, [args] {
    uses_arrays(args.arrays, args.n);
    const float threshold = args.rank == 0 ? args.how.threshold : kth_magnitude(args.rank, args.n, args.arrays);
    kernels::ThresholdSelect how = args.how;
    how.threshold = std::max(threshold, std::numeric_limits<float>::denorm_min());
    std::fill_n(args.payload, args.payload_bytes, std::byte{0});
    std::vector<std::byte> entries(kernels::threshold_max_bytes(how, args.n));
    const kernels::Selected found = kernels::ref::threshold_select(how, args.n, args.arrays, entries.data());
    kernels::ref::Plain<std::uint32_t>::store(static_cast<std::uint32_t>(found.entries), args.payload);
    std::copy_n(entries.data(), kernels::sparse_bytes(how.value, args.n, found.entries), args.payload + 4);
    *args.found = {found.finite ? 0U : 1U, static_cast<std::uint32_t>(found.wanted), threshold,
                   args.rank == 0 ? 0U : 1U};
  });
  return {};
}

kernels::cuda::Launch sparse_sum(const kernels::cuda::SparseSum& args, kernels::cuda::Stream stream) {
  queue_sum<kernels::cuda::SparseSum>(stream, args, [](const auto& sum, auto payloads) {
    std::vector<kernels::SparsePayload> sparse;
    for (const std::byte* payload : payloads) {
      sparse.push_back({payload + 4, kernels::ref::Plain<std::uint32_t>::load(payload)});
    }
    kernels::ref::sparse_sum(sum.value, sum.n, sparse, sum.out);
    divide(sum);
  });
  return {};
}

kernels::cuda::Launch cast(const kernels::cuda::Cast& args, kernels::cuda::Stream stream) {
  FakeDevice::queue(stream, [args] {
    reads(args.in, bytes_of(args.from, args.n));
    writes(args.out, bytes_of(args.to, args.n));
    kernels::ref::cast(args.from, args.in, args.to, args.out, args.n);
  });
  return {};
}

constexpr kernels::cuda::Kernels table() {
  kernels::cuda::Kernels kernels{};
  kernels.version = kernels::cuda::kKernelsVersion;
  kernels.group_topk_encode = group_topk_encode;
  kernels.group_topk_sum = group_topk_sum;
  kernels.scaled_encode = scaled_encode;
  kernels.sparse_sum = sparse_sum;
  kernels.threshold_select = threshold_select;
  kernels.twobit_choose = twobit_choose;
  kernels.twobit_encode = twobit_encode;
  kernels.twobit_measure = twobit_measure;
  kernels.twobit_sum = twobit_sum;
  kernels.scaled_sum = scaled_sum;
  kernels.cast = cast;
  kernels.reduce = reduce;
  return kernels;
}
constexpr kernels::cuda::Kernels kTable = table();

}  // namespace

const kernels::cuda::Kernels& FakeDevice::kernels() const {
  return kTable;
}

}  // namespace sirtaki::device::testing
