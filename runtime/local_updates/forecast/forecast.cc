#include "runtime/local_updates/forecast/forecast.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "runtime/local_updates/controller/interval_controller.h"
#include "runtime/local_updates/model.h"

namespace sirtaki::local_updates {
namespace {

// Intervals at most double from round to round, and running means follow eight rounds.
constexpr int kQuietRounds = 10;
constexpr int kMostForecastRounds = 100;
constexpr std::int64_t kSyncSteps = 16;
constexpr double kRate = 0.1;  // any rate that stays

// Transfers of all fragments with one encoding.
struct Encoding {
  std::string codec = "none";
  std::vector<std::int64_t> fragments_us;
  // Sum and maximum of the times of the bytes, without latencies.
  std::int64_t total_us = 0;
  std::int64_t longest_us = 0;
  std::int64_t sent_bytes = 0;

  // Returns the time of all transfers with their latencies.
  std::int64_t transfer_us() const {
    return std::accumulate(fragments_us.begin(), fragments_us.end(), std::int64_t{0});
  }
};

Result<Encoding> encoding_of(const engine::StreamSpec& spec, const std::vector<FragmentLayout>& fragments,
                             const std::string& codec, const engine::Conditions& at, const Config& config) {
  Encoding out;
  out.codec = codec;
  for (const FragmentLayout& layout : fragments) {
    engine::StreamSpec part;
    part.name = spec.name;
    part.codec = codec;
    for (const int index : layout.tensors) {
      part.tensors.push_back(spec.tensors[static_cast<std::size_t>(index)]);
      part.order.push_back(static_cast<int>(part.order.size()));
    }
    SRT_ASSIGN(const engine::StepForecast step, engine::forecast_transfer(std::move(part), at, config));
    out.fragments_us.push_back(step.prediction.done_us);
    const std::int64_t bytes_us = without_latency(step.prediction.done_us, engine::distant_latency_us(at));
    out.total_us += bytes_us;
    out.longest_us = std::max(out.longest_us, bytes_us);
    out.sent_bytes += step.sent_bytes;
  }
  return out;
}

// Plays the rounds of a training.
class Rounds {
 public:
  // `chosen`: the controller chooses the encoding; else it is the last one.
  Rounds(std::vector<Encoding> encodings, bool chosen, const engine::Conditions& at,
         const engine::StepForecast& synchronous)
      : encodings_(std::move(encodings)),
        chosen_(chosen),
        step_us_(std::max<std::int64_t>(at.forward_us + at.backward_us, 1)),
        latency_us_(engine::distant_latency_us(at)),
        synchronous_(synchronous) {}

  std::int64_t encoding(const Interval& now) const {
    return chosen_ ? now.encoding : static_cast<std::int64_t>(encodings_.size()) - 1;
  }
  const Encoding& used(const Interval& now) const { return encodings_[static_cast<std::size_t>(encoding(now))]; }

  // Returns the waits of a round of local steps for merges: for the link, if it is busy all the time, or for fragments
  // that take longer, with the vote on them, than the delay.
  std::int64_t merge_waits_us(const Interval& now) const {
    const Encoding& sent = used(now);
    std::int64_t late = 0;
    for (const std::int64_t us : sent.fragments_us) {
      late += std::max<std::int64_t>(us + latency_us_ - now.delay * step_us_, 0);
    }
    return std::max(late, sent.total_us - now.steps * step_us_);
  }
  // Returns these waits and those for the norms of each fragment.
  std::int64_t waits_us(const Interval& now) const {
    return merge_waits_us(now) + latency_us_ * static_cast<std::int64_t>(used(now).fragments_us.size());
  }

