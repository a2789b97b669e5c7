#include "runtime/control/rank_set.h"

#include <algorithm>

namespace sirtaki::control {
namespace {

constexpr Rank kShortRun = 3;  // runs up to this length are listed one by one

}  // namespace

RankSet RankSet::range(Rank first, Rank last) {
  RankSet set;
  set.add(Range{first, last});
  return set;
}

void RankSet::add(Range range) {
  if (range.first >= range.last) {
    return;
  }
  // A range behind all others needs no search.
  if (ranges_.empty() || range.first > ranges_.back().last) {
    size_ += range.last - range.first;
    ranges_.push_back(range);
    return;
  }
  // Ranges that overlap or touch the new one merge with it.
  const auto begin =
      std::find_if(ranges_.begin(), ranges_.end(), [&](const Range& r) { return r.last >= range.first; });
  auto end = begin;
  while (end != ranges_.end() && end->first <= range.last) {
    range.first = std::min(range.first, end->first);
    range.last = std::max(range.last, end->last);
    size_ -= end->last - end->first;
    ++end;
  }
  ranges_.insert(ranges_.erase(begin, end), range);
  size_ += range.last - range.first;
}

void RankSet::add(const RankSet& other) {
  for (const Range& range : other.ranges_) {
    add(range);
  }
}

RankSet RankSet::without(const RankSet& other) const {
  RankSet rest;
  auto hole = other.ranges_.begin();
  for (Range range : ranges_) {
    while (hole != other.ranges_.end() && hole->last <= range.first) {
      ++hole;
    }
    for (auto h = hole; h != other.ranges_.end() && h->first < range.last; ++h) {
      rest.add(Range{range.first, h->first});
      range.first = std::max(range.first, h->last);
    }
    rest.add(range);
  }
  return rest;
}

void RankSet::remove(const RankSet& other) {
  *this = without(other);
}

bool RankSet::contains(Rank rank) const {
  const auto after =
      std::upper_bound(ranges_.begin(), ranges_.end(), rank, [](Rank r, const Range& range) { return r < range.last; });
  return after != ranges_.end() && after->first <= rank;
}

std::vector<Rank> RankSet::ranks() const {
  std::vector<Rank> all;
  all.reserve(static_cast<std::size_t>(size_));
  for (const Range& range : ranges_) {
    for (Rank r = range.first; r < range.last; ++r) {
      all.push_back(r);
    }
  }
  return all;
}

std::string RankSet::to_string() const {
  std::string list;
  const auto append = [&](const std::string& item) { list += (list.empty() ? "" : ", ") + item; };
  for (const Range& range : ranges_) {
    if (range.last - range.first > kShortRun) {
      append(std::to_string(range.first) + "-" + std::to_string(range.last - 1));
      continue;
    }
    for (Rank r = range.first; r < range.last; ++r) {
      append(std::to_string(r));
    }
  }
  return (size_ == 1 ? "rank " : "ranks ") + list;
}

void put(WireWriter& w, const RankSet& ranks) {
  w.put(static_cast<std::uint32_t>(ranks.ranges().size()));
  for (const RankSet::Range& range : ranks.ranges()) {
    w.put(static_cast<std::int32_t>(range.first));
    w.put(static_cast<std::int32_t>(range.last));
  }
}

RankSet get_ranks(WireReader& r, int size) {
  RankSet set;
  const auto count = r.get_count(8);
  Rank before = -1;
  for (std::uint32_t i = 0; i < count && r.ok(); ++i) {
    const Rank first = r.get<std::int32_t>();
    const Rank last = r.get<std::int32_t>();
    if (first <= before || last <= first || last > size) {
      r.fail();
      return {};
    }
    set.add(RankSet::range(first, last));
    before = last;
  }
  return set;
}

}  // namespace sirtaki::control
