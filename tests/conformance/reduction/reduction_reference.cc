// The reference of reductions: every step computed with plain arrays of whole tensors.
#include <algorithm>
#include <functional>
#include <span>
#include <tuple>
#include <utility>

#include "compression/block_selection.h"
#include "compression/counted_codes.h"
#include "compression/low_rank_factors.h"
#include "tests/conformance/reduction/reduction_support.h"

namespace sirtaki::engine::testing {
namespace {

std::int64_t length(const Floats& values) {
  return static_cast<std::int64_t>(values.size());
}

// Sums vectors of the same length in rank order.
Floats sum_of(const std::vector<Floats>& parts) {
  Floats sum = parts.front();
  for (std::size_t r = 1; r < parts.size(); ++r) {
    std::transform(sum.begin(), sum.end(), parts[r].begin(), sum.begin(), std::plus<>());
  }
  return sum;
}

}  // namespace

struct Reference::Memory {
  std::unique_ptr<compression::Coder> coder;
  std::unique_ptr<compression::Coder> owner_coder;
  Floats residual;
  Floats owner_residual;  // zero if another rank owns the stripe
};

Reference::Reference(Scheme scheme, const std::vector<std::size_t>& sizes)
    : scheme_(std::move(scheme)), memories_(static_cast<std::size_t>(scheme_.ranks)) {
  for (Rank rank = 0; rank < scheme_.ranks; ++rank) {
    for (const std::size_t numel : sizes) {
      auto memory = std::make_unique<Memory>();
      memory->coder = scheme_.codec->open(scheme_.params_of(rank), shape_of(numel));
      memory->owner_coder = scheme_.codec->open(scheme_.params, shape_of(numel));
      memory->residual.resize(numel);
      memory->owner_residual.resize(numel);
      memories_[static_cast<std::size_t>(rank)].push_back(std::move(memory));
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
      if (scheme_.reduction == ReductionKind::kLowRank) {
        value = op == ReduceOp::kAverage ? value : value * ranks;
      } else {
        value = op == ReduceOp::kAverage ? value / ranks : value;
      }
    }
  }
  return results;
}

void Reference::run_unused(const Gradients& zeros) {
  if (scheme_.reduction == ReductionKind::kLowRank) {
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

// No rank sees the sums of hosts as a whole.
void Reference::begin(compression::Coder& coder, const kernels::Feedback& whole) const {
  if (scheme_.job_ranks == 0) {
    coder.begin(whole);
  }
}

kernels::Feedback Reference::arrays_of(std::size_t rank, std::size_t tensor, Floats& gradient) const {
  Floats& residual = memories_[rank][tensor]->residual;
  return scheme_.params[params::kFeedback] == 1 ? kernels::Feedback{bytes(gradient), bytes(residual), bytes(residual)}
                                                : kernels::Feedback{bytes(gradient)};
}

Floats Reference::reduce_shared(std::size_t tensor, const Gradients& gradients) {
  Gradients own = gradients;
  const compression::Shape shape = shape_of(own.front()[tensor].size());
  const compression::BlockSelection selection = *scheme_.codec->selection(scheme_.params, shape);
  std::vector<Floats> norms(memories_.size(), Floats(static_cast<std::size_t>(selection.blocks())));
  std::vector<Floats> values(memories_.size(), Floats(static_cast<std::size_t>(selection.values())));
  for (std::size_t r = 0; r < memories_.size(); ++r) {
    selection.norms(arrays_of(r, tensor, own[r][tensor]), bytes(norms[r]));
  }
  Floats norm_sum = sum_of(norms);
  std::vector<std::byte> ids(selection.id_bytes());
  selection.select(bytes(norm_sum), ids.data());
  for (std::size_t r = 0; r < memories_.size(); ++r) {
    selection.gather(ids.data(), arrays_of(r, tensor, own[r][tensor]), bytes(values[r]));
  }
  Floats value_sum = sum_of(values);
  const compression::BlockSelection::Part part{ids.data(), bytes(value_sum)};
  Floats result(own.front()[tensor].size());
  selection.sum({&part, 1}, bytes(result));
  return result;
}

// Adds codes as numbers instead of counting them.
Floats Reference::reduce_counts(std::size_t tensor, const Gradients& gradients) {
  using compression::CountedCodes;
  Gradients own = gradients;
  Floats result(own.front()[tensor].size());
  const std::int64_t numel = length(result);
  std::vector<std::int8_t> agreed(CountedCodes::exponent_bytes(numel), CountedCodes::kLeastExponent);
  for (std::size_t r = 0; r < memories_.size(); ++r) {
    std::vector<std::int8_t> wanted(agreed.size());
    compression::Coder& coder = *memories_[r][tensor]->coder;
    const kernels::Feedback whole = arrays_of(r, tensor, own[r][tensor]);
    begin(coder, whole);
    coder.counted()->want({0, numel}, whole, std::as_writable_bytes(std::span(wanted)).data());
    std::ranges::transform(agreed, wanted, agreed.begin(), [](auto a, auto b) { return std::max(a, b); });
  }
  std::vector<std::vector<std::byte>> codes(memories_.size());
  for (std::size_t r = 0; r < memories_.size(); ++r) {
    codes[r].resize(CountedCodes::code_bytes(numel));
    CountedCodes::encode(numel, std::as_bytes(std::span(agreed)).data(), arrays_of(r, tensor, own[r][tensor]),
                         codes[r].data());
  }
  for (std::int64_t at = 0; at < numel; at += CountedCodes::kBlock) {
    const auto block = static_cast<std::size_t>(at / CountedCodes::kBlock);
    std::vector<kernels::TwobitPart> parts;
    for (const auto& one : codes) {
      parts.push_back({one.data() + block * kernels::twobit_bytes(CountedCodes::kBlock), agreed[block]});
    }
    kernels::twobit_sum(parts, std::min(CountedCodes::kBlock, numel - at), bytes(result, at));
  }
  return result;
}

// Payloads of all ranks as numbers, starting with the rank after the owner.
Floats Reference::reduce_ring(std::size_t tensor, const Gradients& gradients) {
  Gradients own = gradients;
  Floats result(own.front()[tensor].size());
  const std::int64_t numel = length(result);
  const std::int64_t stripe = scheme_.stripe_of(result.size());
  std::vector<Floats> sent(memories_.size(), result);
  for (std::size_t r = 0; r < memories_.size(); ++r) {
    compression::Coder& coder = *memories_[r][tensor]->coder;
    begin(coder, arrays_of(r, tensor, own[r][tensor]));
    for (std::int64_t at = 0; at < numel; at += stripe) {
      const compression::Piece piece{at, std::min(stripe, numel - at)};
      std::vector<std::byte> payload(coder.payload_bytes(piece.numel));
      coder.encode(piece, arrays_of(r, tensor, own[r][tensor]).from(at), payload);
      const std::byte* const start = payload.data();
      coder.sum(piece, {&start, 1}, bytes(sent[r], at));
    }
  }
  const auto ranks = static_cast<std::size_t>(scheme_.ranks);
  const std::int64_t cell = stripe < numel ? stripe : (numel + scheme_.ranks - 1) / scheme_.ranks;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const std::size_t owner = i / static_cast<std::size_t>(cell) % ranks;
    result[i] = sent[(owner + 1) % ranks][i];
    for (std::size_t place = 2; place <= ranks; ++place) {
      result[i] += sent[(owner + place) % ranks][i];
    }
  }
  return result;
}

Floats Reference::reduce_factors(std::size_t tensor, const Gradients& gradients) {
  Gradients own = gradients;
  const auto arrays = [&](std::size_t r) { return arrays_of(r, tensor, own[r][tensor]); };
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
  if (scheme_.reduction == ReductionKind::kLowRank) {
    return reduce_factors(tensor, gradients);
  }
  if (scheme_.reduction == ReductionKind::kShared) {
    return reduce_shared(tensor, gradients);
  }
  if (scheme_.reduction == ReductionKind::kCounts) {
    return reduce_counts(tensor, gradients);
  }
  if (scheme_.reduction == ReductionKind::kRing) {
    return reduce_ring(tensor, gradients);
  }
  const bool feedback = scheme_.params[params::kFeedback] == 1;
  const auto arrays = [feedback](Floats& gradient, Floats& residual, std::int64_t at) -> kernels::Feedback {
    return feedback ? kernels::Feedback{bytes(gradient, at), bytes(residual, at), bytes(residual, at)}
                    : kernels::Feedback{bytes(gradient, at)};
  };
  Gradients own = gradients;
  for (std::size_t r = 0; r < memories_.size(); ++r) {
    Memory& memory = *memories_[r][tensor];
    begin(*memory.coder, arrays(own[r][tensor], memory.residual, 0));
  }
  Floats result(own.front()[tensor].size());
  const std::int64_t numel = length(result);
  const std::int64_t stripe = scheme_.stripe_of(result.size());
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
    if (scheme_.keeps.empty()) {
      decoder.sum(piece, starts, bytes(result, at));
    }
    for (std::size_t r = 0; r < scheme_.keeps.size(); ++r) {
      Floats one(static_cast<std::size_t>(piece.numel));
      memories_[r][tensor]->coder->sum(piece, std::span(starts).subspan(r, 1), bytes(one));
      std::transform(one.begin(), one.end(), result.begin() + at, result.begin() + at,
                     [](float more, float before) { return before + more; });
    }
    if (scheme_.reduction == ReductionKind::kScatter) {
      Memory& owner = *memories_[static_cast<std::size_t>(at / stripe) % memories_.size()][tensor];
      std::vector<std::byte> again(owner.owner_coder->payload_bytes(piece.numel));
      owner.owner_coder->encode(piece, arrays(result, owner.owner_residual, at), again);
      const std::byte* start = again.data();
      decoder.sum(piece, {&start, 1}, bytes(result, at));
    }
  }
  return result;
}

Floats Reference::residual(Rank rank, std::size_t tensor) const {
  const Memory& memory = *memories_[static_cast<std::size_t>(rank)][tensor];
  Floats out = memory.residual;
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] += memory.owner_residual[i];
  }
  return out;
}

}  // namespace sirtaki::engine::testing
