// Equal models: drains, the change from averaged gradients to local steps, and the return to the anchor.
#include <algorithm>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/local_updates/buffers.h"
#include "runtime/local_updates/reports.h"
#include "runtime/local_updates/updater.h"

namespace sirtaki::local_updates {

Result<LocalOutcome> LocalUpdater::drain() {
  SRT_TRY(check_running());
  LocalOutcome outcome;
  const auto run = [&]() -> Status {
    if (!is_local()) {
      // The round is posted again later, and a checkpoint needs a state without exchanges in flight.
      SRT_TRY(discard_round());
      SRT_TRY(compare_models(outcome));
      return equalize_buffers();
    }
    SRT_TRY(discard_round());
    const std::int64_t encoding = encoding_in_force();
    SRT_ASSIGN([[maybe_unused]] const Interval now, controller_->happened(Event::kWantDrain));
    return drain_now(encoding, outcome);
  };
  const Status status = run();
  return end_call(status, std::move(outcome));
}

Result<LocalOutcome> LocalUpdater::synchronous(bool wanted) {
  SRT_TRY(check_running());
  LocalOutcome outcome;
  const auto run = [&]() -> Status {
    controller_->ask_synchronous(wanted);
    if (!wanted || !is_local()) {
      return {};
    }
    // The round ends here.
    SRT_TRY(discard_round());
    SRT_TRY(post_round(step_, true));
    return decide_posted(outcome);
  };
  const Status status = run();
  return end_call(status, std::move(outcome));
}

Status LocalUpdater::finish_flights(LocalOutcome& outcome) {
  for (std::size_t p = 0; p < in_flight_.size(); ++p) {
    if (in_flight_[p]) {
      SRT_TRY(conclude(p, outcome));
    }
  }
  return {};
}

// `encoding`: that of merges before the drain.
Status LocalUpdater::drain_now(std::int64_t encoding, LocalOutcome& outcome) {
  SRT_CHECK(interval().mode == Mode::kDrain && !round_.posted);
  ++totals_.drains;
  begin_span("local updates, drain");
  SRT_TRY(finish_flights(outcome));
  SRT_TRY(merge_everything(drain_encoding(options_, encoding), outcome));
  SRT_TRY(equalize_buffers());
  SRT_TRY(post_round(step_, true));
  return decide_posted(outcome);
}

Status LocalUpdater::merge_everything(std::int64_t encoding, LocalOutcome& outcome) {
  const auto left = [this] {
    return std::ranges::any_of(progress_, [](const Progress& progress) { return !progress.merged; });
  };
  for (int attempt = 0; attempt < kDrainAttempts && left(); ++attempt) {
    for (std::size_t p = 0; p < progress_.size(); ++p) {
      if (!progress_[p].merged) {
        SRT_TRY(snapshot(p, encoding, outcome));
      }
    }
    for (std::size_t p = 0; p < progress_.size(); ++p) {
      if (in_flight_[p]) {
        SRT_TRY(conclude(p, outcome));
      }
    }
  }
  if (left()) {
    return {Code::kAborted, "models could not be made equal: " + std::to_string(kDrainAttempts) +
                                " merges of a fragment were given up"};
  }
  for (std::size_t p = 0; p < anchors_.size(); ++p) {
    model_.write(p, anchors_[p].values());
    progress_[p].reset = false;
  }
  outcome.model_changed = true;
  return {};
}

Status LocalUpdater::equalize_buffers() {
  if (model_.buffers.empty()) {
    return {};
  }
  SRT_ASSIGN(const Reports reports, exchange_reports({ReportKind::kBuffers, 0}, pack_buffers(model_.buffers, share_),
                                                     "the exchange of buffers"));
  return pool_buffers(model_.buffers, reports);
}

// Gradients were averaged, so models are equal and become the anchor.
Status LocalUpdater::enter_local(LocalOutcome& outcome) {
  SRT_TRY(compare_models(outcome));
  for (std::size_t p = 0; p < anchors_.size(); ++p) {
    ScratchPool::Array model = scratch_.take(model_.fragments[p].numel);
    model_.read(p, model);
    anchors_[p].reset(model);
    scratch_.give_back(std::move(model));
    progress_[p] = {};
    progress_[p].merged = true;
  }
  return {};
}

Status LocalUpdater::compare_models(LocalOutcome& outcome) {
  SRT_ASSIGN(const Reports reports, exchange_reports({ReportKind::kDigest, 0}, encode_digests({model_.digest(), 0}),
                                                     "the comparison of models"));
  SRT_ASSIGN(const auto digests, decode_digests(reports, 2));
  std::vector<std::uint64_t> models;
  for (const auto& rank : digests) {
    models.push_back(rank[0]);
  }
  round_.compared_at = step_;
  const auto minority = outvoted(models);
  if (!minority) {
    return {Code::kMismatch,
            "parameters differ between ranks although gradients were averaged, and no majority agrees. Likely cause: "
            "parameters were changed outside the optimizer, or not broadcast at the beginning"};
  }
  if (minority->empty()) {
    return {};
  }
  Rank donor = 0;
  while (std::ranges::find(*minority, donor) != minority->end()) {
    ++donor;
  }
  return share_models(donor, *minority, false, outcome);
}

// The takers get the anchors of the donor, or its parameters. Collective.
Status LocalUpdater::share_models(Rank donor, const std::vector<int>& takers, bool anchors, LocalOutcome& outcome) {
  if (donor < 0) {
    return {Code::kMismatch, "no rank is left with a usable model"};
  }
  const bool takes = std::ranges::find(takers, exchange_.rank()) != takers.end();
  totals_.repairs += takers.size();
  if (log_ != nullptr) {
    log_->warn("local updates: " + std::to_string(takers.size()) + " rank(s), the first of them " +
               std::to_string(takers.front()) + ", had another " + (anchors ? "anchor" : "model") +
               " than the majority; they take that of rank " + std::to_string(donor));
  }
  for (std::size_t p = 0; p < anchors_.size(); ++p) {
    ScratchPool::Array values = scratch_.take(model_.fragments[p].numel);
    if (anchors) {
      std::ranges::copy(anchors_[p].values(), values.begin());
    } else {
      model_.read(p, values);
    }
    const Status status =
        exchange_.broadcast(donor, std::as_writable_bytes(std::span<float>(values)), options_.timeout);
    if (anchors) {
      anchors_[p].clear_momentum();  // that of the takers led from a wrong anchor
    }
    if (status.ok() && takes) {
      anchors ? anchors_[p].repair(values) : model_.write(p, values);
    }
    scratch_.give_back(std::move(values));
    SRT_TRY(status);
  }
  if (takes && anchors) {
    take_anchor(outcome);
  }
  outcome.model_changed = outcome.model_changed || takes;
  return {};
}

// Merges in flight belong to models that are replaced, so they are dropped; the momentum led to the models that are.
Status LocalUpdater::roll_back(LocalOutcome& outcome) {
  for (std::size_t p = 0; p < in_flight_.size(); ++p) {
    if (in_flight_[p]) {
      const Status status = in_flight_[p]->advance(true, anchors_[p]);
      in_flight_[p].reset();
      SRT_TRY(status);
    }
  }
  for (Anchor& anchor : anchors_) {
    anchor.clear_momentum();
  }
  take_anchor(outcome);
  for (Progress& progress : progress_) {
    progress = {};
    progress.merged = true;
  }
  return {};
}

}  // namespace sirtaki::local_updates
