#include "runtime/local_updates/updater.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/anchor/anchor.h"
#include "runtime/base/check.h"
#include "runtime/base/digest.h"
#include "runtime/local_updates/reports.h"

namespace sirtaki::local_updates {
namespace {

// Part of the way back to the anchor that one pull covers.
constexpr float kPullPart = 0.1F;
// A merge counts as late after this multiple of its transfer.
constexpr int kLateTimes = 3;

}  // namespace

void LocalUpdater::Cover::add(const Cover& other) {
  steps += other.steps;
  lr_sum += other.lr_sum;
  lr_known = lr_known && other.lr_known;
}

LocalUpdater::LocalUpdater(LocalOptions options, LocalModel model, LocalExchange& exchange, Logger* log)
    : options_(std::move(options)),
      model_(std::move(model)),
      exchange_(exchange),
      log_(log),
      in_flight_(model_.fragments.size()),
      progress_(model_.fragments.size()),
      meter_(model_),
      times_{.begun = exchange.now(), .begun_us = 0, .left_at = {}} {
  for (const FragmentLayout& fragment : model_.fragments) {
    anchors_.emplace_back(fragment.numel, options_.outer);
  }
  totals_.alarms.resize(static_cast<std::size_t>(Guard::kLate) + 1);
}

LocalUpdater::~LocalUpdater() {
  begin_span({});
}

Result<std::unique_ptr<LocalUpdater>> LocalUpdater::make(const LocalOptions& options, LocalModel model,
                                                         LocalExchange& exchange, Logger* log) {
  SRT_TRY(check(options));
  LocalOptions here = options;
  here.interval.link.one_host = exchange.one_host();
  SRT_ASSIGN(auto controller, IntervalController::make(here.interval, static_cast<std::size_t>(exchange.size()),
                                                       model.fragments.size()));
  auto updater = std::unique_ptr<LocalUpdater>(new LocalUpdater(std::move(here), std::move(model), exchange, log));
  updater->controller_ = std::move(controller);
  return updater;
}

LocalPace LocalUpdater::pace() const {
  return {interval().mode == Mode::kSync, interval().steps, interval().delay};
}

std::int64_t LocalUpdater::now_us() const {
  return times_.begun_us + micros(exchange_.now() - times_.begun);
}

bool LocalUpdater::is_local() const {
  return interval().mode == Mode::kLocal;
}

MergeDeps LocalUpdater::merge_deps() {
  return {exchange_, model_, scratch_, options_.timeout};
}

std::uint64_t LocalUpdater::anchors_digest() const {
  std::uint64_t hash = 0;
  for (const Anchor& anchor : anchors_) {
    const std::uint64_t part = anchor.digest();
    hash = digest_of(std::as_bytes(std::span(&part, 1)), hash);
  }
  return hash;
}

OuterRate LocalUpdater::effective_rate() const {
  OuterTrace all;
  for (const Anchor& anchor : anchors_) {
    all.add(anchor.trace());
  }
  return outer_rate(options_.outer, all);
}

Status LocalUpdater::check_running() const {
  SRT_TRY(failure_);
  return started_ ? Status() : invalid_argument("local updates are used before start()");
}

Result<LocalOutcome> LocalUpdater::end_call(const Status& status, LocalOutcome outcome) {
  times_.left_at = exchange_.now();
  if (!status.ok()) {
    if (failure_.ok() && log_ != nullptr && status.code() != Code::kRanksChanged) {
      log_->error("local updates end: " + status.to_string());
    }
    failure_.update(status);
    return failure_;
  }
  return outcome;
}

Result<LocalOutcome> LocalUpdater::step(const LocalStep& step) {
  SRT_TRY(check_running());
  count(step);
  LocalOutcome outcome;
  const auto run = [&]() -> Status {
    if (is_local()) {
      SRT_TRY(local_step(outcome));
    }
    // A report posted later would delay its decision by as much.
    if (!round_.posted && step_ >= round_.end - lag()) {
      SRT_TRY(post_round(round_.end, is_local() || round_.end - round_.compared_at >= options_.digest_steps));
    }
    return step_ == round_.end ? decide_posted(outcome) : Status();
  };
  const Status status = run();
  return end_call(status, std::move(outcome));
}

void LocalUpdater::count(const LocalStep& step) {
  const std::optional<Duration> took = times_.left_at ? std::optional(exchange_.now() - *times_.left_at) : std::nullopt;
  meter_.step(step, took);
  ++step_;
  share_ = step.share;
  for (Progress& progress : progress_) {
    progress.since.add({1, step.lr, step.lr >= 0});
    progress.merged = false;
  }
}

// ---- a step in Mode::kLocal ----

Status LocalUpdater::local_step(LocalOutcome& outcome) {
  SRT_TRY(poll());
  for (std::size_t p = 0; p < in_flight_.size(); ++p) {
    const bool due = in_flight_[p] && (in_flight_[p]->spec().merge_step <= step_ || progress_[p].snapshot == step_);
    if (due) {
      SRT_TRY(conclude(p, outcome));
    }
  }
  for (std::size_t p = 0; p < in_flight_.size(); ++p) {
    if (progress_[p].snapshot == step_) {
      SRT_TRY(snapshot(p, encoding_in_force(), outcome));
    }
  }
  for (std::size_t p = 0; p < in_flight_.size(); ++p) {
    if (in_flight_[p] && in_flight_[p]->spec().merge_step <= step_) {
      SRT_TRY(conclude(p, outcome));
    }
  }
  pull_back(outcome);
  return {};
}

Status LocalUpdater::poll() {
  for (std::size_t p = 0; p < in_flight_.size(); ++p) {
    if (in_flight_[p]) {
      SRT_TRY(in_flight_[p]->advance(false, anchors_[p]));
    }
  }
  return {};
}

// A drain takes the plain mean: it covers a part of a round, which momentum would count as a whole one, and a second
// drain must move nothing.
Status LocalUpdater::snapshot(std::size_t fragment, std::int64_t encoding, LocalOutcome& outcome) {
  const bool drains = interval().mode == Mode::kDrain;
  const std::int64_t delay = drains ? 0 : interval().delay;
  Progress& progress = progress_[fragment];
  progress.older.add(std::exchange(progress.since, {}));
  MergeSpec spec;
  spec.fragment = static_cast<int>(fragment);
  spec.snapshot_step = step_;
  spec.merge_step = step_ + delay;
  spec.covered_steps = std::max<std::int64_t>(progress.older.steps, 1);
  spec.lr_sum = progress.older.lr_known ? progress.older.lr_sum : -1;
  spec.share = progress.reset ? 0 : share_;
  spec.encoding = encoding;
  spec.plain = drains;
  spec.rule = options_.merge;
  progress.reset = false;
  auto merge =
      std::make_unique<FragmentMerge>(spec, controller_->norms(spec.fragment), anchors_[fragment], merge_deps());
  SRT_TRY(merge->begin());
  const bool broken = merge->is_broken();
  in_flight_[fragment] = std::move(merge);
  if (broken) {
    if (log_ != nullptr) {
      log_->warn("local updates: this rank's model is not finite at step " + std::to_string(step_) +
                 "; this rank does not count, and continues from the last agreed model");
    }
    take_anchor(outcome);
  }
  if (delay == 0) {
    return {};
  }
  // Without this wait no rank would notice before the next step that all norms have arrived, and the link would idle
  // until then.
  const TimePoint begin = exchange_.now();
  Status departed = in_flight_[fragment]->depart(true, anchors_[fragment]);
  totals_.waited_ns += (exchange_.now() - begin).count();
  return departed;
}

// Waits for the merge, and commits it unless it was given up.
Status LocalUpdater::conclude(std::size_t fragment, LocalOutcome& outcome) {
  FragmentMerge& merge = *in_flight_[fragment];
  if (!merge.done()) {
    const TimePoint begin = exchange_.now();
    const Status status = merge.advance(true, anchors_[fragment]);
    const Duration waited = exchange_.now() - begin;
    totals_.waited_ns += waited.count();
    meter_.waited(waited);
    SRT_TRY(status);
    // No delay hides the transfer of a drain.
    if (!merge.spec().plain &&
        waited > std::max(options_.late_after, kLateTimes * meter_.expected(merge.spec().fragment))) {
      note_late(merge, waited);
    }
  }
  if (merge.committed()) {
    SRT_TRY(merge.finish(anchors_[fragment]));
    outcome.model_changed = true;
    on_merged(merge);
  } else {
    SRT_ASSIGN([[maybe_unused]] const Interval now, controller_->happened(Event::kTagAborted));
    on_given_up(merge);
  }
  in_flight_[fragment].reset();
  return {};
}

void LocalUpdater::on_merged(const FragmentMerge& merge) {
  const Merge& done = merge.merge();
  Progress& progress = progress_[static_cast<std::size_t>(merge.spec().fragment)];
  progress.older = {};
  ++totals_.merges;
  // Holds even if no rank counted, because a drain then takes the anchor.
  progress.merged = merge.spec().in_place();
  if (total_weight(done) > 0) {
    // int8 need not be the encoding of merges, which the meter follows.
    if (!merge.spec().plain || !merge.spec().sends_differences()) {
      meter_.merged(merge.spec().fragment, merge.transfer_us(), merge.spec().encoding);
    }
    totals_.sent_bytes += static_cast<std::uint64_t>(merge.sent_bytes());
  }
  totals_.excluded += done.weights[static_cast<std::size_t>(exchange_.rank())] == 0 ? 1 : 0;
  const auto me = static_cast<std::size_t>(exchange_.rank());
  totals_.clipped += done.weights[me] > 0 && clip_of(done, me) < 1 ? 1 : 0;
  merges_.push_back(done);
}

void LocalUpdater::note_late(const FragmentMerge& merge, Duration waited) {
  ++totals_.late;
  ++late_;
  if (log_ != nullptr) {
    log_->warn("local updates: step " + std::to_string(step_) + " waited " +
               std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(waited).count()) +
               " ms for the merge of fragment " + std::to_string(merge.spec().fragment));
  }
}

