// LocalOptions: how ranks train by themselves between merges, beside the interval
// (runtime/local_updates/controller/spec.h).
//
// For: whoever makes a LocalUpdater. The same on all ranks; make() compares digests. Plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "runtime/base/status.h"
#include "runtime/base/types.h"
#include "runtime/local_updates/controller/spec.h"

namespace sirtaki::local_updates {

enum class MergeRule : std::uint8_t {
  kCorrected,  // steps made since the snapshot stay: w += g_new - y
  kOverwrite,  // they are lost: w = g_new; for comparison
};

// What makes the next anchor of the mean of ranks' models. With d = anchor - mean:
//   momentum = momentum * old + d;  anchor -= lr * (nesterov ? d + momentum * new : new)
struct OuterOptions {
  bool on = false;  // off: the mean itself
  double lr = 1.0;
  double momentum = 0;
  bool nesterov = false;
};

struct LocalOptions {
  std::string name = "local";  // of its streams and operations; one a job at a time
  IntervalOptions interval;
  int fragments = 0;  // pieces of the model that are merged one after another; 0: of 4 MiB, at most 8
  MergeRule merge = MergeRule::kCorrected;
  OuterOptions outer;
  // How differences travel, as compression.codec; empty: models travel as they are. With interval.may_compress only
  // where an interval says so. No momentum correction: differences are steps already.
  std::string codec;
  // Between two decisions while gradients are averaged, and while the end of a warm-up is looked for.
  std::int64_t sync_round_steps = 16;
  std::int64_t warmup_round_steps = 4;
  std::int64_t digest_steps = 100;              // between two comparisons of parameters then
  Duration timeout = std::chrono::minutes(10);  // for whatever ranks wait for; then the training ends
  // A merge is late when a step waited longer for it, and longer than three times what it takes. Guards then ask for
  // more delay.
  Duration late_after = std::chrono::seconds(10);
};

// DiLoCo (Douillard et al., 2023): long intervals, Nesterov momentum between them, eight bits an element.
LocalOptions diloco_options();

// kInvalidArgument: says which option cannot be so.
Status check(const LocalOptions& options);
// XXH64 of what ranks must have in common, and a training with its checkpoint: all but the name.
std::uint64_t digest(const LocalOptions& options);

}  // namespace sirtaki::local_updates
