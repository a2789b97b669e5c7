// FragmentMerge: one fragment's way from a snapshot of the model to its merge, or to being given up.
//
//   kReports   ranks tell each other how far they are from the anchor; then all know what each counts
//   kSending   the models, or differences, are added up
//   kVoting    ranks tell each other whether the sum has come; it is used only where it has on all
//   kDone      committed() or not: the same on all ranks
// Nothing of the model or the anchor changes before finish(), and nothing at all where it was given up.
// Owned by LocalUpdater; the training's thread, which drives it by advance(). Not for: when to begin and to finish.
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

// What a merge is about. Equal on all ranks, but for lr_sum and share.
struct MergeSpec {
  int fragment = 0;
  std::int64_t snapshot_step = 0;
  std::int64_t merge_step = 0;
  std::int64_t covered_steps = 1;  // by the differences
  double lr_sum = -1;              // of these steps
  std::int64_t share = 1;          // of this rank
  bool compressed = false;
  MergeRule rule = MergeRule::kCorrected;
};

// What a merge works with; all outlive it.
struct MergeDeps {
  LocalExchange& exchange;
  const LocalModel& model;
  ScratchPool& scratch;
  Duration timeout;
};

class FragmentMerge {
 public:
  // Takes the snapshot and tells its norm. `norms`: the controller's, as they are now.
  FragmentMerge(const MergeSpec& spec, const FragmentNorms& norms, const Anchor& anchor, MergeDeps deps);
  ~FragmentMerge();
  FragmentMerge(const FragmentMerge&) = delete;
  FragmentMerge& operator=(const FragmentMerge&) = delete;

  const MergeSpec& spec() const { return spec_; }
  // An error is the end of the training; what a sum ends with is not one.
  Status begin();
  // Sends what it has once all ranks have told their norms. `wait`: waits for them.
  Status depart(bool wait, const Anchor& anchor);
  // Goes on as far as it can without waiting; `wait`: to kDone. `anchor`: of the fragment, as at the snapshot.
  Status advance(bool wait, const Anchor& anchor);
  bool done() const { return stage_ == Stage::kDone; }

  // After done():
  bool committed() const { return committed_; }
  // Writes anchor and model. Where nothing counted it changes nothing. kBug: called before, or not committed.
  Status finish(Anchor& anchor);
  // The same on all ranks.
  const Merge& merge() const { return merge_; }
  // Of the rank that sent last: what the link needed. 0: nothing was sent.
  std::int64_t transfer_us() const { return transfer_us_; }
  std::int64_t sent_bytes() const;

  // This rank's difference is not finite.
  bool is_broken() const { return broken_; }
  // The model went back to the anchor meanwhile: it takes the next anchor as it is.
  void forget_model() { assign_ = true; }

 private:
  enum class Stage : std::uint8_t { kReports, kSending, kVoting, kDone };

  Status not_yet(bool wait, const char* what) const;
  Status on_reports(const Reports& reports, const Anchor& anchor);
  Status send(const Anchor& anchor);
  Status vote(const Status& sum, const Anchor& anchor);
  Status on_votes(const Reports& reports);
  double factor() const;
  void divide();
  void move_model(std::span<const float> before, std::span<const float> after) const;
  void keep_residual(const Anchor& anchor, std::span<float> residual);

  const MergeSpec spec_;
  const FragmentNorms norms_;
  MergeDeps deps_;
  Stage stage_ = Stage::kReports;
  RankReport report_;
  Merge merge_;
  ScratchPool::Array snapshot_;  // empty where the model does not change before the merge and nothing is lost
  ScratchPool::Array payload_;   // what is sent, then the sum, then the anchor before
  std::int64_t transfer_us_ = 0;
  bool broken_ = false;
  bool assign_ = false;
  bool committed_ = false;
  bool finished_ = false;
};

}  // namespace sirtaki::local_updates
