#include "tests/conformance/reduction/reduction_support.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "runtime/base/config/compression_spec.h"
#include "runtime/base/telemetry/stats.h"
#include "runtime/engine/reduction/by_host.h"

namespace sirtaki::engine::testing {

std::vector<std::int64_t> example_params(const compression::PayloadCodec& codec, bool feedback) {
  static const std::map<std::string_view, std::vector<std::int64_t>> kRest = {
      {"int8", {256}},
      {"int4", {128}},
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
  std::vector<std::int64_t> params = {1};
  if (const auto found = kRest.find(codec.name()); found != kRest.end()) {
    params.insert(params.end(), found->second.begin(), found->second.end());
  } else {
    params = plain_params(method_of(*find_method(codec.name())));
  }
  params[params::kFeedback] = feedback ? 1 : 0;
  return params;
}

compression::Shape shape_of(std::size_t numel) {
  return {static_cast<std::int64_t>(numel), numel % 8 == 0 ? 8 : 1};
}

Layout make_layout(const Scheme& scheme, const std::vector<std::size_t>& sizes, Cut cut) {
  Layout layout;
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    const auto numel = static_cast<std::int64_t>(sizes[t]);
    const std::int64_t stripe = scheme.stripe_of(sizes[t]);
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

struct Group::Node {
  Stats stats;
  BufferPool buffers{1 << 20, stats.gauge("staging")};
  std::vector<std::unique_ptr<compression::CodecState>> memories;
  std::vector<std::unique_ptr<compression::Coder>> decoders;
  std::vector<const compression::Coder*> senders;  // index: tensor and rank; set if they differ
  std::vector<std::string> names;
  std::unique_ptr<net::Collectives> wrapped;
  net::Collectives* net = nullptr;
  Status status;
  std::vector<std::shared_ptr<Reduction>> running;
};

Group::Group(Scheme scheme, std::vector<std::size_t> sizes, const std::string& world,
             const net::testing::WorldOptions& options)
    : scheme_(std::move(scheme)),
      sizes_(std::move(sizes)),
      world_(net::testing::make_world(world, scheme_.ranks, options)),
      sent_bytes_(static_cast<std::size_t>(scheme_.ranks)) {
  for (Rank rank = 0; rank < scheme_.ranks; ++rank) {
    auto node = std::make_unique<Node>();
    for (std::size_t t = 0; t < sizes_.size(); ++t) {
      const compression::Ownership ownership = ownership_of(scheme_.stripe_of(sizes_[t]), rank, scheme_.ranks,
                                                            world_->at(rank).host_groups(), static_cast<int>(t));
      node->memories.push_back(std::make_unique<compression::CodecState>(*scheme_.codec, scheme_.params_of(rank),
                                                                         shape_of(sizes_[t]), ownership));
      for (Rank from = 0; from < scheme_.ranks && !scheme_.keeps.empty(); ++from) {
        node->decoders.push_back(scheme_.codec->open_owner(scheme_.params_of(from), shape_of(sizes_[t])));
        node->senders.push_back(node->decoders.back().get());
      }
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
        compression::CodecState& memory = *node.memories[t];
        if (memory.coder().wants_whole() && sizes_[t] > 0 && node.net->host_groups() == nullptr) {
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
  allreduced_ = {};
  for (const auto& reduction : nodes_.front()->running) {
    allreduced_ += reduction->allreduced();
  }
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
  spec.reduction = scheme_.reduction;
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
    if (!node.senders.empty()) {
      const auto ranks = static_cast<std::size_t>(scheme_.ranks);
      spec.slices.back().senders = std::span(node.senders).subspan(part.tensor * ranks, ranks);
    }
  }
  auto reduction = make_reduction(std::move(spec), {*node.net, node.buffers}, [](ReductionStage, std::int64_t) {});
  node.running.push_back(reduction);
  reduction->start([this, &node](const Status& status) {
    node.status.update(status);
    if (!status.ok()) {
      give_up(status);
    }
    --missing_;
    net::testing::notify();
  });
  if (step.then) {
    later(rank, step.turns, [then = step.then, rank, reduction] { then(rank, *reduction); });
  }
}

void Group::later(Rank rank, int turns, const std::function<void()>& task) {
  if (turns == 0) {
    task();
    return;
  }
  world_->on(rank, [this, rank, turns, task] { later(rank, turns - 1, task); });
}

// Acts like a deviation of a stream: all ranks end the step.
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

Floats Group::residual(Rank rank, std::size_t tensor) const {
  Floats out(sizes_[tensor]);
  nodes_[static_cast<std::size_t>(rank)]->memories[tensor]->residual(bytes(out));
  return out;
}

}  // namespace sirtaki::engine::testing
