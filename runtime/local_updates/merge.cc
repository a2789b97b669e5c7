#include "runtime/local_updates/merge.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/anchor/anchor.h"
#include "kernels/scale/scale.h"
#include "runtime/base/check.h"

namespace sirtaki::local_updates {
namespace {

std::span<float> all_of(ScratchPool::Array& array) {
  return array;
}

std::int64_t largest_weight(const Merge& merge) {
  return *std::ranges::max_element(merge.weights);
}

}  // namespace

FragmentMerge::FragmentMerge(const MergeSpec& spec, const FragmentNorms& norms, const Anchor& anchor, MergeDeps deps)
    : spec_(spec), norms_(norms), deps_(deps) {
  const auto fragment = static_cast<std::size_t>(spec.fragment);
  payload_ = deps_.scratch.take(deps_.model.fragments[fragment].numel);
  deps_.model.read(fragment, payload_);
  report_ = {anchor.distance2(payload_), spec.lr_sum, spec.share};
  broken_ = !is_finite(report_);
  assign_ = broken_;
  if (!spec.in_place()) {
    snapshot_ = deps_.scratch.take(count_of(payload_));
    std::ranges::copy(payload_, snapshot_.begin());
  }
  if (spec.sends_differences()) {
    kernels::subtract(count_of(payload_), bytes_of(all_of(payload_)), bytes_of(anchor.values()),
                      bytes_of(all_of(payload_)));
  }
}

FragmentMerge::~FragmentMerge() {
  if (stage_ == Stage::kSending) {
    deps_.exchange.abandon(spec_.fragment);
  }
  deps_.scratch.give_back(std::move(snapshot_));
  deps_.scratch.give_back(std::move(payload_));
}

Status FragmentMerge::begin() {
  return deps_.exchange.post({ReportKind::kSnapshot, spec_.fragment}, encode(report_));
}

Status FragmentMerge::not_yet(bool wait, const char* what) const {
  return wait ? Status(Code::kTimeout, "fragment " + std::to_string(spec_.fragment) + ": a rank did not " + what +
                                           " within the timeout")
              : Status();
}

Status FragmentMerge::depart(bool wait, const Anchor& anchor) {
  if (stage_ != Stage::kReports) {
    return {};
  }
  auto reports = deps_.exchange.received({ReportKind::kSnapshot, spec_.fragment}, wait ? deps_.timeout : Duration(0));
  if (!reports) {
    return not_yet(wait, "report its snapshot");
  }
  SRT_TRY(reports->status());
  return on_reports(**reports, anchor);
}

Status FragmentMerge::advance(bool wait, const Anchor& anchor) {
  const Duration patience = wait ? deps_.timeout : Duration(0);
  SRT_TRY(depart(wait, anchor));
  if (stage_ == Stage::kSending) {
    const auto sum = deps_.exchange.sum(spec_.fragment, patience);
    if (!sum) {
      return not_yet(wait, "send its part");
    }
    SRT_TRY(vote(*sum, anchor));
  }
  if (stage_ == Stage::kVoting) {
    auto votes = deps_.exchange.received({ReportKind::kVote, spec_.fragment}, patience);
    if (!votes) {
      return not_yet(wait, "vote on the sum");
    }
    SRT_TRY(votes->status());
    SRT_TRY(on_votes(**votes));
  }
  return {};
}

Status FragmentMerge::on_reports(const Reports& reports, const Anchor& anchor) {
  SRT_ASSIGN(auto ranks, decode_snapshots(reports));
  SRT_ASSIGN(merge_, norms_.weigh(spec_.fragment, spec_.covered_steps, std::move(ranks)));
  if (total_weight(merge_) == 0) {
    stage_ = Stage::kDone;
    committed_ = true;
    return {};
  }
  return send(anchor);
}

// Returns the factor of the payload of this rank. The largest weight gives 1, so that equal weights change no bit.
double FragmentMerge::factor() const {
  const std::int64_t mine = merge_.weights[static_cast<std::size_t>(deps_.exchange.rank())];
  return static_cast<double>(mine) / static_cast<double>(largest_weight(merge_));
}

// Scales the difference of this rank down where it is much longer than those of the others.
void FragmentMerge::clip(const Anchor& anchor) {
  const double part = clip_of(merge_, static_cast<std::size_t>(deps_.exchange.rank()));
  if (part == 1) {
    return;
  }
  const std::int64_t n = count_of(payload_);
  std::byte* const data = bytes_of(all_of(payload_));
  if (spec_.sends_differences()) {
    kernels::scale(DType::kF32, data, n, part);
  } else {
    kernels::subtract(n, data, bytes_of(anchor.values()), data);
    kernels::subtract_scaled(n, bytes_of(anchor.values()), static_cast<float>(-part), data, data);
  }
}

Status FragmentMerge::send(const Anchor& anchor) {
  const double factor = this->factor();
  if (factor == 0) {
    // A product would keep elements that are not finite.
    std::ranges::fill(payload_, 0.0F);
  } else {
    clip(anchor);
    if (factor != 1) {
      kernels::scale(DType::kF32, bytes_of(all_of(payload_)), count_of(payload_), factor);
    }
  }
  stage_ = Stage::kSending;
  const Status sent = deps_.exchange.send(spec_.fragment, payload_, spec_.encoding);
  return sent.ok() ? Status() : vote(sent, anchor);
}

Status FragmentMerge::vote(const Status& sum, const Anchor& anchor) {
  stage_ = Stage::kVoting;
  Vote vote;
  if (sum.ok()) {
    divide();
    vote.mean_norm2 = spec_.sends_differences()
                          ? kernels::square_sum(count_of(payload_), bytes_of(all_of(payload_)), nullptr)
                          : anchor.distance2(payload_);
    vote.good = std::isfinite(vote.mean_norm2);
    vote.transfer_us = micros(deps_.exchange.transfer_time(spec_.fragment));
  }
  return deps_.exchange.post({ReportKind::kVote, spec_.fragment}, encode(vote));
}

Status FragmentMerge::on_votes(const Reports& reports) {
  SRT_ASSIGN(auto votes, decode_votes(reports));
  stage_ = Stage::kDone;
  committed_ = std::ranges::all_of(votes, &Vote::good);
  if (committed_) {
    transfer_us_ = std::ranges::min(votes, {}, &Vote::transfer_us).transfer_us;
    // The norms are equal unless an anchor is damaged; then all ranks take the same one.
    std::ranges::sort(votes, {}, &Vote::mean_norm2);
    merge_.mean_norm2 = votes[(votes.size() - 1) / 2].mean_norm2;
  }
  return {};
}

// Turns the sum into the mean.
void FragmentMerge::divide() {
  const std::int64_t total = total_weight(merge_);
  const std::int64_t unit = largest_weight(merge_);
  std::byte* const data = bytes_of(all_of(payload_));
  if (total % unit == 0) {
    kernels::divide_by(DType::kF32, data, count_of(payload_), total / unit);
  } else {
    kernels::scale(DType::kF32, data, count_of(payload_), static_cast<double>(unit) / static_cast<double>(total));
  }
}

Status FragmentMerge::finish(Anchor& anchor) {
  if (stage_ != Stage::kDone || !committed_ || finished_) {
    return bug("finish() of a merge that is not committed, or called twice");
  }
  finished_ = true;
  if (total_weight(merge_) == 0) {
    return {};
  }
  const bool assigns = assign_ || spec_.in_place() || spec_.rule == MergeRule::kOverwrite;
  // The last call that can fail comes before the first change.
  ScratchPool::Array residual;
  if (spec_.sends_differences() && !assigns && factor() > 0) {
    residual = deps_.scratch.take(count_of(payload_));
    Status known = deps_.exchange.take_residual(spec_.fragment, residual);
    if (!known.ok()) {
      deps_.scratch.give_back(std::move(residual));
      return known;
    }
  }
  if (spec_.plain) {
    anchor.assign(payload_, spec_.sends_differences());
  } else {
    anchor.advance(payload_, spec_.sends_differences(), merge_.mean_norm2);
  }
  if (assigns) {
    deps_.model.write(static_cast<std::size_t>(spec_.fragment), anchor.values());
  } else if (spec_.sends_differences()) {
    keep_residual(anchor, residual);
  } else {
    move_model(snapshot_, anchor.values());
  }
  deps_.scratch.give_back(std::move(residual));
  return {};
}

// Computes model -= before - after, tensor by tensor.
void FragmentMerge::move_model(std::span<const float> before, std::span<const float> after) const {
  const FragmentLayout& layout = deps_.model.fragments[static_cast<std::size_t>(spec_.fragment)];
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    const LocalTensor& tensor = deps_.model.tensors[static_cast<std::size_t>(layout.tensors[i])];
    const auto at = static_cast<std::size_t>(layout.offsets[i]);
    kernels::carry_over(tensor.view.numel, bytes_of(before.subspan(at)), bytes_of(after.subspan(at)), tensor.view.data);
  }
}

// The model keeps the residual: it loses the part of its difference that arrived, and takes the mean of all.
void FragmentMerge::keep_residual(const Anchor& anchor, std::span<float> residual) {
  const std::int64_t n = count_of(payload_);
  std::byte* const own = bytes_of(all_of(snapshot_));
  std::byte* const moved = bytes_of(all_of(payload_));
  kernels::subtract(n, own, moved, own);
  if (!residual.empty()) {
    if (const double factor = this->factor(); factor != 1) {
      kernels::scale(DType::kF32, bytes_of(residual), n, 1 / factor);
    }
    kernels::subtract(n, own, bytes_of(residual), own);
  }
  kernels::subtract(n, bytes_of(anchor.values()), moved, moved);
  move_model(snapshot_, payload_);
}

std::int64_t FragmentMerge::sent_bytes() const {
  return static_cast<std::int64_t>(payload_.size() * sizeof(float));
}

}  // namespace sirtaki::local_updates
