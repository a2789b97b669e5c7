// Anchor: the model that all ranks last agreed on, of one fragment, and how the next one is made of their mean.
//
// Bit-identical on all ranks at every version. Its arrays are contiguous (model.h). Owned by LocalUpdater; the
// training's thread. Pure arithmetic; not for: exchanges, and when to merge.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/local_updates/options.h"

namespace sirtaki::local_updates {

class Anchor {
 public:
  Anchor(std::int64_t numel, const OuterOptions& outer);

  std::span<const float> values() const { return values_; }
  std::uint64_t version() const { return version_; }
  std::span<const float> momentum() const { return momentum_; }
  std::int64_t bytes() const;

  // The model is equal on all ranks and becomes the anchor; the momentum is forgotten.
  void reset(std::span<const float> model);
  void repair(std::span<const float> values);  // another rank's, of the same version
  // kCorrupt: of another size.
  Status restore(std::span<const float> values, std::span<const float> momentum, std::uint64_t version);

  // The sum of squares of model - anchor.
  double distance2(std::span<const float> model) const;
  // Makes the next version of a mean of models, or of differences from the anchor; `mean` then holds the anchor before.
  void advance(std::span<float> mean, bool of_differences);

  // XXH64 over values and version.
  std::uint64_t digest() const;

 private:
  const OuterOptions outer_;
  std::vector<float> values_;
  std::vector<float> momentum_;  // empty where the outer optimizer has none
  std::uint64_t version_ = 0;
};

// float arrays as kernels take them.
inline const std::byte* bytes_of(std::span<const float> values) {
  return std::as_bytes(values).data();
}
inline std::byte* bytes_of(std::span<float> values) {
  return std::as_writable_bytes(values).data();
}
inline std::int64_t count_of(std::span<const float> values) {
  return static_cast<std::int64_t>(values.size());
}

}  // namespace sirtaki::local_updates
