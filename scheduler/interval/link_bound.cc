#include "scheduler/interval/link_bound.h"

#include <algorithm>
#include <limits>

#include "scheduler/arith.h"
#include "scheduler/interval/fixed_point.h"

namespace sirtaki::scheduler::interval {
namespace {

// Sums of two stay far below the end of 64 bits.
constexpr std::int64_t kMostLoad = std::int64_t{1} << 60;
constexpr std::int64_t kMostScaled = std::numeric_limits<std::int64_t>::max() / 2;

std::int64_t over_step(std::int64_t time_us, std::int64_t step_us) {
  return static_cast<std::int64_t>(std::min<Wide>(Wide{time_us} * kOneQ16 / step_us, kMostLoad));
}

std::int64_t with_margin(std::int64_t load, std::int64_t margin_permille) {
  const Wide one = Wide{1000} * kOneQ16;
  return static_cast<std::int64_t>(std::min<Wide>((Wide{load} * margin_permille + one - 1) / one, kMostScaled));
}

// More at once, since too little makes steps wait; less only where a load larger by an eighth would do with less, too.
void follow(std::int64_t& bound, std::int64_t load, std::int64_t margin_permille, std::int64_t least) {
  const std::int64_t needed = std::max(with_margin(load, margin_permille), least);
  const std::int64_t eased = std::max(with_margin(load + load / 8, margin_permille), least);
  if (needed > bound || eased < bound) {
    bound = needed;
  }
}

}  // namespace

void LinkBound::Mean::add(std::int64_t fresh) {
  count = std::min(count + 1, kMeanRounds);
  value += (fresh - value) / count;
}

void LinkBound::Mean::state(StateIo& io) {
  io.field(value, 0, kMostLoad);
  io.field(count, 0, kMeanRounds);
}

void LinkBound::observe(const RoundStats& stats, Mode mode) {
  if (stats.step_us == 0) {
    return;
  }
  if (mode != mode_) {
    dense_ = cost_ = {};
    local_dense_ = 0;
    mode_ = mode;
  }
  if (stats.compressed != compressed_) {
    sent_ = longest_ = {};
    compressed_ = stats.compressed;
  }
  dense_.add(over_step(stats.dense_us, stats.step_us));
  sent_.add(over_step(stats.transfer_us, stats.step_us));
  longest_.add(over_step(stats.longest_us, stats.step_us));
  if (mode == Mode::kSync) {
    cost_.add(over_step(stats.stall_us, stats.step_us));
    hidden_ = std::clamp<std::int64_t>(dense_.value - cost_.value, 0, kOneQ16);
    sync_dense_ = dense_.value;
  } else if (local_dense_ == 0 && dense_.count == kMeanRounds) {
    local_dense_ = std::max<std::int64_t>(dense_.value, 1);
  }
  follow(dense_steps_, dense_.value, options_.margin_permille, 1);
  follow(steps_, sent_.value, options_.margin_permille, 1);
  follow(delay_, longest_.value, options_.margin_permille, 0);
}

std::int64_t LinkBound::cost_permille(Mode mode) const {
  Wide cost = cost_.value;
  if (mode != Mode::kSync) {
    const Wide as_then = local_dense_ == 0 ? Wide{sync_dense_} : Wide{dense_.value} * sync_dense_ / local_dense_;
    cost = std::max<Wide>(as_then - hidden_, 0);
  }
  return static_cast<std::int64_t>(std::min<Wide>(cost * 1000 / kOneQ16, kMostScaled));
}

bool LinkBound::worth_local(Mode mode) {
  const bool local = mode == Mode::kLocal;
  const std::int64_t cost = cost_permille(mode);
  int direction = 0;
  if (!local && cost_.count > 0 && cost >= options_.gain_permille) {
    direction = 1;
  } else if (local && local_dense_ != 0 && cost < options_.gain_permille - options_.band_permille) {
    direction = -1;
  }
  return hysteresis_.wants(direction) ? !local : local;
}

void LinkBound::state(StateIo& io) {
  for (Mean* mean : {&dense_, &cost_, &sent_, &longest_}) {
    mean->state(io);
  }
  io.field(mode_, Mode::kFailed);
  io.field(compressed_);
  io.field(hidden_, 0, kOneQ16);
  io.field(sync_dense_, 0, kMostLoad);
  io.field(local_dense_, 0, kMostLoad);
  io.field(steps_, 1, kMostScaled);
  io.field(dense_steps_, 1, kMostScaled);
  io.field(delay_, 0, kMostScaled);
  hysteresis_.visit_state([&io](int& number) { io.field(number, -1, std::numeric_limits<int>::max()); });
}

}  // namespace sirtaki::scheduler::interval
