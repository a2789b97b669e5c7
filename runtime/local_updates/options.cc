#include "runtime/local_updates/options.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/base/config/compression_spec.h"
#include "runtime/base/digest.h"
#include "runtime/base/wire.h"

namespace sirtaki::local_updates {
namespace {

constexpr int kMostFragments = 256;
constexpr std::int64_t kMostRoundSteps = 1 << 20;

Status check_codec(const std::string& codec) {
  if (codec.empty()) {
    return {};
  }
  SRT_ASSIGN(const Spec spec, parse_spec(codec));
  for (const Rule& rule : spec.rules) {
    if (rule.method.has("momentum") && rule.method.value("momentum") != 0) {
      return invalid_argument("local updates cannot send differences by '" + rule.text +
                              "': they are steps already; leave out its momentum");
    }
    if (rule.method.has("ef") && rule.method.value("ef") == 0) {
      return invalid_argument("local updates cannot send differences by '" + rule.text +
                              "': the compression error would be lost; leave out ef=off");
    }
  }
  return {};
}

Status check_outer(const OuterOptions& outer) {
  const bool good = std::isfinite(outer.lr) && outer.lr > 0 && outer.momentum >= 0 && outer.momentum < 1 &&
                    (!outer.nesterov || outer.momentum > 0);
  return good ? Status()
              : invalid_argument(
                    "the outer optimizer of local updates needs a learning rate above 0, a momentum of 0 "
                    "to 1 (without it), and a momentum above 0 for Nesterov's; they are " +
                    std::to_string(outer.lr) + " and " + std::to_string(outer.momentum));
}

}  // namespace

void set_codec(LocalOptions& options, std::string_view codec) {
  options.codec = codec;
  options.interval.guard.residuals = !codec.empty();
  // The bits of other codecs depend on the gradients; a quarter is a guess until a transfer is measured.
  const bool ladder = codec == kLadder;
  options.interval.link.bits_permille = ladder ? LinkOptions().bits_permille : std::vector<std::int64_t>{32'000, 8'000};
  // The residual of a drain is dropped, so it has to be small however few bits merges have: int8.
  options.interval.link.drain_encoding = ladder ? 1 : 0;
}

std::vector<std::string> codecs_of(const LocalOptions& options) {
  if (options.interval.may_compress && options.codec == kLadder) {
    return {"int8", "twobit", "onebit"};
  }
  return options.codec.empty() ? std::vector<std::string>() : std::vector{options.codec};
}

std::int64_t drain_encoding(const LocalOptions& options, std::int64_t in_force) {
  return options.interval.may_compress && in_force > 0 ? options.interval.link.drain_encoding : 0;
}

LocalOptions diloco_options() {
  LocalOptions options;
  const auto interval = parse_interval("diloco");
  options.interval = interval ? *interval : options.interval;
  options.outer = {.on = true, .lr = 0.7, .momentum = 0.9, .nesterov = true};
  set_codec(options, "int8");
  return options;
}

Status check(const LocalOptions& options) {
  SRT_TRY(check(options.interval));
  if (options.name.empty()) {
    return invalid_argument("local updates need a name");
  }
  if (options.fragments < 0 || options.fragments > kMostFragments) {
    return invalid_argument("local updates of " + std::to_string(options.fragments) + " fragments; 0 to " +
                            std::to_string(kMostFragments) + " are possible");
  }
  if (std::min(options.sync_round_steps, options.warmup_round_steps) < 1 ||
      std::max(options.sync_round_steps, options.warmup_round_steps) > kMostRoundSteps || options.digest_steps < 1) {
    return invalid_argument("local updates decide and compare after 1 to " + std::to_string(kMostRoundSteps) +
                            " steps, not after " + std::to_string(options.sync_round_steps) + ", " +
                            std::to_string(options.warmup_round_steps) + " and " +
                            std::to_string(options.digest_steps));
  }
  if (options.timeout <= Duration(0) || options.late_after <= Duration(0)) {
    return invalid_argument("the timeouts of local updates must be above 0");
  }
  if (options.interval.may_compress && options.codec.empty()) {
    return invalid_argument("local updates may compress, but no codec is named");
  }
  if (options.interval.may_compress && codecs_of(options).size() + 1 != options.interval.link.bits_permille.size()) {
    return invalid_argument("the codec of local updates and the bits of its encodings do not fit together");
  }
  if (options.outer.on) {
    SRT_TRY(check_outer(options.outer));
  }
  for (const std::string& codec : codecs_of(options)) {
    SRT_TRY(check_codec(codec));
  }
  return {};
}

std::uint64_t digest(const LocalOptions& options) {
  WireWriter out;
  out.put(digest(options.interval));
  out.put(static_cast<std::int64_t>(options.fragments));
  out.put(options.merge);
  out.put(options.outer.on);
  out.put(options.outer.lr);
  out.put(options.outer.momentum);
  out.put(options.outer.nesterov);
  out.put_string(options.codec);
  out.put(options.sync_round_steps);
  out.put(options.warmup_round_steps);
  out.put(options.digest_steps);
  return digest_of(out.bytes());
}

}  // namespace sirtaki::local_updates
