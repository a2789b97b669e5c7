#include "compression/block_selection.h"

#include <cstring>
#include <vector>

#include "kernels/half/elements.h"
#include "runtime/base/check.h"

namespace sirtaki::compression {
namespace {

using Id = kernels::ref::Plain<std::uint16_t>;

// The short block is handled as a tensor of its own, with one block.
constexpr std::byte kFirstId[Id::kSize] = {};
constexpr kernels::FilterIds kTailIds{kFirstId, 1};

}  // namespace

BlockSelection::BlockSelection(std::int64_t numel, std::int64_t block, std::int64_t keep, DType value)
    : full_{numel / block, block}, tail_(numel % block), keep_(keep), value_(value) {
  SRT_CHECK(blocks() >= 1 && blocks() <= kMostBlocks);
  SRT_CHECK(keep >= 1 && keep <= blocks());
}

void BlockSelection::norms(const kernels::Feedback& whole, std::byte* norms) const {
  kernels::filter_norms(full_, whole, norms);
  if (tail_ > 0) {
    kernels::filter_norms({1, tail_}, tail_of(whole), norms + static_cast<std::size_t>(full_.filters) * sizeof(float));
  }
}

void BlockSelection::select(const std::byte* norms, std::byte* ids) const {
  kernels::filter_select(blocks(), keep_, norms, ids);
}

// Ids ascend and the short block has the largest one, so it can only be the last.
std::int64_t BlockSelection::count_full(const std::byte* ids) const {
  const std::int64_t last = Id::load(ids + static_cast<std::size_t>(keep_ - 1) * Id::kSize);
  return last == full_.filters ? keep_ - 1 : keep_;
}

void BlockSelection::gather(const std::byte* ids, const kernels::Feedback& whole, std::byte* values) const {
  const bool feedback = whole.left != nullptr;
  // Without feedback nothing is taken out of the gradient, so the const_cast writes nothing.
  std::byte* const from = feedback ? whole.left : const_cast<std::byte*>(whole.gradient);
  const kernels::FilterGather how{value_, feedback};
  const std::int64_t count = count_full(ids);
  kernels::filter_gather(full_, {ids, count}, how, from, values);
  if (count < keep_) {
    const std::size_t at = static_cast<std::size_t>(count * full_.size) * dtype_size(value_);
    const std::size_t filled = at + static_cast<std::size_t>(tail_) * dtype_size(value_);
    std::byte* const tail = from + static_cast<std::size_t>(numel() - tail_) * sizeof(float);
    kernels::filter_gather({1, tail_}, kTailIds, how, tail, values + at);
    std::memset(values + filled, 0, value_bytes() - filled);
  }
}

void BlockSelection::sum(std::span<const Part> parts, std::byte* out) const {
  std::vector<kernels::FilterPart> full;
  std::vector<kernels::FilterPart> tails;
  for (const Part& part : parts) {
    const std::int64_t count = count_full(part.ids);
    full.push_back({{part.ids, count}, part.values});
    if (count < keep_) {
      tails.push_back({kTailIds, part.values + static_cast<std::size_t>(count * full_.size) * dtype_size(value_)});
    }
  }
  kernels::filter_sum(full_, value_, full, out);
  if (tail_ > 0) {
    kernels::filter_sum({1, tail_}, value_, tails, out + static_cast<std::size_t>(numel() - tail_) * sizeof(float));
  }
}

}  // namespace sirtaki::compression
