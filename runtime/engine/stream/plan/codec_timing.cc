#include "runtime/engine/stream/plan/codec_timing.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compression/codec_state.h"
#include "compression/codecs/catalog.h"
#include "compression/low_rank_factors.h"
#include "runtime/engine/stream/plan/stream_plan.h"
#include "scheduler/policies/policy.h"

namespace sirtaki::engine {
namespace {

constexpr std::int64_t kSide = 256;
constexpr std::int64_t kElements = kSide * kSide;
constexpr int kRuns = 3;
constexpr std::int64_t kPsPerNs = 1000;

// Returns values of many magnitudes, the same on all ranks.
std::vector<float> gradient() {
  std::vector<float> values(static_cast<std::size_t>(kElements));
  std::uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<float>(static_cast<std::int32_t>(state)) * (1.0F + static_cast<float>(state >> 28U));
  }
  return values;
}

class Stopwatch {
 public:
  explicit Stopwatch(const std::function<TimePoint()>& now) : now_(now) {}

  template <class Work>
  std::int64_t shortest(Work work) {
    auto best = std::numeric_limits<std::int64_t>::max();
    for (int i = 0; i < kRuns; ++i) {
      const TimePoint begin = now_();
      work();
      best = std::min<std::int64_t>(best, (now_() - begin).count());
    }
    return best;
  }

 private:
  const std::function<TimePoint()>& now_;
};

scheduler::CodecCost time_codec(const std::function<TimePoint()>& now, const scheduler::PlannedTensor& planned,
                                int ranks) {
  const compression::PayloadCodec* codec = compression::find_payload_codec(planned.decision.codec);
  if (codec == nullptr) {
    return {};
  }
  const compression::Shape shape{kElements, kSide};
  compression::CodecState state(*codec, planned.decision.params, shape, {planned.stripe, ranks, 0});
  const std::vector<float> values = gradient();
  std::vector<float> sums(values.size());
  std::vector<std::byte> payload(state.coder().payload_bytes(kElements));
  const std::vector<const std::byte*> payloads(static_cast<std::size_t>(ranks), payload.data());
  const auto* const from = std::as_bytes(std::span(values)).data();
  auto* const to = std::as_writable_bytes(std::span(sums)).data();
  const compression::Piece piece{0, kElements};
  Stopwatch watch(now);
  const std::int64_t encode = watch.shortest([&] {
    state.coder().begin(state.feedback(from, 0));
    state.coder().encode(piece, state.feedback(from, 0), payload);
  });
  const std::int64_t sum_all = watch.shortest([&] { state.coder().sum(piece, payloads, to); });
  const std::int64_t sum_one = watch.shortest([&] { state.coder().sum(piece, std::span(payloads).first(1), to); });
  // An owner sums and encodes its share; then every rank decodes the sums of all shares.
  const std::int64_t decode =
      planned.decision.reduction == ReductionKind::kGather ? sum_all : (sum_all + encode) / ranks + sum_one;
  return {encode * kPsPerNs / kElements, decode * kPsPerNs / kElements};
}

// Policies weigh the low-rank method at this rank; its cost at other ranks is nearly proportional.
constexpr std::int64_t kTimedRank = 4;

// Ranks reduce P before each computes Q, so everything but the product P Q' precedes the last byte.
scheduler::CodecCost time_low_rank(const std::function<TimePoint()>& now) {
  compression::LowRankFactors factors({kElements, kSide}, kTimedRank, true);
  const std::vector<float> values = gradient();
  std::vector<float> residual(values.size());
  std::vector<float> product(values.size());
  std::vector<std::byte> p(factors.p_bytes());
  std::vector<std::byte> q(factors.q_bytes());
  auto* const kept = std::as_writable_bytes(std::span(residual)).data();
  const kernels::Feedback whole{std::as_bytes(std::span(values)).data(), kept, kept};
  Stopwatch watch(now);
  const std::int64_t encode = watch.shortest([&] {
    factors.project(whole, p.data());
    factors.back(whole, p.data(), q.data());
  });
  const std::int64_t decode = watch.shortest(
      [&] { factors.rebuild(whole, p.data(), q.data(), std::as_writable_bytes(std::span(product)).data()); });
  return {encode * kPsPerNs / kElements, decode * kPsPerNs / kElements};
}

}  // namespace

scheduler::CodecCosts time_codecs(const std::function<TimePoint()>& now, int ranks) {
  const CatalogFacts facts(ranks);
  scheduler::CodecCosts costs{};
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const MethodInfo* info = find_method(compression::find_payload_codec(scheduler::kTimedCodecs[i])->name());
    const auto planned =
        scheduler::decide_tensor(method_of(*info), {"timing", {kSide, kSide}, DType::kF32}, {.ranks = ranks}, facts);
    if (planned && planned->decision.format().compressed()) {
      costs[i] = planned->decision.reduction == ReductionKind::kLowRank ? time_low_rank(now)
                                                                        : time_codec(now, *planned, ranks);
    }
  }
  return costs;
}

scheduler::CodecCosts time_codecs(Loop& loop, const net::Collectives& net) {
  scheduler::CodecCosts costs = time_codecs([&loop] { return loop.now(); }, exchanging_ranks(net));
  if (const net::HostGroups* const groups = net.host_groups()) {
    const auto own = static_cast<std::int64_t>(groups->own.size());
    for (scheduler::CodecCost& cost : costs) {
      cost.encode_ps = cost.encode_ps * own / groups->hosts.shares();
      cost.decode_ps = cost.decode_ps * own / groups->hosts.shares();
    }
  }
  return costs;
}

}  // namespace sirtaki::engine
