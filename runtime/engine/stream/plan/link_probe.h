// LinkProbe: measures the link between the ranks of a stream before its first step, so that the first plan fits it.
//
// Used by Engine for streams whose policy follows the link. It runs allreduces that need two exchanges each, one behind
// the other: a few of the smallest such size give the latency; then some of 32 KiB, of 1 MiB on a fast link, and of
// sizes between them on one of a latency that hides fewer bytes, give the bandwidth. Only the last ones count, because
// the first ones may pass through the burst that traffic shapers allow, or wait for the window of TCP to grow. Every
// allreduce carries the largest time of any rank, and all ranks decide by it, so all ranks run the same allreduces.
// The measurement takes at most 0.25 s on links from 5 Mbit/s on, and less on a fast link, but 20 to 40 round trips
// between distant hosts. Owned by Engine; loop thread. Not for: the link during training, which LinkMeter measures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/loop.h"
#include "runtime/base/status.h"
#include "runtime/base/task.h"
#include "runtime/base/types.h"
#include "runtime/net/collectives/collectives.h"
#include "scheduler/plan/profile.h"

namespace sirtaki::engine {

class LinkProbe {
 public:
  // `costs` are those of this rank; the profile holds those of the slowest rank.
  LinkProbe(StreamId stream, Loop& loop, net::Collectives& net, const scheduler::CodecCosts& costs);
  ~LinkProbe() { *self_ = nullptr; }
  LinkProbe(const LinkProbe&) = delete;
  LinkProbe& operator=(const LinkProbe&) = delete;

  // Calls `done` once with a profile that holds the link and the costs of codecs, equal on all ranks, or with the error
  // of the collectives. Call once.
  void run(MoveFunction<void(Result<scheduler::StepProfile>)> done);

 private:
  enum class Part : std::uint8_t { kMeet, kLatency, kSmall, kLarge, kAgree };

  void exchange();
  void on_exchanged(const Status& status);
  bool part_is_over(std::int64_t elapsed_us) const;
  void next_part(std::int64_t elapsed_us);
  // Returns whether the exchanges of this part no longer get shorter.
  bool steady() const;
  // Returns the time of the exchange of this part that is `back` before the last one, equal on all ranks.
  std::int64_t agreed_us(std::size_t back) const;
  std::vector<std::int64_t> values_of_part() const;
  // Returns the smallest allreduce, in numbers, that goes in two exchanges.
  std::size_t fewest_numbers() const;
  // Returns the bytes that leave a rank in an allreduce of so many numbers.
  double link_bytes(std::size_t numbers) const;
  scheduler::StepProfile reading() const;

  const StreamId stream_;
  Loop& loop_;
  net::Collectives& net_;
  const scheduler::CodecCosts costs_;
  MoveFunction<void(Result<scheduler::StepProfile>)> done_;
  // Both are shared with the exchange in flight, which may end after this object.
  std::shared_ptr<LinkProbe*> self_ = std::make_shared<LinkProbe*>(this);
  std::shared_ptr<std::vector<std::int64_t>> values_;
  std::uint64_t exchanges_ = 0;
  Part part_ = Part::kMeet;
  TimePoint began_;                                          // begin of the exchange in flight
  TimePoint met_;                                            // end of the first exchange
  std::vector<Duration> times_;                              // durations of the exchanges of this part
  std::vector<std::int64_t> begins_us_;                      // their begins on the slowest rank, since the ranks met
  std::int64_t agreed_latency_us_ = 0;                       // shortest exchange of the part kLatency, agreed
  std::size_t numbers_ = (32 << 10) / sizeof(std::int64_t);  // count of numbers in an exchange
  Duration latency_ = Duration::max();                       // shortest exchange of the part kLatency
  std::int64_t bytes_per_second_ = scheduler::StepProfile::kUnknown;
};

}  // namespace sirtaki::engine
