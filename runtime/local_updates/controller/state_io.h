// StateIo: writes and reads the state of the interval controller by one function.
//
// Used for checkpoints, new members, and the digest that ranks compare. Internal to runtime/local_updates/controller.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace sirtaki::local_updates {

class StateIo {
 public:
  // Makes a writer.
  StateIo() = default;
  // Makes a reader of `values`, which outlive it.
  explicit StateIo(std::span<const std::int64_t> values) : left_(values), reading_(true) {}

  // Writes or reads a value. Writing does not change it; reading leaves it unchanged after the first mismatch.
  void field(std::int64_t& value, std::int64_t least, std::int64_t most) {
    if (!reading_) {
      written_.push_back(value);
    } else if (left_.empty() || left_[0] < least || left_[0] > most) {
      good_ = false;
    } else if (good_) {
      value = left_[0];
      left_ = left_.subspan(1);
    }
  }
  void field(bool& value) {
    std::int64_t wide = value ? 1 : 0;
    field(wide, 0, 1);
    value = wide != 0;
  }
  template <class E>
  requires std::is_enum_v<E>
  void field(E& value, E last) {
    auto wide = static_cast<std::int64_t>(value);
    field(wide, 0, static_cast<std::int64_t>(last));
    value = static_cast<E>(wide);
  }
  // Writes or reads a list of at most `size` values.
  void field(std::deque<std::int64_t>& list, std::size_t size, std::int64_t least, std::int64_t most) {
    auto count = static_cast<std::int64_t>(list.size());
    field(count, 0, static_cast<std::int64_t>(size));
    list.resize(static_cast<std::size_t>(count));
    for (std::int64_t& value : list) {
      field(value, least, most);
    }
  }
  // Writes a constant, or requires it when reading.
  void constant(std::int64_t value) { field(value, value, value); }
  // Adds a condition on the fields read so far.
  void require(bool holds) { good_ = good_ && (holds || !reading_); }

  // Returns true if all fields matched and no value is left.
  bool complete() const { return good_ && left_.empty(); }
  std::vector<std::int64_t> take() { return std::move(written_); }

 private:
  std::span<const std::int64_t> left_;
  bool reading_ = false;
  bool good_ = true;
  std::vector<std::int64_t> written_;
};

}  // namespace sirtaki::local_updates
