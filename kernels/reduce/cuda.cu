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

// Reduces in the order of the sources, element by element; rounds once, after the division.
template <class Element>
__global__ void __launch_bounds__(kThreads) reduce_sources(const Arguments args) {
  using Bits = typename Element::Bits;
  using Value = typename Element::Value;
  for (std::int64_t i = first_thread(); i < args.n; i += all_threads()) {
    Bits bits = as<Bits>(args.sources[0])[i];
    if (args.count > 1 || args.divisor > 0) {
      Value value = Element::decode(bits);
      for (int s = 1; s < args.count; ++s) {
        value = ref::combined<Value>(args.op, value, Element::decode(as<Bits>(args.sources[s])[i]));
      }
      if constexpr (!std::is_same_v<Value, bool>) {
        value = args.divisor > 0 ? ref::divided<Value>(value, args.divisor) : value;
      }
      bits = Element::encode(ref::canonical(value));
    }
    as<Bits>(args.out)[i] = bits;
  }
}

template <class Element>
Launch run(const Arguments& args, Stream stream) {
  bool good = aligned(args.out, sizeof(typename Element::Bits));
  for (int s = 0; s < args.count; ++s) {
    good = good && aligned(args.sources[s], sizeof(typename Element::Bits));
  }
  return good ? launch(reduce_sources<Element>, pieces(args.n, kThreads), kThreads, stream, args) : kInvalid;
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
