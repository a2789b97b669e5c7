#include "tests/conformance/recipe_support.h"

#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "compression/low_rank_factors.h"
#include "runtime/base/stats.h"

namespace sirtaki::engine::testing {
namespace {

std::byte* bytes(Floats& values, std::int64_t at = 0) {
  return std::as_writable_bytes(std::span(values)).data() + static_cast<std::size_t>(at) * sizeof(float);
}

std::int64_t length(const Floats& values) {
  return static_cast<std::int64_t>(values.size());
}

}  // namespace

std::vector<std::int64_t> example_params(const compression::PayloadCodec& codec, bool feedback) {
  static const std::map<std::string_view, std::vector<std::int64_t>> kRest = {
      {"int8", {256}},
      {"fp8_e4m3", {32}},
      {"fp8_e5m2", {64}},
      {"twobit", {params::kOne, 0}},
      {"onebit", {64}},
      {"group_topk", {256, 3, static_cast<std::int64_t>(DType::kF32), 0, 0}},
      {"threshold_sparse", {params::kOne / 50, 4, static_cast<std::int64_t>(DType::kF32), 0, 0}},
      {"kernel_sparse", {0, 1, static_cast<std::int64_t>(DType::kF32)}},
      {"block_topk", {64, 1}},
      {"powersgd", {2, 1}},
  };
  const auto found = kRest.find(codec.name());
  if (found == kRest.end()) {
    return {};
  }
  std::vector<std::int64_t> params = {feedback ? 1 : 0};
  params.insert(params.end(), found->second.begin(), found->second.end());
  return params;
}

compression::Shape shape_of(std::size_t numel) {
  return {static_cast<std::int64_t>(numel), numel % 8 == 0 ? 8 : 1};
}

Layout make_layout(const Scheme& scheme, const std::vector<std::size_t>& sizes, Cut cut) {
  Layout layout;
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    const auto numel = static_cast<std::int64_t>(sizes[t]);
    const std::int64_t stripe = scheme.codec->stripe(scheme.params, shape_of(sizes[t]), scheme.ranks);
    const std::int64_t piece = cut == Cut::kCut ? 2 * stripe : numel;
    for (std::int64_t at = 0; at < numel; at += piece) {
      const Part part{t, at, std::min(at + piece, numel)};
      if (cut == Cut::kFused && t % 3 != 0) {
        layout.back().push_back(part);
      } else {
        layout.push_back({part});
      }
    }
  }
  return layout;
}

// ---- the group ----

struct Group::Node {
  Stats stats;
  BufferPool buffers{1 << 20, stats.gauge("staging")};
  std::vector<std::unique_ptr<compression::TensorMemory>> memories;
  std::vector<std::string> names;
  std::unique_ptr<net::Collectives> wrapped;
  net::Collectives* net = nullptr;
  Status status;
  std::vector<std::shared_ptr<Reduction>> running;
};

Group::Group(Scheme scheme, std::vector<std::size_t> sizes, const std::string& world)
    : scheme_(std::move(scheme)),
      sizes_(std::move(sizes)),
      world_(net::testing::make_world(world, scheme_.ranks)),
      sent_bytes_(static_cast<std::size_t>(scheme_.ranks)) {
  for (Rank rank = 0; rank < scheme_.ranks; ++rank) {
    auto node = std::make_unique<Node>();
    for (std::size_t t = 0; t < sizes_.size(); ++t) {
      const compression::Shape shape = shape_of(sizes_[t]);
      const compression::Ownership ownership{scheme_.codec->stripe(scheme_.params, shape, scheme_.ranks), scheme_.ranks,
                                             rank};
      node->memories.push_back(
          std::make_unique<compression::TensorMemory>(*scheme_.codec, scheme_.params, shape, ownership));
      node->names.push_back("tensor" + std::to_string(t));
    }
    node->net = &world_->at(rank);
    nodes_.push_back(std::move(node));
  }
}

Group::~Group() {
  world_.reset();  // callbacks in flight hold buffers of the nodes
}

void Group::wrap(const Wrap& wrap) {
  for (Rank rank = 0; rank < scheme_.ranks; ++rank) {
    Node& node = *nodes_[static_cast<std::size_t>(rank)];
    node.wrapped = wrap(rank, world_->at(rank));
    node.net = node.wrapped.get();
  }
}

