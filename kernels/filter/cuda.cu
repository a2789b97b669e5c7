#include "kernels/filter/cuda.h"

#include <cmath>

#include "kernels/device.cuh"
#include "kernels/group_topk/select.cuh"
#include "kernels/half/sent.h"
#include "kernels/launch.cuh"
#include "kernels/sparse_sum/payload.h"

namespace sirtaki::kernels::cuda {
namespace {

constexpr unsigned kThreads = 128;
constexpr std::int64_t kWarps = kThreads / kLanes;
constexpr unsigned kSelectThreads = 512;
// Elements after which the 16 float32 sums are added to the float64 sum.
constexpr std::int64_t kFlush = 1024;
// Rows that a warp reads before it uses the first of them.
constexpr int kAhead = 8;

struct Norms {
  Arrays arrays;
  std::int64_t filters;
  std::int64_t size;
  float* norms;
};

// Adds up to 1024 elements of a filter and writes them to `left`. Lanes below 16 return their part of the sum of
// magnitudes.
__device__ float add_magnitudes(const Arrays& arrays, std::int64_t first, std::int64_t count) {
  float sum = 0;
  for (std::int64_t begin = 0; begin < count; begin += kAhead * kLanes) {
    float a[kAhead];
#pragma unroll
    for (int r = 0; r < kAhead; ++r) {
      const std::int64_t i = begin + r * static_cast<int>(kLanes) + lane();
      a[r] = i < count ? arrays.element(first + i) : 0.0F;
    }
#pragma unroll
    for (int r = 0; r < kAhead; ++r) {
      const std::int64_t row = begin + r * static_cast<int>(kLanes);
      if (row >= count) {
        break;
      }
      const std::int64_t i = row + lane();
      if (arrays.left != nullptr && i < count) {
        arrays.left[first + i] = a[r];
      }
      // Elements i and i + 16 of the row go to the same sum, one after the other.
      const float size = std::fabs(a[r]);
      const float next = __shfl_down_sync(kAll, size, 16);
      sum = sum + size + next;
    }
  }
  return sum;
}

__global__ void __launch_bounds__(kThreads) filter_find_norms(const Norms args) {
  for (std::int64_t filter = first_warp(); filter < args.filters; filter += all_warps()) {
    double sum = 0;
    for (std::int64_t begin = 0; begin < args.size; begin += kFlush) {
      const float own =
          add_magnitudes(args.arrays, filter * args.size + begin, lesser<std::int64_t>(kFlush, args.size - begin));
#pragma unroll
      for (int l = 0; l < 16; ++l) {
        sum += static_cast<double>(__shfl_sync(kAll, own, l));
      }
    }
    if (lane() == 0) {
      args.norms[filter] = ref::canonical(static_cast<float>(sum / static_cast<double>(args.size)));
    }
  }
}

// Runs as one block.
__global__ void __launch_bounds__(kSelectThreads)
    filter_choose(const float* norms, const std::int32_t filters, const std::int32_t keep, std::uint16_t* ids) {
  constexpr int kSelectWarps = kSelectThreads / kLanes;
  __shared__ std::uint32_t scratch[2 * kSelectWarps];
  std::uint32_t most = 0;
  for (auto f = static_cast<std::int32_t>(threadIdx.x); f < filters; f += kSelectThreads) {
    most = greater(most, ref::magnitude_bits(ref::canonical(norms[f])));
  }
  const BlockTopk<kSelectWarps> topk{norms, filters, keep, most};
  topk.select(scratch,
              [&](std::int32_t filter, std::int32_t position) { ids[position] = static_cast<std::uint16_t>(filter); });
}

struct Take {
  std::int64_t size;
  std::int64_t count;
  const std::uint16_t* ids;
  bool take_out;
  float* values;
  std::byte* sent;
  std::uint32_t* not_finite;
};

template <class Value>
__global__ void __launch_bounds__(kThreads) filter_take(const Take args) {
  for (std::int64_t c = blockIdx.x; c < args.count; c += gridDim.x) {
    float* const values = args.values + args.ids[c] * args.size;
    auto* const sent = as<typename Value::Bits>(args.sent) + c * args.size;
    for (std::int64_t i = threadIdx.x; i < args.size; i += kThreads) {
      const SentBits<Value> number = sent_as<Value>(values[i]);
      sent[i] = number.bits;
      if (args.take_out) {
        values[i] = number.sent.left;
      }
      if (!number.sent.finite) {
        *args.not_finite = 1;
      }
    }
  }
}

struct Source {
  const std::uint16_t* ids;
  std::int32_t count;
  const std::byte* sent;
};
struct Sum {
  Source sources[kMostPayloads];
  int count;
  std::int64_t filters;
  std::int64_t size;
  float* out;
};

// Returns the position of a filter among the ids of a part, or -1.
__device__ std::int32_t place_of(const Source& source, std::int64_t filter) {
  std::int32_t low = 0;
  std::int32_t high = source.count;
  while (low < high) {
    const std::int32_t middle = low + (high - low) / 2;
    if (source.ids[middle] < filter) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < source.count && source.ids[low] == filter ? low : -1;
}

// Runs one block for each filter, which first finds the parts that contain the filter.
template <class Value>
__global__ void __launch_bounds__(kThreads) filter_add(const Sum args) {
  __shared__ std::int32_t places[kMostPayloads];
  for (std::int64_t filter = blockIdx.x; filter < args.filters; filter += gridDim.x) {
    for (int p = static_cast<int>(threadIdx.x); p < args.count; p += static_cast<int>(kThreads)) {
      places[p] = place_of(args.sources[p], filter);
    }
    __syncthreads();
    for (std::int64_t i = threadIdx.x; i < args.size; i += kThreads) {
      float sum = 0;
      for (int p = 0; p < args.count; ++p) {
        if (places[p] >= 0) {
          const auto* const sent = as<typename Value::Bits>(args.sources[p].sent) + places[p] * args.size;
          sum = ref::canonical(sum + Value::decode(sent[i]));
        }
      }
      args.out[filter * args.size + i] = sum;
    }
    __syncthreads();
  }
}

template <class Value>
Launch take_as(const Take& args, Stream stream) {
  if (!aligned(args.sent, sizeof(typename Value::Bits))) {
    return kInvalid;
  }
  return launch(filter_take<Value>, args.count, kThreads, stream, args);
}

template <class Value>
Launch sum_as(const Sum& args, Stream stream) {
  for (int p = 0; p < args.count; ++p) {
    if (!aligned(args.sources[p].sent, sizeof(typename Value::Bits))) {
      return kInvalid;
    }
  }
  return launch(filter_add<Value>, args.filters, kThreads, stream, args);
}

bool is_value(DType value) {
  return value == DType::kF32 || value == DType::kF16 || value == DType::kBF16;
}
bool is_sound(const FilterShape& shape) {
  return shape.filters >= 0 && shape.filters <= 65536 && shape.size >= 1;
}
bool is_sound(const FilterShape& shape, const FilterIds& chosen) {
  return is_sound(shape) && chosen.count >= 0 && chosen.count <= shape.filters && aligned(chosen.ids, 2);
}

}  // namespace

Launch filter_norms(const FilterNorms& args, Stream stream) {
  if (!is_sound(args.shape) || !is_float(args.arrays) || !aligned(args.norms, 4)) {
    return kInvalid;
  }
  const Norms norms{Arrays(args.arrays), args.shape.filters, args.shape.size, reinterpret_cast<float*>(args.norms)};
  return launch(filter_find_norms, pieces(args.shape.filters, kWarps), kThreads, stream, norms);
}

Launch filter_select(const FilterSelect& args, Stream stream) {
  if (args.filters < 0 || args.filters > 65536 || args.keep < 0 || args.keep > args.filters ||
      !aligned(args.norms, 4) || !aligned(args.ids, 2)) {
    return kInvalid;
  }
  return launch(filter_choose, args.keep > 0 ? 1 : 0, kSelectThreads, stream,
                reinterpret_cast<const float*>(args.norms), static_cast<std::int32_t>(args.filters),
                static_cast<std::int32_t>(args.keep), reinterpret_cast<std::uint16_t*>(args.ids));
}

Launch filter_gather(const FilterTake& args, Stream stream) {
  if (!is_sound(args.shape, args.chosen) || !is_value(args.how.value) || !aligned(args.values, 4) ||
      args.not_finite == nullptr) {
    return kInvalid;
  }
  const Launch cleared = clear(args.not_finite, sizeof(*args.not_finite), stream);
  if (!cleared.ok()) {
    return cleared;
  }
  const Take take{args.shape.size,
                  args.chosen.count,
                  reinterpret_cast<const std::uint16_t*>(args.chosen.ids),
                  args.how.take_out,
                  reinterpret_cast<float*>(args.values),
                  args.sent,
                  args.not_finite};
  Launch result;
  with_value_type(args.how.value, [&]<class Value>() { result = take_as<Value>(take, stream); });
  return result;
}

Launch filter_sum(const FilterSum& args, Stream stream) {
  if (!is_sound(args.shape) || !is_value(args.value) || args.parts.size() > kMostPayloads || !aligned(args.out, 4)) {
    return kInvalid;
  }
  Sum sum{{}, 0, args.shape.filters, args.shape.size, reinterpret_cast<float*>(args.out)};
  for (const FilterPart& part : args.parts) {
    if (!is_sound(args.shape, part.chosen)) {
      return kInvalid;
    }
    sum.sources[sum.count++] = {reinterpret_cast<const std::uint16_t*>(part.chosen.ids),
                                static_cast<std::int32_t>(part.chosen.count), part.sent};
  }
  Launch result;
  with_value_type(args.value, [&]<class Value>() { result = sum_as<Value>(sum, stream); });
  return result;
}

Launch load_filter() {
  Launch last = load(filter_find_norms, filter_choose);
  for (const DType value : {DType::kF16, DType::kBF16, DType::kF32}) {
    with_value_type(value,
                    [&]<class Value>() { last = last.ok() ? load(filter_take<Value>, filter_add<Value>) : last; });
  }
  return last;
}

}  // namespace sirtaki::kernels::cuda
