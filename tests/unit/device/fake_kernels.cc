// The kernels of the fake device: reference kernels, queued as work of a stream.
#include <span>
#include <vector>

#include "kernels/cast/cast.h"
#include "kernels/group_topk/group_topk.h"
#include "kernels/reduce/reduce.h"
#include "kernels/scale/scale.h"
#include "kernels/scaled_cast/scaled_cast.h"
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
