#include "adapters/c/last_error.h"

#include <string>

namespace sirtaki::adapters {
namespace {

struct LastError {
  std::string text;
  std::string tensor;
  int rank = -1;
};

LastError& last_error() noexcept {
  thread_local LastError error;
  return error;
}

static_assert(static_cast<int>(Code::kOk) == SIRTAKI_OK);
static_assert(static_cast<int>(Code::kInvalidArgument) == SIRTAKI_INVALID_ARGUMENT);
static_assert(static_cast<int>(Code::kMismatch) == SIRTAKI_MISMATCH);
static_assert(static_cast<int>(Code::kTimeout) == SIRTAKI_TIMEOUT);
static_assert(static_cast<int>(Code::kPeerLost) == SIRTAKI_PEER_LOST);
static_assert(static_cast<int>(Code::kAborted) == SIRTAKI_ABORTED);
static_assert(static_cast<int>(Code::kCorrupt) == SIRTAKI_CORRUPT);
static_assert(static_cast<int>(Code::kUnsupported) == SIRTAKI_UNSUPPORTED);
static_assert(static_cast<int>(Code::kExhausted) == SIRTAKI_EXHAUSTED);
static_assert(static_cast<int>(Code::kShutdown) == SIRTAKI_NOT_INITIALIZED);
static_assert(static_cast<int>(Code::kBug) == SIRTAKI_BUG);
static_assert(static_cast<int>(Code::kUnavailable) == SIRTAKI_UNAVAILABLE);
static_assert(static_cast<int>(Code::kStuck) == SIRTAKI_STUCK);
static_assert(static_cast<int>(Code::kNonFinite) == SIRTAKI_NON_FINITE);
static_assert(static_cast<int>(Code::kRanksChanged) == SIRTAKI_RANKS_CHANGED);

}  // namespace

sirtaki_status report(const Status& status) noexcept {
  const auto code = static_cast<sirtaki_status>(status.code());
  if (status.ok()) {
    return code;
  }
  LastError& error = last_error();
  try {
    error.rank = status.blame().rank;
    error.tensor = status.blame().tensor;
    error.text = status.text();
  } catch (...) {
    // Memory ran out while the text was copied: the code alone is returned.
    error.text.clear();
    error.tensor.clear();
  }
  return code;
}

const char* last_error_text() noexcept {
  return last_error().text.c_str();
}
int last_error_rank() noexcept {
  return last_error().rank;
}
const char* last_error_tensor() noexcept {
  return last_error().tensor.c_str();
}

Status status_of_exception() noexcept {
  try {
    throw;
  } catch (const BugError& error) {
    return bug(std::string(error.what()) + "; this is a defect of Sirtaki, please report it");
  } catch (const std::bad_alloc&) {
    return {Code::kExhausted, "out of memory"};
  } catch (const std::exception& error) {
    return bug(std::string("unexpected exception: ") + error.what());
  } catch (...) {
    return bug("unexpected exception of unknown type");
  }
}

}  // namespace sirtaki::adapters
