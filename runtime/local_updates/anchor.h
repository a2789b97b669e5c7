// Anchor: the last agreed values of one fragment of the model, and the update that makes the next values from a mean.
//
// Bit-identical on all ranks at every version. Its arrays are contiguous (model.h). LocalUpdater owns it and uses it on
// the thread of the training. Pure arithmetic: updater.h handles exchanges and the times of merges.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/wire.h"
#include "runtime/local_updates/options.h"

namespace sirtaki::local_updates {

// The effective rate of an outer optimizer, from the autocorrelation of the means of merges: with momentum m an anchor
// moves by lr (1 + m / (1 - m rho)) times the mean for Nesterov momentum, and lr / (1 - m rho) times the mean for plain
// momentum, where rho is the correlation of a mean with the mean before, and means k merges apart are taken to
// correlate by rho^k. Statistics only.

// Running means over about eight merges of one fragment; of a model, the sums over its fragments.
struct OuterTrace {
  double along = 0;  // product of the momentum before a merge and its mean
  double norm2 = 0;  // sum of squares of the mean

  void add_merge(double merge_along, double merge_norm2);
  void add(const OuterTrace& other);
  void save(WireWriter& out) const;
  static OuterTrace load(WireReader& in);
};

struct OuterRate {
  std::optional<double> autocorrelation;  // rho, -1 to 1; nullopt: no two merges yet, or no momentum
  double rate = 1;                        // with an unknown rho, that of a rho of 0
};
OuterRate outer_rate(const OuterOptions& outer, const OuterTrace& trace);
// Returns "outer rate 1.12 at autocorrelation 0.31", for a person.
std::string to_string(const OuterRate& rate);

class Anchor {
 public:
  Anchor(std::int64_t numel, const OuterOptions& outer);

  std::span<const float> values() const { return values_; }
  std::uint64_t version() const { return version_; }
  std::span<const float> momentum() const { return momentum_; }
  const OuterTrace& trace() const { return trace_; }
  std::int64_t bytes() const;

  // Sets the values to a model that is equal on all ranks, and clears the momentum.
  void reset(std::span<const float> model);
  // Copies the values of another rank, which have the same version.
  void repair(std::span<const float> values);
  // Restores a saved anchor. kCorrupt: another size.
  Status restore(std::span<const float> values, std::span<const float> momentum, std::uint64_t version,
                 const OuterTrace& trace);
  // Forgets the directions of earlier merges.
  void clear_momentum();

  // Returns the sum of squares of model - anchor.
  double distance2(std::span<const float> model) const;
  // Computes the next version by the outer optimizer from a mean of models, or of differences from the anchor.
  // `mean_norm2` is the sum of squares of the mean difference. `mean` then holds the previous values.
  void advance(std::span<float> mean, bool of_differences, double mean_norm2);
  // Makes the next version the mean of models itself, or of differences from the anchor. The momentum stays. `mean`
  // then holds the previous values.
  void assign(std::span<float> mean, bool of_differences);

  // Returns the XXH64 digest of values and version.
  std::uint64_t digest() const;

 private:
  void trace_merge(double mean_norm2);

  const OuterOptions outer_;
  std::vector<float> values_;
  std::vector<float> momentum_;  // empty if the outer optimizer has none
  double momentum_norm2_ = 0;    // sum of squares
  OuterTrace trace_;
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