std::vector<Status> Group::run(const Layout& layout, Gradients& gradients, const Step& step) {
  missing_ = scheme_.ranks * static_cast<int>(layout.size());
  for (Rank rank = 0; rank < scheme_.ranks; ++rank) {
    world_->on(rank, [this, rank, &layout, &gradients, &step] {
      Node& node = *nodes_[static_cast<std::size_t>(rank)];
      Tensors& own = gradients[static_cast<std::size_t>(rank)];
      node.status = {};
      node.running.clear();
      for (std::size_t t = 0; t < sizes_.size(); ++t) {
        compression::TensorMemory& memory = *node.memories[t];
        if (memory.coder().wants_whole() && sizes_[t] > 0) {
          memory.coder().begin(memory.feedback(bytes(own[t]), 0));
        }
      }
      for (std::size_t position = 0; position < layout.size(); ++position) {
        start(rank, layout[position], position, own, step);
      }
    });
  }
  if (!world_->wait([this] { return missing_ == 0; })) {
    return {Status(Code::kTimeout, "the partitions did not end")};
  }
  ++step_;
  std::vector<Status> outcome;
  for (Rank rank = 0; rank < scheme_.ranks; ++rank) {
    Node& node = *nodes_[static_cast<std::size_t>(rank)];
    outcome.push_back(node.status);
    sent_bytes_[static_cast<std::size_t>(rank)] = 0;
    for (const auto& reduction : node.running) {
      sent_bytes_[static_cast<std::size_t>(rank)] += reduction->sent_bytes();
    }
  }
  return outcome;
}

void Group::start(Rank rank, const Partition& partition, std::size_t position, Tensors& gradients, const Step& step) {
  Node& node = *nodes_[static_cast<std::size_t>(rank)];
  ReductionSpec spec;
  spec.recipe = scheme_.recipe;
  spec.op = step.op;
  spec.postscale = step.postscale;
  spec.priority = static_cast<std::int32_t>(position);
  for (std::uint32_t phase = 0; phase < kStreamPhases; ++phase) {
    spec.tags[phase] = stream_tag(StreamId(1), 0, static_cast<std::uint32_t>(position), step_, phase);
  }
  for (const Part& part : partition) {
    const Bytes gradient(bytes(gradients[part.tensor], part.first),
                         static_cast<std::size_t>(part.end - part.first) * sizeof(float));
    const bool absent = !step.absent.empty() && step.absent[static_cast<std::size_t>(rank)];
    spec.slices.push_back(
        {node.memories[part.tensor].get(), node.names[part.tensor], gradient, part.first, absent, true});
  }
  auto reduction = make_reduction(std::move(spec), {*node.net, node.buffers}, [](ReductionStage, std::int64_t) {});
  node.running.push_back(reduction);
  reduction->start([this, &node](const Status& status) {
    node.status.update(status);
    if (!status) {
      give_up(status);
    }
    --missing_;
    net::testing::notify();
  });
  if (step.then) {
    step.then(rank, *reduction);
  }
}

// As a stream's deviation: all ranks end the step.
void Group::give_up(const Status& cause) {
  for (Rank rank = 0; rank < scheme_.ranks; ++rank) {
    world_->on(rank, [this, rank, cause, step = step_.load()] {
      for (const auto& reduction : nodes_[static_cast<std::size_t>(rank)]->running) {
        if (step == step_) {
          reduction->cancel(cause);
        }
      }
    });
  }
}

Floats Group::owed(Rank rank, std::size_t tensor) const {
  Floats out(sizes_[tensor]);
  nodes_[static_cast<std::size_t>(rank)]->memories[tensor]->owed(bytes(out));
  return out;
}

// ---- the reference ----

struct Reference::Memory {
  std::unique_ptr<compression::Coder> coder;
  std::unique_ptr<compression::Coder> owner_coder;
  Floats residual;
  Floats owner_residual;  // zero where the stripe is another rank's
};

Reference::Reference(Scheme scheme, const std::vector<std::size_t>& sizes)
    : scheme_(std::move(scheme)), memories_(static_cast<std::size_t>(scheme_.ranks)) {
  for (auto& rank : memories_) {
    for (const std::size_t numel : sizes) {
      auto memory = std::make_unique<Memory>();
      memory->coder = scheme_.codec->open(scheme_.params, shape_of(numel));
      memory->owner_coder = scheme_.codec->open(scheme_.params, shape_of(numel));
      memory->residual.resize(numel);
      memory->owner_residual.resize(numel);
      rank.push_back(std::move(memory));
    }
  }
}

Reference::~Reference() = default;

Tensors Reference::run(const Gradients& gradients, ReduceOp op) {
  Tensors results;
  for (std::size_t t = 0; t < memories_.front().size(); ++t) {
    results.push_back(reduce(t, gradients));
    const auto ranks = static_cast<float>(scheme_.ranks);
    for (float& value : results.back()) {
      if (scheme_.recipe == Recipe::kLowRank) {
        value = op == ReduceOp::kAverage ? value : value * ranks;
      } else {
        value = op == ReduceOp::kAverage ? value / ranks : value;
      }
    }
  }
  return results;
}

void Reference::run_unused(const Gradients& zeros) {
  if (scheme_.recipe == Recipe::kLowRank) {
    for (std::size_t r = 0; r < memories_.size(); ++r) {
      for (std::size_t t = 0; t < memories_[r].size(); ++t) {
        Floats unchanged = zeros[r][t];
        compression::LowRankFactors* factors = memories_[r][t]->coder->factors();
        Floats p(factors->p_bytes() / sizeof(float));
        factors->project({.gradient = bytes(unchanged)}, bytes(p));
      }
    }
    return;
  }
  std::vector<std::pair<Floats, Floats>> before;
  for (const auto& rank : memories_) {
    for (const auto& memory : rank) {
      before.emplace_back(memory->residual, memory->owner_residual);
    }
  }
  run(zeros, ReduceOp::kSum);
  auto saved = before.begin();
  for (const auto& rank : memories_) {
    for (const auto& memory : rank) {
      std::tie(memory->residual, memory->owner_residual) = *saved++;
    }
  }
}

