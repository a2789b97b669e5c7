// Anchor: the last agreed values of one fragment of the model, and the update that makes the next ones from a mean.
//
// Bit-identical on all ranks at every version. Its arrays are contiguous (model.h). LocalUpdater owns it and uses it on
// the thread of the training. Pure arithmetic: exchanges and the times of merges belong to updater.h.
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

  // Sets the values to a model that is equal on all ranks, and clears the momentum.
  void reset(std::span<const float> model);
  // Copies the values of another rank, which have the same version.
  void repair(std::span<const float> values);
  // Restores a saved anchor. kCorrupt: another size.
  Status restore(std::span<const float> values, std::span<const float> momentum, std::uint64_t version);

  // Returns the sum of squares of model - anchor.
  double distance2(std::span<const float> model) const;
  // Computes the next version from a mean of models, or of differences from the anchor. `mean` then holds the previous
  // values.
  void advance(std::span<float> mean, bool of_differences);

  // Returns the XXH64 digest of values and version.
  std::uint64_t digest() const;

 private:
  const OuterOptions outer_;
  std::vector<float> values_;
  std::vector<float> momentum_;  // empty if the outer optimizer has none
  std::uint64_t version_ = 0;
};

// Views of float arrays in the types that kernels expect.
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
