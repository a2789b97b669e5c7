// Recorder: a digest of all messages, tags, plans and bits of results of a simulated job.
//
// For proving that a change of the code's structure changes nothing else: two runs with equal digests sent the same
// messages in the same order, ran the same plans and gave every rank the same bits.
// Owned by a test, which hands it to one SimWorld. Times are left out; they follow from the order of messages.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/base/types.h"
#include "runtime/net/link/point_to_point.h"

namespace sirtaki::world {

class Recorder {
 public:
  // Kinds of entries; the committed digests contain them, so values keep their meaning.
  enum class Kind : std::uint8_t { kData = 1, kToCoordinator = 2, kToRank = 3, kPlan = 4, kResult = 5, kStatus = 6 };

  void add(Kind kind, Rank rank, std::uint64_t key, ConstBytes bytes);

  std::uint64_t digest() const { return digest_; }
  std::uint64_t entries() const { return entries_; }

  // Returns a link that records each message sent over `link`; `link` must outlive it.
  std::unique_ptr<net::PointToPoint> over(net::PointToPoint& link);

 private:
  std::uint64_t digest_ = 0;
  std::uint64_t entries_ = 0;
};

}  // namespace sirtaki::world
