#include "scheduler/plan/credit.h"

#include "runtime/base/check.h"

namespace sirtaki::scheduler {

bool Credit::fits(std::int64_t bytes) const {
  return payloads_ == 0 || bytes <= limit_ - bytes_;
}

void Credit::take(std::int64_t bytes) {
  SRT_CHECK(bytes >= 0 && fits(bytes));
  bytes_ += bytes;
  ++payloads_;
}

void Credit::give_back(std::int64_t bytes) {
  SRT_CHECK(bytes >= 0 && payloads_ > 0 && bytes <= bytes_);
  bytes_ -= bytes;
  --payloads_;
}

void Credit::reset() {
  bytes_ = 0;
  payloads_ = 0;
}

}  // namespace sirtaki::scheduler
