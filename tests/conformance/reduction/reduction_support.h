// Helpers of tests of reductions: a group of ranks that reduce tensors, and a reference that computes the same with
// plain arrays.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compression/codec_state.h"
#include "compression/codecs/catalog.h"
#include "runtime/engine/reduction/reduction.h"
#include "tests/conformance/collectives_worlds.h"

namespace sirtaki::engine::testing {

using Floats = std::vector<float>;
using Tensors = std::vector<Floats>;     // index: tensor
using Gradients = std::vector<Tensors>;  // index: rank

inline std::byte* bytes(Floats& values, std::int64_t at = 0) {
  return std::as_writable_bytes(std::span(values)).data() + static_cast<std::size_t>(at) * sizeof(float);
}

// Returns the shape of a tensor, with its own number of rows; tensors with a multiple of 8 elements have 8 rows.
compression::Shape shape_of(std::size_t numel);

// Compression of a set of tensors.
struct Scheme {
  const compression::PayloadCodec* codec;
  ReductionKind reduction;
  std::vector<std::int64_t> params;
  int ranks;
  // Ranks of the job, for a Reference whose ranks stand for hosts that have summed up. 0: every rank stands for itself.
  int job_ranks = 0;
  // index: rank; overrides params::kKeep of `params`; empty: all ranks use `params`.
  std::vector<std::int64_t> keeps = {};

  std::vector<std::int64_t> params_of(Rank rank) const {
    std::vector<std::int64_t> own = params;
    if (!keeps.empty()) {
      own.at(params::kKeep) = keeps.at(static_cast<std::size_t>(rank));
    }
    return own;
  }
  std::int64_t stripe_of(std::size_t numel) const {
    return codec->stripe(params, shape_of(numel), job_ranks > 0 ? job_ranks : ranks);
  }
};

// Returns parameters for a codec in tests of reductions; params[0] is `feedback`. Empty: the codec has none that pass.
std::vector<std::int64_t> example_params(const compression::PayloadCodec& codec, bool feedback);

// A partition: parts of tensors, as stripes from `first` to before `end`.
struct Part {
  std::size_t tensor;
  std::int64_t first;
  std::int64_t end;
};
using Partition = std::vector<Part>;
using Layout = std::vector<Partition>;

enum class Cut : std::uint8_t { kWhole, kCut, kFused };
Layout make_layout(const Scheme& scheme, const std::vector<std::size_t>& sizes, Cut cut);

// All ranks of a job, each with its residuals.
class Group {
 public:
  // See net::testing::make_world for `world` and `options`.
  Group(Scheme scheme, std::vector<std::size_t> sizes, const std::string& world,
        const net::testing::WorldOptions& options = {});
  ~Group();

  struct Step {
    ReduceOp op = ReduceOp::kSum;
    double postscale = 1.0;
    std::vector<bool> absent = {};                    // index: rank; empty: no rank is absent
    std::function<void(Rank, Reduction&)> then = {};  // called on the rank's loop once the reduction is started
    int turns = 0;                                    // turns of the loop that pass before `then`
  };
  // Runs one step and replaces gradients by results. Returns the first error of each rank's partitions; an error of one
  // partition ends the step on all ranks.
  std::vector<Status> run(const Layout& layout, Gradients& gradients, const Step& step);
  std::vector<Status> run(const Layout& layout, Gradients& gradients) { return run(layout, gradients, Step()); }

  Floats residual(Rank rank, std::size_t tensor) const;
  // Returns the bytes that each rank sent in the last step.
  const std::vector<std::int64_t>& sent_bytes() const { return sent_bytes_; }
  // Returns the traffic of the allreduces of rank 0 in the last step.
  const net::Traffic& allreduced() const { return allreduced_; }
  TimePoint now() const { return world_->link(0).loop().now(); }
  // Wraps the collectives between reductions and network.
  using Wrap = std::function<std::unique_ptr<net::Collectives>(Rank, net::Collectives&)>;
  void wrap(const Wrap& wrap);

 private:
  struct Node;
  void start(Rank rank, const Partition& partition, std::size_t position, Tensors& gradients, const Step& step);

  void later(Rank rank, int turns, const std::function<void()>& task);
  void give_up(const Status& cause);

  const Scheme scheme_;
  const std::vector<std::size_t> sizes_;
  std::unique_ptr<net::testing::World> world_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::int64_t> sent_bytes_;
  net::Traffic allreduced_;
  std::atomic<std::uint64_t> step_{0};
  std::atomic<int> missing_{0};
};

// The definition of a reduction, computed with plain arrays, stripe by stripe.
class Reference {
 public:
  Reference(Scheme scheme, const std::vector<std::size_t>& sizes);
  ~Reference();

  // Runs one step of tensors that all ranks have; returns the result of all ranks.
  Tensors run(const Gradients& gradients, ReduceOp op);
  // Runs one step of tensors that no rank has: coders see it, and no values are exchanged.
  void run_unused(const Gradients& zeros);
  Floats residual(Rank rank, std::size_t tensor) const;

 private:
  struct Memory;
  Floats reduce(std::size_t tensor, const Gradients& gradients);
  Floats reduce_factors(std::size_t tensor, const Gradients& gradients);
  Floats reduce_shared(std::size_t tensor, const Gradients& gradients);
  Floats reduce_counts(std::size_t tensor, const Gradients& gradients);
  Floats reduce_ring(std::size_t tensor, const Gradients& gradients);
  void begin(compression::Coder& coder, const kernels::Feedback& whole) const;
  kernels::Feedback arrays_of(std::size_t rank, std::size_t tensor, Floats& gradient) const;

  const Scheme scheme_;
  std::vector<std::vector<std::unique_ptr<Memory>>> memories_;  // index: rank, tensor
};

}  // namespace sirtaki::engine::testing
