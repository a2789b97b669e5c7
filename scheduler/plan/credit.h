// Credit: how many payload bytes of one stream may be in flight. It bounds memory, and how long an urgent partition
// waits behind bytes already handed to the network.
//
// Pure value; used by one thread. One a stream: ranks that shared credit between streams could each spend it on a
// different stream and wait for each other for ever.
#pragma once

#include <cstdint>

namespace sirtaki::scheduler {

class Credit {
 public:
  // A limit below 1 lets exactly one payload at a time through.
  explicit Credit(std::int64_t limit_bytes) : limit_(limit_bytes) {}

  // A payload fits if the limit holds with it, or if nothing is in flight: one larger than the limit goes alone.
  bool fits(std::int64_t bytes) const;
  // Counts a payload that fits().
  void take(std::int64_t bytes);
  // Ends one that was taken.
  void give_back(std::int64_t bytes);
  // Nothing is in flight any more.
  void reset();

  std::int64_t limit_bytes() const { return limit_; }
  std::int64_t in_flight_bytes() const { return bytes_; }
  int in_flight() const { return payloads_; }

 private:
  std::int64_t limit_;
  std::int64_t bytes_ = 0;
  int payloads_ = 0;
};

}  // namespace sirtaki::scheduler
