#include "kernels/cast/cuda.h"

#include "kernels/device.cuh"
#include "kernels/launch.cuh"

namespace sirtaki::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;
// Elements that a thread handles at a time: 16 bytes of float32, 8 of halves.
constexpr int kFour = 4;

template <class T>
struct alignas(kFour * sizeof(T)) Four {
  T at[kFour];
};

template <class From, class To>
__global__ void __launch_bounds__(kThreads)
    cast_elements(const std::byte* in, std::byte* out, const std::int64_t n, const bool vector) {
  using In = typename From::Bits;
  using Out = typename To::Bits;
  for (std::int64_t first = kFour * first_thread(); first < n; first += kFour * all_threads()) {
    if (vector && first + kFour <= n) {
      const Four<In> from = *as<Four<In>>(in + first * static_cast<std::int64_t>(sizeof(In)));
      Four<Out> to;
#pragma unroll
      for (int j = 0; j < kFour; ++j) {
        to.at[j] = To::encode(From::decode(from.at[j]));
      }
      *as<Four<Out>>(out + first * static_cast<std::int64_t>(sizeof(Out))) = to;
    } else {
      for (std::int64_t i = first; i < lesser(first + kFour, n); ++i) {
        as<Out>(out)[i] = To::encode(From::decode(as<In>(in)[i]));
      }
    }
  }
}

template <class From, class To>
Launch cast_as(const Cast& args, Stream stream) {
  using In = typename From::Bits;
  using Out = typename To::Bits;
  if (!aligned(args.in, sizeof(In)) || !aligned(args.out, sizeof(Out))) {
    return kInvalid;
  }
  const bool vector = aligned(args.in, sizeof(Four<In>)) && aligned(args.out, sizeof(Four<Out>));
  return launch(cast_elements<From, To>, pieces(args.n, kFour * kThreads), kThreads, stream, args.in, args.out, args.n,
                vector);
}

}  // namespace

Launch cast(const Cast& args, Stream stream) {
  using Float = ref::Plain<float>;
  if (args.n < 0) {
    return kInvalid;
  }
  if (args.from == DType::kF32 && args.to == DType::kF16) {
    return cast_as<Float, ref::F16>(args, stream);
  }
  if (args.from == DType::kF32 && args.to == DType::kBF16) {
    return cast_as<Float, ref::BF16>(args, stream);
  }
  if (args.from == DType::kF16 && args.to == DType::kF32) {
    return cast_as<ref::F16, Float>(args, stream);
  }
  if (args.from == DType::kBF16 && args.to == DType::kF32) {
    return cast_as<ref::BF16, Float>(args, stream);
  }
  return kInvalid;
}

Launch load_cast() {
  using Float = ref::Plain<float>;
  return load(cast_elements<Float, ref::F16>, cast_elements<Float, ref::BF16>, cast_elements<ref::F16, Float>,
              cast_elements<ref::BF16, Float>);
}

}  // namespace sirtaki::kernels::cuda
