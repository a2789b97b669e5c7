#include <cstring>

#include "kernels/half/elements.h"
#include "kernels/reduce/arithmetic.h"
#include "kernels/reduce/reduce.h"
#include "kernels/scale/scale.h"
#include "runtime/base/check.h"

namespace sirtaki::kernels::ref {
namespace {

template <class Element>
void run(ReduceOp op, std::span<const std::byte* const> sources, std::byte* out, std::int64_t n) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    const std::size_t at = i * Element::kSize;
    auto value = Element::load(sources[0] + at);
    for (const std::byte* source : sources.subspan(1)) {
      value = combined<typename Element::Value>(op, value, Element::load(source + at));
    }
    Element::store(canonical(value), out + at);
  }
}

template <class Half>
void run_average(std::span<const std::byte* const> sources, std::byte* out, std::int64_t n, float count) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    const std::size_t at = i * Half::kSize;
    float value = Half::load(sources[0] + at);
    for (const std::byte* source : sources.subspan(1)) {
      value += Half::load(source + at);
    }
    Half::store(canonical(value / count), out + at);
  }
}

}  // namespace

void reduce(ReduceOp op, DType dtype, std::span<const std::byte* const> sources, std::byte* out, std::int64_t n) {
  SRT_CHECK(!sources.empty() && n >= 0 && op != ReduceOp::kAdasum);
  if (n == 0) {
    return;
  }
  if (sources.size() == 1) {
    std::memmove(out, sources[0], static_cast<std::size_t>(n) * dtype_size(dtype));
    return;
  }
  switch (dtype) {
    case DType::kU8:
      return run<Plain<std::uint8_t>>(op, sources, out, n);
    case DType::kI8:
      return run<Plain<std::int8_t>>(op, sources, out, n);
    case DType::kU16:
      return run<Plain<std::uint16_t>>(op, sources, out, n);
    case DType::kI16:
      return run<Plain<std::int16_t>>(op, sources, out, n);
    case DType::kI32:
      return run<Plain<std::int32_t>>(op, sources, out, n);
    case DType::kI64:
      return run<Plain<std::int64_t>>(op, sources, out, n);
    case DType::kF16:
      return run<F16>(op, sources, out, n);
    case DType::kBF16:
      return run<BF16>(op, sources, out, n);
    case DType::kF32:
      return run<Plain<float>>(op, sources, out, n);
    case DType::kF64:
      return run<Plain<double>>(op, sources, out, n);
    case DType::kBool:
      return run<Bool>(op, sources, out, n);
  }
}

void average(DType dtype, std::span<const std::byte* const> sources, std::byte* out, std::int64_t n, double count) {
  SRT_CHECK(!sources.empty() && n >= 0 && count > 0 && dtype != DType::kBool);
  if (dtype == DType::kF16) {
    return run_average<F16>(sources, out, n, static_cast<float>(count));
  }
  if (dtype == DType::kBF16) {
    return run_average<BF16>(sources, out, n, static_cast<float>(count));
  }
  reduce(ReduceOp::kSum, dtype, sources, out, n);
  divide_by(dtype, out, n, static_cast<std::int64_t>(count));
}

}  // namespace sirtaki::kernels::ref
