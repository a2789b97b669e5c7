#include "runtime/base/status.h"

namespace sirtaki {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kMismatch:
      return "mismatch";
    case Code::kTimeout:
      return "timeout";
    case Code::kPeerLost:
      return "peer lost";
    case Code::kAborted:
      return "aborted";
    case Code::kCorrupt:
      return "corrupt";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kExhausted:
      return "exhausted";
    case Code::kShutdown:
      return "shut down";
    case Code::kBug:
      return "internal error";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kStuck:
      return "stuck";
    case Code::kNonFinite:
      return "not finite";
    case Code::kRanksChanged:
      return "ranks changed";
  }
  return "unknown";
}

Status::Status(Code code, std::string text, Blame blame) {
  if (code != Code::kOk) {
    rep_ = std::make_shared<const Rep>(Rep{code, std::move(text), std::move(blame)});
  }
}

const Blame& Status::blame() const {
  static const Blame kNobody;
  return rep_ ? rep_->blame : kNobody;
}

std::string Status::to_string() const {
  if (ok()) {
    return "ok";
  }
  return std::string(code_name(code())) + ": " + rep_->text;
}

Status Status::with_context(std::string_view prefix) const {
  if (ok()) {
    return {};
  }
  return {rep_->code, std::string(prefix) + ": " + rep_->text, rep_->blame};
}

}  // namespace sirtaki
