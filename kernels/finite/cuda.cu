#include "kernels/finite/cuda.h"

#include "kernels/device.cuh"
#include "kernels/launch.cuh"

namespace sirtaki::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;

// Words that a thread loads at once.
template <class Word>
constexpr int kAtOnce = kPackBytes / static_cast<int>(sizeof(Word));

// kExponent: the bits that are all set in numbers that are not finite.
template <class Word, Word kExponent>
__global__ void __launch_bounds__(kThreads)
    find_not_finite(const Word* data, const std::int64_t n, const bool vector, std::uint32_t* not_finite) {
  constexpr int kWords = kAtOnce<Word>;
  bool found = false;
  for (std::int64_t first = kWords * first_thread(); first < n; first += kWords * all_threads()) {
    if (vector && first + kWords <= n) {
      const auto words = load_pack<Pack<Word, kWords>>(reinterpret_cast<const std::byte*>(data + first));
#pragma unroll
      for (int j = 0; j < kWords; ++j) {
        found = found || (words.at[j] & kExponent) == kExponent;
      }
    } else {
      for (std::int64_t i = first; i < lesser(first + kWords, n); ++i) {
        found = found || (data[i] & kExponent) == kExponent;
      }
    }
  }
  if (found) {
    *not_finite = 1;
  }
}

template <class Word, Word kExponent>
Launch find(const Finite& args, Stream stream) {
  if (!aligned(args.data, sizeof(Word))) {
    return kInvalid;
  }
  return launch(find_not_finite<Word, kExponent>, pieces(args.n, std::int64_t{kAtOnce<Word>} * kThreads), kThreads,
                stream, reinterpret_cast<const Word*>(args.data), args.n, aligned(args.data, kPackBytes),
                args.not_finite);
}

}  // namespace

Launch all_finite(const Finite& args, Stream stream) {
  if (args.n < 0 || args.not_finite == nullptr) {
    return kInvalid;
  }
  const Launch cleared = clear(args.not_finite, sizeof(*args.not_finite), stream);
  if (!cleared.ok()) {
    return cleared;
  }
  switch (args.dtype) {
    case DType::kF16:
      return find<std::uint16_t, 0x7C00>(args, stream);
    case DType::kBF16:
      return find<std::uint16_t, 0x7F80>(args, stream);
    case DType::kF32:
      return find<std::uint32_t, 0x7F800000>(args, stream);
    case DType::kF64:
      return find<std::uint64_t, 0x7FF0000000000000>(args, stream);
    default:
      return {};
  }
}

Launch load_finite() {
  return load(find_not_finite<std::uint16_t, 0x7C00>, find_not_finite<std::uint16_t, 0x7F80>,
              find_not_finite<std::uint32_t, 0x7F800000>, find_not_finite<std::uint64_t, 0x7FF0000000000000>);
}

}  // namespace sirtaki::kernels::cuda
