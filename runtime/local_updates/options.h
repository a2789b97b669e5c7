// LocalOptions: options of local updates, beside those of the interval (runtime/local_updates/controller/spec.h).
//
// Arguments of LocalUpdater. Equal on all ranks; start() compares digests. Plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"
#include "runtime/local_updates/controller/spec.h"

namespace sirtaki::local_updates {

enum class MergeRule : std::uint8_t {
  kCorrected,  // keeps steps since the snapshot: w += g_new - y
  kOverwrite,  // loses them: w = g_new; for comparison
};

// The outer optimizer, which computes the next anchor from the mean of the models. With d = anchor - mean:
//   momentum = momentum * old + d;  anchor -= lr * (nesterov ? d + momentum * new : new)
struct OuterOptions {
  bool on = false;  // off: the anchor is the mean
  double lr = 1.0;
  double momentum = 0;
  bool nesterov = false;
};

struct LocalOptions {
  std::string name = "local";    // prefix of streams and operations; unique among those of its ranks
  std::vector<Rank> ranks = {};  // that train together, in ascending order; empty: all. See OpSpec; not in the digest
  IntervalOptions interval;
  int fragments = 0;  // pieces of the model, merged one after another; 0: of 4 MiB, at most 8
  MergeRule merge = MergeRule::kCorrected;
  OuterOptions outer;
  // Codec of differences, as compression.codec; empty: models travel uncompressed. With interval.may_compress,
  // intervals choose between float32 and the codec, or with kLadder between float32 and several codecs. Momentum
  // correction is excluded, because differences are steps already. set_codec() sets it.
  std::string codec;
  // Steps between two decisions while gradients are averaged, and while the end of the warm-up is not known.
  std::int64_t sync_round_steps = 16;
  std::int64_t warmup_round_steps = 4;
  std::int64_t digest_steps = 100;              // steps between two comparisons of parameters then
  Duration timeout = std::chrono::minutes(10);  // limit of every wait for other ranks; the training ends then
  // A merge is late if a step waited longer than this for it, and longer than three times its transfer. Guards then ask
  // for more delay.
  Duration late_after = std::chrono::seconds(10);
};

// Value of LocalOptions::codec for 8, 2 and 1 bits an element.
inline constexpr std::string_view kLadder = "auto";
// Sets the codec, and the bits from which the controller predicts transfers.
void set_codec(LocalOptions& options, std::string_view codec);
// Returns the codecs of encodings 1, 2, ... of differences.
std::vector<std::string> codecs_of(const LocalOptions& options);
// Returns the encoding of drains while that of merges is `in_force`: int8 where kLadder has chosen fewer bits than
// float32; else 0, which sends the models themselves.
std::int64_t drain_encoding(const LocalOptions& options, std::int64_t in_force);

// Returns the options of DiLoCo (Douillard et al., 2023): long intervals, Nesterov momentum between them, eight bits an
// element.
LocalOptions diloco_options();

// Checks options. kInvalidArgument names the invalid option.
Status check(const LocalOptions& options);
// Returns the XXH64 digest of all options except the name. Ranks have to agree on it, and a training with its
// checkpoint.
std::uint64_t digest(const LocalOptions& options);

}  // namespace sirtaki::local_updates
