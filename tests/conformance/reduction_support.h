// What tests of reductions share: a group of ranks that reduce tensors, and the same worked out one element behind the
// other.
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
using Tensors = std::vector<Floats>;     // by tensor
using Gradients = std::vector<Tensors>;  // by rank

inline std::byte* bytes(Floats& values, std::int64_t at = 0) {
  return std::as_writable_bytes(std::span(values)).data() + static_cast<std::size_t>(at) * sizeof(float);
}

// A tensor's own numbers of rows; tests give tensors of a multiple of 8 elements 8 of them.
compression::Shape shape_of(std::size_t numel);

// How a set of tensors is compressed.
struct Scheme {
  const compression::PayloadCodec* codec;
  ReductionKind reduction;
  std::vector<std::int64_t> params;
  int ranks;
  // Of a Reference whose ranks stand for hosts, which have summed up: how many the job has. 0: every rank is one.
  int job_ranks = 0;
  // By rank, params::kKeep in place of that of `params`; empty: equal ones.
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

// Parameters of every codec that tests of reductions use; params[0] is `feedback`. Empty: none that passes.
std::vector<std::int64_t> example_params(const compression::PayloadCodec& codec, bool feedback);

// A partition: parts of tensors, in stripes from `first` to before `end`.
struct Part {
  std::size_t tensor;
  std::int64_t first;
  std::int64_t end;
};
using Partition = std::vector<Part>;
using Layout = std::vector<Partition>;

enum class Cut : std::uint8_t { kWhole, kCut, kFused };
Layout make_layout(const Scheme& scheme, const std::vector<std::size_t>& sizes, Cut cut);

// All ranks of a job, each with what it owes.
class Group {
 public:
  // `world`, `options`: as net::testing::make_world.
  Group(Scheme scheme, std::vector<std::size_t> sizes, const std::string& world,
        const net::testing::WorldOptions& options = {});
  ~Group();

  struct Step {
    ReduceOp op = ReduceOp::kSum;
    double postscale = 1.0;
    std::vector<bool> absent = {};                    // by rank; empty: nobody
    std::function<void(Rank, Reduction&)> then = {};  // once it is started, on the rank's loop
    int turns = 0;                                    // of the loop, that pass before `then`
  };
  // One step; gradients become results. What each rank's partitions ended with, the first error of each; an error of
  // one ends the step on all.
  std::vector<Status> run(const Layout& layout, Gradients& gradients, const Step& step);
  std::vector<Status> run(const Layout& layout, Gradients& gradients) { return run(layout, gradients, Step()); }

  Floats residual(Rank rank, std::size_t tensor) const;
  // Of the last step, by rank.
  const std::vector<std::int64_t>& sent_bytes() const { return sent_bytes_; }
  // Puts something between reductions and network.
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
  std::atomic<std::uint64_t> step_{0};
  std::atomic<int> missing_{0};
};

// The same with plain arrays, stripe by stripe: what a reduction means.
class Reference {
 public:
  Reference(Scheme scheme, const std::vector<std::size_t>& sizes);
  ~Reference();

  // One step of tensors that all have; the result is for all ranks.
  Tensors run(const Gradients& gradients, ReduceOp op);
  // One step of tensors that no rank has: coders see it, and nothing is given or taken.
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
  std::vector<std::vector<std::unique_ptr<Memory>>> memories_;  // by rank, by tensor
};

}  // namespace sirtaki::engine::testing