void LocalUpdater::on_given_up(const FragmentMerge& merge) {
  ++totals_.given_up;
  ++late_;
  if (log_ != nullptr) {
    log_->warn("local updates: the merge of fragment " + std::to_string(merge.spec().fragment) + " from step " +
               std::to_string(merge.spec().snapshot_step) + " was given up on all ranks; its steps enter the next one");
  }
}

void LocalUpdater::pull_back(LocalOutcome& outcome) {
  if (round_.pull_every == 0 || (step_ - round_.begin) % round_.pull_every != 0) {
    return;
  }
  for (std::size_t p = 0; p < anchors_.size(); ++p) {
    const FragmentLayout& layout = model_.fragments[p];
    ScratchPool::Array away = scratch_.take(layout.numel);
    for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
      const TensorView& view = model_.tensors[static_cast<std::size_t>(layout.tensors[i])].view;
      const auto part = std::span<float>(away).first(static_cast<std::size_t>(view.numel));
      const auto anchor = anchors_[p].values().subspan(static_cast<std::size_t>(layout.offsets[i]));
      kernels::subtract(view.numel, view.data, bytes_of(anchor), bytes_of(part));
      kernels::subtract_scaled(view.numel, view.data, kPullPart, bytes_of(part), view.data);
    }
    scratch_.give_back(std::move(away));
  }
  outcome.model_changed = true;
}

// The model goes back to the anchor. Merges in flight have snapshots of the replaced model, so their anchors are
// assigned.
void LocalUpdater::take_anchor(LocalOutcome& outcome) {
  for (std::size_t p = 0; p < anchors_.size(); ++p) {
    model_.write(p, anchors_[p].values());
    progress_[p].reset = in_flight_[p] == nullptr;
    if (in_flight_[p]) {
      in_flight_[p]->forget_model();
    }
  }
  meter_.forget_losses();
  outcome.model_changed = true;
  outcome.reset_optimizer = true;
}

}  // namespace sirtaki::local_updates
