// Errors as values: Status and Result<T>.
//
// Returned by every function that can fail. A Status is a code, a text for a person, and the rank, tensor and peer to
// blame. Threads: plain values; copy them freely between threads.
// Not for: errors of the programmer, which SRT_CHECK (check.h) reports.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace sirtaki {

// Numbers are part of the C ABI and of the wire format: append only.
enum class Code : std::uint8_t {
  kOk = 0,
  kInvalidArgument = 1,  // a mistake of the caller, detected on this rank alone
  kMismatch = 2,         // ranks disagree: shape, dtype, operation, options
  kTimeout = 3,          // a deadline passed
  kPeerLost = 4,         // a rank died, left or is silent
  kAborted = 5,          // ended by the failure of another rank or by request
  kCorrupt = 6,          // impossible bytes from a peer or a file
  kUnsupported = 7,      // valid, but not built or not implemented for these arguments
  kExhausted = 8,        // a bounded resource is full
  kShutdown = 9,         // the session is closed or was never opened
  kBug = 10,             // an invariant of this library does not hold
  kUnavailable = 11,     // an address, a file or a port that cannot be reached or opened
  kStuck = 12,           // every rank waits for an operation that another will never submit
  kNonFinite = 13,       // a gradient holds NaN or infinity, and the options do not let it pass
  kRanksChanged = 14,    // a rank is lost and the others go on: this epoch has ended, and the next one can be opened
};

// Returns "mismatch", "peer lost", ... in lower case, for messages.
std::string_view code_name(Code code);

// The rank, tensor and peer that an error concerns. A rank of -1 is unknown.
struct Blame {
  int rank = -1;
  std::string tensor;
};

class [[nodiscard]] Status {
 public:
  Status() = default;  // success
  Status(Code code, std::string text, Blame blame = {});

  bool ok() const { return rep_ == nullptr; }
  Code code() const { return rep_ ? rep_->code : Code::kOk; }
  // Returns the event, the place, the likely cause and the next step; empty for success.
  std::string_view text() const { return rep_ ? std::string_view(rep_->text) : std::string_view(); }
  const Blame& blame() const;

  // Returns "mismatch: tensor ...", or "ok".
  std::string to_string() const;
  // Returns the status with `prefix` + ": " in front of its text; success stays success.
  Status with_context(std::string_view prefix) const;
  // Takes the error of the other status unless this one is an error already: the first error wins.
  void update(const Status& other) {
    if (ok()) {
      rep_ = other.rep_;
    }
  }

 private:
  struct Rep {
    Code code;
    std::string text;
    Blame blame;
  };
  std::shared_ptr<const Rep> rep_;
};

inline Status invalid_argument(std::string text) {
  return {Code::kInvalidArgument, std::move(text)};
}
inline Status unavailable(std::string text) {
  return {Code::kUnavailable, std::move(text)};
}
inline Status corrupt(std::string text) {
  return {Code::kCorrupt, std::move(text)};
}
inline Status bug(std::string text) {
  return {Code::kBug, std::move(text)};
}

// A value, or the Status that says why it is missing.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  Status status() const { return ok() ? Status() : std::get<1>(state_); }

  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace sirtaki

// Returns the Status of `expr` from the enclosing function unless it is ok. `expr` yields a Status.
#define SRT_TRY(expr)                                              \
  do {                                                             \
    if (::sirtaki::Status srt_status = (expr); !srt_status.ok()) { \
      return srt_status;                                           \
    }                                                              \
  } while (false)

#define SRT_CONCAT_(a, b) a##b
#define SRT_CONCAT(a, b) SRT_CONCAT_(a, b)
// Declares `lhs` from a Result, or returns its Status: SRT_ASSIGN(auto file, open(path));
#define SRT_ASSIGN(lhs, expr)                          \
  auto SRT_CONCAT(srt_result_, __LINE__) = (expr);     \
  if (!SRT_CONCAT(srt_result_, __LINE__)) {            \
    return SRT_CONCAT(srt_result_, __LINE__).status(); \
  }                                                    \
  lhs = std::move(SRT_CONCAT(srt_result_, __LINE__)).value()
