#include "kernels/reduce/cuda.h"

#include "kernels/device.cuh"
#include "kernels/launch.cuh"
#include "kernels/reduce/arithmetic.h"

namespace sirtaki::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;

struct Arguments {
  const std::byte* sources[kMostPayloads];
  int count;
  ReduceOp op;
  std::byte* out;
  std::int64_t n;
  std::int64_t divisor;  // 0: no division
};

// Reduces kCount consecutive elements from `first` on, in the order of the sources; rounds once, after the division.
template <class Element, int kCount>
__device__ void reduce_at(const Arguments& args, std::int64_t first) {
  using Some = Pack<typename Element::Bits, kCount>;
  using Value = typename Element::Value;
  const std::int64_t place = first * static_cast<std::int64_t>(sizeof(typename Element::Bits));
  Some bits = load_pack<Some>(args.sources[0] + place);
  if (args.count > 1 || args.divisor > 0) {
    Value values[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      values[j] = Element::decode(bits.at[j]);
    }
    for (int s = 1; s < args.count; ++s) {
      const Some more = load_pack<Some>(args.sources[s] + place);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        values[j] = ref::combined<Value>(args.op, values[j], Element::decode(more.at[j]));
      }
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if constexpr (!std::is_same_v<Value, bool>) {
        values[j] = args.divisor > 0 ? ref::divided<Value>(values[j], args.divisor) : values[j];
      }
      bits.at[j] = Element::encode(ref::canonical(values[j]));
    }
  }
  store_pack(bits, args.out + place);
}

// Elements that a thread reduces at a time.
template <class Element>
constexpr int kAtOnce = kPackBytes / static_cast<int>(sizeof(typename Element::Bits));

// `packs`: the number of packs of elements to reduce at once; the elements behind them follow one by one.
template <class Element>
__global__ void __launch_bounds__(kThreads) reduce_sources(const Arguments args, const std::int64_t packs) {
  for (std::int64_t pack = first_thread(); pack < packs; pack += all_threads()) {
    reduce_at<Element, kAtOnce<Element>>(args, pack * kAtOnce<Element>);
  }
  for (std::int64_t i = packs * kAtOnce<Element> + first_thread(); i < args.n; i += all_threads()) {
    reduce_at<Element, 1>(args, i);
  }
}

template <class Element>
Launch run(const Arguments& args, Stream stream) {
  constexpr std::size_t kSize = sizeof(typename Element::Bits);
  bool good = aligned(args.out, kSize);
  bool vector = aligned(args.out, kPackBytes);
  for (int s = 0; s < args.count; ++s) {
    good = good && aligned(args.sources[s], kSize);
    vector = vector && aligned(args.sources[s], kPackBytes);
  }
  if (!good) {
    return kInvalid;
  }
  const std::int64_t packs = vector ? args.n / kAtOnce<Element> : 0;
  return launch(reduce_sources<Element>, pieces(vector ? packs + 1 : args.n, kThreads), kThreads, stream, args, packs);
}

template <class Body>
Launch with_element(DType dtype, Body body) {
  switch (dtype) {
    case DType::kU8:
      return body.template operator()<ref::Plain<std::uint8_t>>();
    case DType::kI8:
      return body.template operator()<ref::Plain<std::int8_t>>();
    case DType::kU16:
      return body.template operator()<ref::Plain<std::uint16_t>>();
    case DType::kI16:
      return body.template operator()<ref::Plain<std::int16_t>>();
    case DType::kI32:
      return body.template operator()<ref::Plain<std::int32_t>>();
    case DType::kI64:
      return body.template operator()<ref::Plain<std::int64_t>>();
    case DType::kF16:
      return body.template operator()<ref::F16>();
    case DType::kBF16:
      return body.template operator()<ref::BF16>();
    case DType::kF32:
      return body.template operator()<ref::Plain<float>>();
    case DType::kF64:
      return body.template operator()<ref::Plain<double>>();
    case DType::kBool:
      return body.template operator()<ref::Bool>();
  }
  return kInvalid;
}

}  // namespace

Launch reduce(const Reduce& args, Stream stream) {
  const bool average = args.op == ReduceOp::kAverage;
  if (args.op == ReduceOp::kAdasum || args.n < 0 || args.sources.empty() || args.sources.size() > kMostPayloads ||
      (average && (args.divisor < 1 || args.dtype == DType::kBool))) {
    return kInvalid;
  }
  Arguments arguments{{}, 0, args.op, args.out, args.n, average ? args.divisor : 0};
  for (const std::byte* source : args.sources) {
    arguments.sources[arguments.count++] = source;
  }
  return with_element(args.dtype, [&]<class Element>() { return run<Element>(arguments, stream); });
}

Launch load_reduce() {
  Launch last;
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    last = with_element(static_cast<DType>(dtype),
                        [&]<class Element>() { return last.ok() ? load(reduce_sources<Element>) : last; });
  }
  return last;
}

}  // namespace sirtaki::kernels::cuda