  std::vector<RankRound> measured(const Interval& now, std::size_t ranks) {
    const bool local = now.mode == Mode::kLocal;
    const std::int64_t steps = local ? now.steps : now.mode == Mode::kSync ? kSyncSteps : 0;
    step_ += steps;
    RankRound round;
    round.step = step_;
    round.lr = kRate;
    round.step_us = step_us_;
    round.latency_us = latency_us_;
    if (local) {
      round.encoding = encoding(now);
      round.transfer_us = used(now).total_us;
      round.longest_us = used(now).longest_us;
      round.dense_us = round.encoding == 0 ? round.transfer_us : 0;
      round.stall_us = merge_waits_us(now) / std::max<std::int64_t>(steps, 1);
    } else {
      // A session does not measure the link in synchronous rounds.
      round.stall_us = synchronous_.prediction.exposed_us;
    }
    now_us_ += steps * step_us_ + (local ? waits_us(now) : steps * round.stall_us);
    round.now_us = now_us_;
    return std::vector<RankRound>(ranks, round);
  }

 private:
  const std::vector<Encoding> encodings_;
  const bool chosen_;
  const std::int64_t step_us_;
  const std::int64_t latency_us_;  // between distant hosts
  const engine::StepForecast& synchronous_;
  std::int64_t step_ = 0;
  std::int64_t now_us_ = 0;
};

Result<Interval> settled(IntervalController& controller, Rounds& rounds, std::size_t ranks) {
  SRT_TRY(controller.happened(Event::kJoined).status());
  int quiet = 0;
  for (int i = 0; i < kMostForecastRounds && quiet < kQuietRounds; ++i) {
    SRT_ASSIGN(const RoundStats stats, agree(rounds.measured(controller.current(), ranks)));
    SRT_ASSIGN(const Decision decision, controller.decide(stats));
    quiet = decision.changed ? 0 : quiet + 1;
  }
  return controller.current();
}

}  // namespace

Result<LocalForecast> forecast(const engine::StreamSpec& spec, const engine::Conditions& at, const Config& config,
                               const LocalOptions& given) {
  SRT_TRY(check(given));
  if (given.interval.policy == PolicyId::kCallable) {
    return invalid_argument("nobody can predict the intervals of a function of the program; name a policy or a number");
  }
  LocalForecast out;
  SRT_ASSIGN(out.synchronous, engine::forecast_step(spec, at, config));
  std::vector<std::int64_t> sizes;
  for (const engine::StreamTensor& tensor : spec.tensors) {
    sizes.push_back(std::accumulate(tensor.dims.begin(), tensor.dims.end(), std::int64_t{1}, std::multiplies<>()));
  }
  const std::vector<FragmentLayout> fragments = cut_fragments(sizes, given.fragments);
  std::vector<std::string> codecs = codecs_of(given);
  codecs.insert(codecs.begin(), "none");
  std::vector<Encoding> encodings;
  for (const std::string& codec : codecs) {
    SRT_ASSIGN(Encoding encoding, encoding_of(spec, fragments, codec, at, config));
    encodings.push_back(std::move(encoding));
  }
  out.dense_us = encodings.front().transfer_us();
  LocalOptions options = given;
  options.interval.warmup = options.interval.lr_warmup = 0;
  const auto ranks = static_cast<std::size_t>(at.ranks);
  SRT_ASSIGN(const auto controller, IntervalController::make(options.interval, ranks, fragments.size()));
  Rounds rounds(std::move(encodings), given.interval.may_compress, at, out.synchronous);
  SRT_ASSIGN(out.interval, settled(*controller, rounds, ranks));
  if (out.interval.mode != Mode::kLocal) {
    out.step_us = out.synchronous.prediction.step_us;
    out.sent_bytes = out.synchronous.sent_bytes;
    out.codec = "none";
    out.transfer_us = out.dense_us;
    return out;
  }
  const Encoding& used = rounds.used(out.interval);
  out.codec = used.codec;
  out.transfer_us = used.transfer_us();
  out.sent_bytes = used.sent_bytes / out.interval.steps;
  out.step_us = at.forward_us + at.backward_us + rounds.waits_us(out.interval) / out.interval.steps;
  return out;
}

}  // namespace sirtaki::local_updates
