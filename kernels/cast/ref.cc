#include "kernels/cast/cast.h"
#include "kernels/half/elements.h"
#include "runtime/base/check.h"

namespace sirtaki::kernels {
namespace {

bool is_half(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16;
}
bool is_full(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64;
}

}  // namespace

bool can_cast(DType from, DType to) {
  return (is_full(from) && is_half(to)) || (is_half(from) && is_full(to));
}

namespace ref {
namespace {

template <class From, class To>
void run(const std::byte* in, std::byte* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const auto single = static_cast<float>(From::load(in + i * From::kSize));
    To::store(static_cast<typename To::Value>(single), out + i * To::kSize);
  }
}

template <class HalfElement>
void to_half(DType from, const std::byte* in, std::byte* out, std::size_t n) {
  from == DType::kF64 ? run<Plain<double>, HalfElement>(in, out, n) : run<Plain<float>, HalfElement>(in, out, n);
}

template <class HalfElement>
void from_half(const std::byte* in, DType to, std::byte* out, std::size_t n) {
  to == DType::kF64 ? run<HalfElement, Plain<double>>(in, out, n) : run<HalfElement, Plain<float>>(in, out, n);
}

}  // namespace

void cast(DType from, const std::byte* in, DType to, std::byte* out, std::int64_t n) {
  SRT_CHECK(can_cast(from, to) && n >= 0);
  const auto count = static_cast<std::size_t>(n);
  if (is_half(to)) {
    to == DType::kF16 ? to_half<F16>(from, in, out, count) : to_half<BF16>(from, in, out, count);
  } else {
    from == DType::kF16 ? from_half<F16>(in, to, out, count) : from_half<BF16>(in, to, out, count);
  }
}

}  // namespace ref
}  // namespace sirtaki::kernels