// Sums in rank order, of vectors of the same length.
Floats sum_of(const std::vector<Floats>& parts) {
  Floats sum = parts.front();
  for (std::size_t r = 1; r < parts.size(); ++r) {
    std::transform(sum.begin(), sum.end(), parts[r].begin(), sum.begin(), std::plus<>());
  }
  return sum;
}

Floats Reference::reduce_factors(std::size_t tensor, const Gradients& gradients) {
  Gradients own = gradients;
  const auto arrays = [&](std::size_t r) -> kernels::Feedback {
    Floats& residual = memories_[r][tensor]->residual;
    return scheme_.params[params::kFeedback] == 1
               ? kernels::Feedback{bytes(own[r][tensor]), bytes(residual), bytes(residual)}
               : kernels::Feedback{bytes(own[r][tensor])};
  };
  const auto factors = [&](std::size_t r) { return memories_[r][tensor]->coder->factors(); };
  std::vector<Floats> p(memories_.size(), Floats(factors(0)->p_bytes() / sizeof(float)));
  std::vector<Floats> q(memories_.size(), Floats(factors(0)->q_bytes() / sizeof(float)));
  for (std::size_t r = 0; r < memories_.size(); ++r) {
    factors(r)->project(arrays(r), bytes(p[r]));
  }
  const Floats p_sum = sum_of(p);
  for (std::size_t r = 0; r < memories_.size(); ++r) {
    p[r] = p_sum;
    factors(r)->back(arrays(r), bytes(p[r]), bytes(q[r]));
  }
  Floats q_mean = sum_of(q);
  for (float& value : q_mean) {
    value /= static_cast<float>(scheme_.ranks);
  }
  Floats result(gradients.front()[tensor].size());
  for (std::size_t r = 0; r < memories_.size(); ++r) {
    factors(r)->rebuild(arrays(r), bytes(p[r]), bytes(q_mean), bytes(result));
  }
  return result;
}

Floats Reference::reduce(std::size_t tensor, const Gradients& gradients) {
  if (scheme_.recipe == Recipe::kLowRank) {
    return reduce_factors(tensor, gradients);
  }
  const bool feedback = scheme_.params[params::kFeedback] == 1;
  const auto arrays = [feedback](Floats& gradient, Floats& residual, std::int64_t at) -> kernels::Feedback {
    return feedback ? kernels::Feedback{bytes(gradient, at), bytes(residual, at), bytes(residual, at)}
                    : kernels::Feedback{bytes(gradient, at)};
  };
  Gradients own = gradients;
  for (std::size_t r = 0; r < memories_.size(); ++r) {
    Memory& memory = *memories_[r][tensor];
    memory.coder->begin(arrays(own[r][tensor], memory.residual, 0));
  }
  Floats result(own.front()[tensor].size());
  const std::int64_t numel = length(result);
  const std::int64_t stripe = scheme_.codec->stripe(scheme_.params, shape_of(result.size()), scheme_.ranks);
  for (std::int64_t at = 0; at < numel; at += stripe) {
    const compression::Piece piece{at, std::min(stripe, numel - at)};
    std::vector<std::vector<std::byte>> payloads;
    std::vector<const std::byte*> starts;
    for (std::size_t r = 0; r < memories_.size(); ++r) {
      Memory& memory = *memories_[r][tensor];
      payloads.emplace_back(memory.coder->payload_bytes(piece.numel));
      memory.coder->encode(piece, arrays(own[r][tensor], memory.residual, at), payloads.back());
    }
    for (const auto& payload : payloads) {
      starts.push_back(payload.data());
    }
    const compression::Coder& decoder = *memories_.front()[tensor]->coder;
    decoder.sum(piece, starts, bytes(result, at));
    if (scheme_.recipe == Recipe::kScatter) {
      Memory& owner = *memories_[static_cast<std::size_t>(at / stripe) % memories_.size()][tensor];
      std::vector<std::byte> again(owner.owner_coder->payload_bytes(piece.numel));
      owner.owner_coder->encode(piece, arrays(result, owner.owner_residual, at), again);
      const std::byte* start = again.data();
      decoder.sum(piece, {&start, 1}, bytes(result, at));
    }
  }
  return result;
}

Floats Reference::owed(Rank rank, std::size_t tensor) const {
  const Memory& memory = *memories_[static_cast<std::size_t>(rank)][tensor];
  Floats out = memory.residual;
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] += memory.owner_residual[i];
  }
  return out;
}

}  // namespace sirtaki::engine::testing
