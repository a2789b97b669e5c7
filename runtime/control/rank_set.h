// RankSet: a set of ranks as sorted ranges, small if the ranks are contiguous. Plain value; pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/types.h"
#include "runtime/base/wire.h"

namespace sirtaki::control {

class RankSet {
 public:
  // The ranks from first up to but excluding last.
  struct Range {
    Rank first = 0;
    Rank last = 0;
    bool operator==(const Range&) const = default;
  };

  RankSet() = default;
  static RankSet of(Rank rank) { return range(rank, rank + 1); }
  static RankSet range(Rank first, Rank last);

  void add(Rank rank) { add(Range{rank, rank + 1}); }
  void add(const RankSet& other);
  void remove(const RankSet& other);

  bool contains(Rank rank) const;
  bool contains(const RankSet& other) const { return other.without(*this).empty(); }
  RankSet without(const RankSet& other) const;
  RankSet common(const RankSet& other) const { return without(without(other)); }
  bool empty() const { return ranges_.empty(); }
  int size() const { return size_; }
  Rank front() const { return ranges_.front().first; }  // the lowest rank; requires a set that is not empty
  std::vector<Rank> ranks() const;
  const std::vector<Range>& ranges() const { return ranges_; }
  bool operator==(const RankSet&) const = default;

  // Returns "rank 1", "ranks 0, 2, 3" or "ranks 0-31, 40".
  std::string to_string() const;

 private:
  void add(Range range);

  std::vector<Range> ranges_;  // sorted, neither adjacent nor empty
  int size_ = 0;
};

void put(WireWriter& w, const RankSet& ranks);
// Reads a set. The reader fails unless the ranges are sorted and separate and every rank is below `size`.
RankSet get_ranks(WireReader& r, int size);

}  // namespace sirtaki::control
