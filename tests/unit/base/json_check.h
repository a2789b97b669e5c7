// is_valid_json: a strict validator of JSON, for the output of writers.
#pragma once

#include <algorithm>
#include <string_view>

namespace sirtaki {

class JsonCheck {
 public:
  explicit JsonCheck(std::string_view text) : in_(text) {}

  bool whole() {
    if (!value(0)) {
      return false;
    }
    space();
    return in_.empty();
  }

 private:
  static constexpr int kMaxDepth = 32;

  void space() { in_.remove_prefix(std::min(in_.find_first_not_of(" \n\t\r"), in_.size())); }

  bool take(char c) {
    space();
    if (in_.empty() || in_.front() != c) {
      return false;
    }
    in_.remove_prefix(1);
    return true;
  }

  bool word(std::string_view text) {
    if (!in_.starts_with(text)) {
      return false;
    }
    in_.remove_prefix(text.size());
    return true;
  }

  bool string() {
    if (!take('"')) {
      return false;
    }
    while (!in_.empty() && in_.front() != '"') {
      if (static_cast<unsigned char>(in_.front()) < 0x20) {
        return false;
      }
      in_.remove_prefix(in_.front() == '\\' && in_.size() > 1 ? 2 : 1);
    }
    return take('"');
  }

  bool number() {
    const std::size_t end = std::min(in_.find_first_not_of("+-0123456789.eE"), in_.size());
    const bool digits = in_.substr(0, end).find_first_of("0123456789") != std::string_view::npos;
    in_.remove_prefix(end);
    return digits;
  }

  bool members(char close, bool named, int depth) {
    if (take(close)) {
      return true;
    }
    do {
      if (named && !(string() && take(':'))) {
        return false;
      }
      if (!value(depth + 1)) {
        return false;
      }
    } while (take(','));
    return take(close);
  }

  bool value(int depth) {
    space();
    if (in_.empty() || depth > kMaxDepth) {
      return false;
    }
    switch (in_.front()) {
      case '{':
        return take('{') && members('}', true, depth);
      case '[':
        return take('[') && members(']', false, depth);
      case '"':
        return string();
      default:
        return word("true") || word("false") || word("null") || number();
    }
  }

  std::string_view in_;
};

inline bool is_valid_json(std::string_view text) {
  return JsonCheck(text).whole();
}

}  // namespace sirtaki
