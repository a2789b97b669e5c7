// FragmentMerge: one merge of a fragment, from the snapshot of the model to the commit, or until it is given up.
//
//   kReports   ranks report their distance from the anchor, which gives the weight of each rank
//   kSending   the models, or differences, are added up
//   kVoting    ranks vote on the sum, which is used only if all of them received it
//   kDone      committed() is the same on all ranks
// Model and anchor do not change before finish(), and not at all if the merge was given up. LocalUpdater owns it and
// drives it by advance() on the thread of the training; the updater also chooses the steps in which merges begin and
// finish.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "runtime/base/status.h"
#include "runtime/base/types.h"
#include "runtime/local_updates/anchor.h"
#include "runtime/local_updates/controller/norms.h"
#include "runtime/local_updates/exchange.h"
#include "runtime/local_updates/model.h"
#include "runtime/local_updates/reports.h"
#include "runtime/local_updates/scratch.h"

namespace sirtaki::local_updates {

// Parameters of a merge. Equal on all ranks, except for lr_sum and share.
struct MergeSpec {
  int fragment = 0;
  std::int64_t snapshot_step = 0;
  std::int64_t merge_step = 0;
  std::int64_t covered_steps = 1;  // steps that the differences cover
  double lr_sum = -1;              // sum of the learning rates of these steps
  std::int64_t share = 1;          // weight of this rank
  std::int64_t encoding = 0;       // 0: models are sent; else differences, in that encoding
  // A drain: whatever the outer optimizer, the anchor is the mean of what arrived, and the model becomes the anchor.
  bool plain = false;
  MergeRule rule = MergeRule::kCorrected;

  bool sends_differences() const { return encoding > 0; }
  // Returns true if the model becomes the next anchor in the step of the snapshot.
  bool in_place() const { return plain || (merge_step == snapshot_step && !sends_differences()); }
};

// Dependencies of a merge. All of them outlive it.
struct MergeDeps {
  LocalExchange& exchange;
  const LocalModel& model;
  ScratchPool& scratch;
  Duration timeout;
};

class FragmentMerge {
 public:
  // Takes the snapshot. `norms` is the state of the controller at this moment.
  FragmentMerge(const MergeSpec& spec, const FragmentNorms& norms, const Anchor& anchor, MergeDeps deps);
  ~FragmentMerge();
  FragmentMerge(const FragmentMerge&) = delete;
  FragmentMerge& operator=(const FragmentMerge&) = delete;

  const MergeSpec& spec() const { return spec_; }
  // Posts the norm of this rank. An error ends the training; the outcome of a sum is no error.
  Status begin();
  // Sends the payload after all ranks have reported their norms. With `wait` it waits for them.
  Status depart(bool wait, const Anchor& anchor);
  // Advances as far as possible without waiting, with `wait` to kDone. `anchor` is the anchor of the fragment at the
  // snapshot.
  Status advance(bool wait, const Anchor& anchor);
  bool done() const { return stage_ == Stage::kDone; }

  // The following calls require done().
  bool committed() const { return committed_; }
  // Writes anchor and model; nothing changes if no rank counted. The model keeps the residual of its difference, unless
  // it becomes the anchor. kBug: called twice, or not committed.
  Status finish(Anchor& anchor);
  // Returns the merge, equal on all ranks.
  const Merge& merge() const { return merge_; }
  // Returns the transfer time seen by the rank that sent last, which is the time of the link; 0: nothing was sent.
  std::int64_t transfer_us() const { return transfer_us_; }
  std::int64_t sent_bytes() const;

  // Returns true if the difference of this rank is not finite.
  bool is_broken() const { return broken_; }
  // Records that the model went back to the anchor, so that finish() assigns the next anchor.
  void forget_model() { assign_ = true; }

 private:
  enum class Stage : std::uint8_t { kReports, kSending, kVoting, kDone };

  Status not_yet(bool wait, const char* what) const;
  Status on_reports(const Reports& reports, const Anchor& anchor);
  Status send(const Anchor& anchor);
  Status vote(const Status& sum, const Anchor& anchor);
  Status on_votes(const Reports& reports);
  double factor() const;
  void clip(const Anchor& anchor);
  void divide();
  void move_model(std::span<const float> before, std::span<const float> after) const;
  void keep_residual(const Anchor& anchor, std::span<float> residual);

  const MergeSpec spec_;
  const FragmentNorms norms_;
  MergeDeps deps_;
  Stage stage_ = Stage::kReports;
  RankReport report_;
  Merge merge_;
  ScratchPool::Array snapshot_;  // empty for a merge in place
  ScratchPool::Array payload_;   // payload, then the sum, then the previous anchor
  std::int64_t transfer_us_ = 0;
  bool broken_ = false;
  bool assign_ = false;
  bool committed_ = false;
  bool finished_ = false;
};

}  // namespace sirtaki::local_updates
