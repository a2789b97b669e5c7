// The state of local updates in checkpoints, and statistics as JSON.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "runtime/base/json.h"
#include "runtime/base/wire.h"
#include "runtime/local_updates/updater.h"

namespace sirtaki::local_updates {
namespace {

constexpr std::uint32_t kFormat = 5;
constexpr std::size_t kLeastMergeBytes = 36;

std::vector<float> list_of(std::span<const float> values) {
  return {values.begin(), values.end()};
}

void write_outer(const OuterOptions& outer, const OuterRate& rate, JsonWriter& json) {
  json.key("outer").begin_object();
  json.key("lr").value(outer.on ? outer.lr : 1.0);
  json.key("momentum").value(outer.on ? outer.momentum : 0.0);
  json.key("autocorrelation").value(rate.autocorrelation.value_or(std::nan("")));
  json.key("effective_rate").value(rate.rate);
  json.end_object();
}

}  // namespace

Result<std::vector<std::byte>> LocalUpdater::saved() const {
  SRT_TRY(check_running());
  const bool busy =
      round_.posted || std::ranges::any_of(in_flight_, [](const auto& merge) { return merge != nullptr; });
  if (busy) {
    return invalid_argument("the state of local updates cannot be saved while a merge is in flight; drain() first");
  }
  WireWriter out;
  out.put(kFormat);
  out.put(digest(options_));
  for (const std::int64_t value :
       {step_, round_.begin, round_.end, round_.compared_at, round_.pull_every, late_, share_}) {
    out.put(value);
  }
  out.put(decisions_digest_);
  out.put(now_us());
  out.put(meter_.loss());
  out.put(meter_.losses());
  out.put_list(controller_->saved());
  out.put(static_cast<std::uint32_t>(merges_.size()));
  for (const Merge& merge : merges_) {
    save(merge, out);
  }
  for (std::size_t p = 0; p < anchors_.size(); ++p) {
    out.put_list(list_of(anchors_[p].values()));
    out.put_list(list_of(anchors_[p].momentum()));
    anchors_[p].trace().save(out);
    out.put(anchors_[p].version());
    const Progress& progress = progress_[p];
    for (const Cover* cover : {&progress.since, &progress.older}) {
      out.put(cover->steps);
      out.put(cover->lr_sum);
      out.put(cover->lr_known);
    }
    out.put(progress.snapshot);
    out.put(progress.reset);
    out.put(progress.merged);
  }
  return std::move(out).take();
}

void LocalUpdater::save(const Merge& merge, WireWriter& out) {
  out.put(static_cast<std::int64_t>(merge.fragment));
  out.put(merge.steps);
  out.put(merge.mean_norm2);
  out.put(merge.most_norm2);
  out.put_list(merge.weights);
  for (const RankReport& rank : merge.ranks) {
    out.put(rank.norm2);
    out.put(rank.lr_sum);
    out.put(rank.share);
  }
}

Merge LocalUpdater::load_merge(WireReader& in, std::size_t ranks) {
  Merge merge;
  merge.fragment = static_cast<int>(in.get<std::int64_t>());
  merge.steps = in.get<std::int64_t>();
  merge.mean_norm2 = in.get<double>();
  merge.most_norm2 = in.get<double>();
  merge.weights = in.get_list<std::int64_t>();
  if (merge.weights.size() != ranks) {
    in.fail();
    return merge;
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    RankReport report;
    report.norm2 = in.get<double>();
    report.lr_sum = in.get<double>();
    report.share = in.get<std::int64_t>();
    merge.ranks.push_back(report);
  }
  return merge;
}

// Loads the state of each fragment.
Status LocalUpdater::load_fragments(WireReader& in, std::vector<Anchor>& anchors,
                                    std::vector<Progress>& fragments) const {
  for (std::size_t p = 0; p < anchors_.size(); ++p) {
    anchors.emplace_back(model_.fragments[p].numel, options_.outer);
    const auto values = in.get_list<float>();
    const auto momentum = in.get_list<float>();
    const auto trace = OuterTrace::load(in);
    SRT_TRY(anchors[p].restore(values, momentum, in.get<std::uint64_t>(), trace));
    Progress progress;
    for (Cover* cover : {&progress.since, &progress.older}) {
      cover->steps = in.get<std::int64_t>();
      cover->lr_sum = in.get<double>();
      cover->lr_known = in.get<std::uint8_t>() != 0;
    }
    progress.snapshot = in.get<std::int64_t>();
    progress.reset = in.get<std::uint8_t>() != 0;
    progress.merged = in.get<std::uint8_t>() != 0;
    fragments.push_back(progress);
  }
  return in.finish("the saved state of local updates");
}

Status LocalUpdater::restore(ConstBytes saved) {
  if (started_) {
    return invalid_argument("local updates were started already; call restore() in place of start()");
  }
  WireReader in(saved);
  const bool known = in.get<std::uint32_t>() == kFormat && in.get<std::uint64_t>() == digest(options_);
  if (!in.ok() || !known) {
    return corrupt("the saved state of local updates belongs to other options, or to another version");
  }
  std::int64_t step = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t compared = 0;
  std::int64_t pull = 0;
  std::int64_t late = 0;
  std::int64_t share = 0;
  for (std::int64_t* value : {&step, &begin, &end, &compared, &pull, &late, &share}) {
    *value = in.get<std::int64_t>();
  }
  const auto decisions = in.get<std::uint64_t>();
  const auto begun_us = in.get<std::int64_t>();
  const auto loss = in.get<double>();
  const auto losses = in.get<std::int64_t>();
  const auto control = in.get_list<std::int64_t>();
  const auto ranks = static_cast<std::size_t>(exchange_.size());
  std::vector<Merge> merges;
  for (std::uint32_t left = in.get_count(kLeastMergeBytes); in.ok() && left > 0; --left) {
    merges.push_back(load_merge(in, ranks));
  }
  std::vector<Anchor> anchors;
  std::vector<Progress> fragments;
  SRT_TRY(load_fragments(in, anchors, fragments));
  SRT_ASSIGN(auto controller, IntervalController::restore(options_.interval, ranks, anchors_.size(), control));
  if (step < 0 || step >= end || losses < 0 || share < 0) {
    return corrupt("the saved state of local updates is at step " + std::to_string(step) +
                   " of a round that ends at step " + std::to_string(end));
  }
  controller_ = std::move(controller);
  anchors_ = std::move(anchors);
  progress_ = std::move(fragments);
  merges_ = std::move(merges);
  step_ = step;
  round_.begin = begin;
  round_.end = end;
  round_.compared_at = compared;
  round_.pull_every = pull;
  late_ = late;
  share_ = share;
  decisions_digest_ = decisions;
  times_.begun_us = begun_us;
  times_.begun = exchange_.now();
  begin_span("local updates, " + to_string(interval()));
  meter_.restore_losses(loss, losses);
  started_ = true;
  return {};
}

std::int64_t LocalUpdater::encoding_in_force() const {
  const std::int64_t encoding = options_.interval.may_compress ? interval().encoding : 1;
  return options_.codec.empty() ? 0 : encoding;
}

std::string LocalUpdater::codec_in_force() const {
  const std::int64_t encoding = encoding_in_force();
  return encoding > 0 ? codecs_of(options_)[static_cast<std::size_t>(encoding) - 1] : "none";
}

std::string LocalUpdater::stats_json() const {
  const Interval& now = interval();
  JsonWriter json;
  json.begin_object();
  json.key("name").value(options_.name);
  json.key("mode").value(mode_name(now.mode));
  json.key("interval").value(now.steps);
  json.key("delay").value(now.delay);
  json.key("reason").value(reason_name(now.reason));
  json.key("escalation").value(escalation_name(now.escalation));
  json.key("compress").value(now.encoding > 0);
  json.key("codec").value(codec_in_force());
  json.key("statistics_steps").value(totals_.statistics_steps);
  json.key("link_steps").value(totals_.link_steps);
  json.key("synchronous_cost").value(static_cast<double>(totals_.cost_permille) / 1000);
  json.key("steps").value(step_);
  json.key("rounds").value(totals_.rounds);
  json.key("merges").value(totals_.merges);
  json.key("merges_given_up").value(totals_.given_up);
  json.key("merges_late").value(totals_.late);
  json.key("merges_excluded").value(totals_.excluded);
  json.key("merges_clipped").value(totals_.clipped);
  json.key("drains").value(totals_.drains);
  json.key("repairs").value(totals_.repairs);
  json.key("exposed_ns").value(totals_.waited_ns);
  json.key("merged_bytes").value(totals_.sent_bytes);
  json.key("divergence").value(totals_.divergence);
  write_outer(options_.outer, effective_rate(), json);
  json.key("decisions_digest").value(decisions_digest_);
  json.key("alarms").begin_object();
  for (std::size_t guard = 0; guard < totals_.alarms.size(); ++guard) {
    json.key(guard_name(static_cast<Guard>(guard))).value(totals_.alarms[guard]);
  }
  json.end_object();
  std::int64_t anchor_bytes = 0;
  json.key("versions").begin_array();
  for (const Anchor& anchor : anchors_) {
    json.value(anchor.version());
    anchor_bytes += anchor.bytes();
  }
  json.end_array();
  json.key("anchor_bytes").value(anchor_bytes);
  json.key("scratch_bytes").value(scratch_.bytes());
  json.end_object();
  return std::move(json).take();
}

}  // namespace sirtaki::local_updates
