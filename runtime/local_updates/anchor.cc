#include "runtime/local_updates/anchor.h"

#include <algorithm>
#include <array>

#include "kernels/anchor/anchor.h"
#include "kernels/outer_update/outer_update.h"
#include "kernels/reduce/reduce.h"
#include "runtime/base/check.h"
#include "runtime/base/digest.h"

namespace sirtaki::local_updates {

Anchor::Anchor(std::int64_t numel, const OuterOptions& outer)
    : outer_(outer),
      values_(static_cast<std::size_t>(numel)),
      momentum_(outer.on && outer.momentum > 0 ? values_.size() : 0) {}

std::int64_t Anchor::bytes() const {
  return static_cast<std::int64_t>((values_.size() + momentum_.size()) * sizeof(float));
}

void Anchor::reset(std::span<const float> model) {
  SRT_CHECK(model.size() == values_.size());
  std::ranges::copy(model, values_.begin());
  std::ranges::fill(momentum_, 0.0F);
  ++version_;
}

void Anchor::repair(std::span<const float> values) {
  SRT_CHECK(values.size() == values_.size());
  std::ranges::copy(values, values_.begin());
}

Status Anchor::restore(std::span<const float> values, std::span<const float> momentum, std::uint64_t version) {
  if (values.size() != values_.size() || momentum.size() != momentum_.size()) {
    return corrupt("a saved anchor has " + std::to_string(values.size()) + " elements and " +
                   std::to_string(momentum.size()) + " of momentum; there are " + std::to_string(values_.size()) +
                   " and " + std::to_string(momentum_.size()));
  }
  std::ranges::copy(values, values_.begin());
  std::ranges::copy(momentum, momentum_.begin());
  version_ = version;
  return {};
}

double Anchor::distance2(std::span<const float> model) const {
  return kernels::square_sum(count_of(model), bytes_of(model), bytes_of(values()));
}

void Anchor::advance(std::span<float> mean, bool of_differences) {
  SRT_CHECK(mean.size() == values_.size());
  const std::int64_t n = count_of(mean);
  std::byte* const anchor = bytes_of(std::span<float>(values_));
  std::byte* const given = bytes_of(mean);
  if (outer_.on) {
    std::byte* const momentum = momentum_.empty() ? nullptr : bytes_of(std::span<float>(momentum_));
    const kernels::OuterStep how{static_cast<float>(outer_.lr), static_cast<float>(outer_.momentum), outer_.nesterov,
                                 of_differences};
    kernels::outer_update(how, n, anchor, momentum, given);
  } else {
    if (of_differences) {
      const std::array<const std::byte*, 2> sources = {anchor, given};
      kernels::reduce(ReduceOp::kSum, DType::kF32, sources, given, n);
    }
    std::ranges::swap_ranges(values_, mean);
  }
  ++version_;
}

std::uint64_t Anchor::digest() const {
  return digest_of(std::as_bytes(values()), version_);
}

}  // namespace sirtaki::local_updates
