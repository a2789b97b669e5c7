#include "compression/payload_codec.h"

#include <algorithm>

namespace sirtaki::compression {
namespace {

constexpr std::int64_t kShortestStripe = 1024;
constexpr std::int64_t kLongestStripe = 16384;

}  // namespace

std::int64_t stripe_of_blocks(std::int64_t block, const Shape& shape, int ranks) {
  const std::int64_t share = (shape.numel + ranks - 1) / ranks;
  const std::int64_t wanted = std::clamp(share, kShortestStripe, kLongestStripe);
  return (wanted + block - 1) / block * block;
}

}  // namespace sirtaki::compression
