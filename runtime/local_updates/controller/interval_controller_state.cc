// The state of an IntervalController as numbers.
#include <bit>

#include "runtime/local_updates/controller/interval_controller.h"

namespace sirtaki::local_updates {
namespace {

constexpr std::int64_t kVersion = 9;
constexpr std::int64_t kMostRounds = RoundStats::kMaxStep;
constexpr Interval kNoLocal;

void visit(StateIo& io, Interval& interval) {
  io.field(interval.steps, 1, kLongestInterval);
  io.field(interval.delay, 0, interval.steps - 1);
  io.field(interval.mode, Mode::kFailed);
  io.field(interval.reason, Reason::kFailed);
  io.field(interval.escalation, Escalation::kStall);
  io.field(interval.encoding, 0, RoundStats::kMaxEncoding);
}

bool is_local_or_none(const Interval& interval) {
  return interval == kNoLocal || interval.mode == Mode::kLocal;
}

// Returns true if next_mode() can reach the state.
bool is_possible(ModeState state) {
  const bool stable = state.mode == Mode::kLocal || state.mode == Mode::kFailed;
  const bool goes_on = state.then == Mode::kSync || state.then == Mode::kLocal;
  return (stable ? state.then == state.mode : goes_on) && (!state.reforming || state.mode == Mode::kDrain);
}

}  // namespace

Result<std::unique_ptr<IntervalController>> IntervalController::restore(const IntervalOptions& options,
                                                                        std::size_t ranks, std::size_t fragments,
                                                                        std::span<const std::int64_t> saved) {
  SRT_ASSIGN(std::unique_ptr<IntervalController> controller, make(options, ranks, fragments));
  StateIo io(saved);
  controller->state(io);
  if (!io.complete()) {
    return corrupt("the saved state of local updates does not belong to these options, " + std::to_string(ranks) +
                   " ranks and " + std::to_string(fragments) + " fragments");
  }
  return controller;
}

bool IntervalController::is_consistent() const {
  const bool intervals = now_.mode == mode_.mode && (now_.steps == 1 || now_.mode == Mode::kLocal);
  const bool pause = pause_until_ - step_ <= options_.guard.pause_steps;
  const auto encodings = options_.may_compress ? static_cast<std::int64_t>(options_.link.bits_permille.size()) : 1;
  const bool encoded = now_.encoding < encodings && local_.encoding < encodings;
  return encoded && is_possible(mode_) && is_local_or_none(local_) && intervals && pause;
}

void IntervalController::Rate::state(StateIo& io) {
  io.field(highest_pico, RoundStats::kUnknown, RoundStats::kMaxRate);
  io.field(fell);
  io.field(lowest_pico, RoundStats::kUnknown, RoundStats::kMaxRate);
  io.require(lowest_pico <= highest_pico);
  io.field(rests);
  io.field(last_rise, 0, RoundStats::kMaxStep);
  io.field(last_fall, 0, RoundStats::kMaxStep);
}

void IntervalController::state(StateIo& io) {
  io.constant(kVersion);
  io.constant(static_cast<std::int64_t>(ranks_));
  io.constant(static_cast<std::int64_t>(fragments_));
  io.constant(std::bit_cast<std::int64_t>(digest(options_)));
  visit(io, now_);
  visit(io, local_);
  io.field(mode_.mode, Mode::kFailed);
  io.field(mode_.then, Mode::kFailed);
  io.field(mode_.reforming);
  io.field(pending_, Reason::kFailed);
  io.field(warm_);
  io.field(synchronous_wanted_);
  rate_.state(io);
  io.field(step_, 0, RoundStats::kMaxStep);
  io.field(pause_until_, 0, 2 * RoundStats::kMaxStep);
  io.field(waited_before_, 0, RoundStats::kMaxStep);
  io.field(ceiling_, 1, kLongestInterval);
  io.field(ceiling_reason_, Reason::kFailed);
  io.field(extra_delay_, 0, kLongestInterval);
  io.field(calm_, 0, options_.guard.calm_rounds - 1);
  io.field(round_, 0, kMostRounds);
  io.require(is_consistent());
  link_.state(io);
  guards_.state(io);
  policy_->state(io);
}

std::vector<std::int64_t> IntervalController::saved() const {
  StateIo io;
  // Writing does not change the state.
  const_cast<IntervalController*>(this)->state(io);
  return io.take();
}

}  // namespace sirtaki::local_updates
