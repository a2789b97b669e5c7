// Credit: limits the payload bytes of one stream in flight. The limit bounds memory, and the time for which an urgent
// partition waits behind bytes that the network has already accepted.
//
// Every stream has a credit of its own: with a shared credit, each rank could spend it on a different stream, and ranks
// would wait for each other forever. Pure value, used by one thread.
#pragma once

#include <cstdint>

namespace sirtaki::scheduler {

class Credit {
 public:
  // A limit below 1 admits exactly one payload at a time.
  explicit Credit(std::int64_t limit_bytes) : limit_(limit_bytes) {}

  // Returns true if the limit holds with this payload, or if nothing is in flight: a payload above the limit travels
  // alone.
  bool fits(std::int64_t bytes) const;
  // Counts a payload. Requires fits().
  void take(std::int64_t bytes);
  // Ends a payload that was taken.
  void give_back(std::int64_t bytes);
  // Ends all payloads.
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
