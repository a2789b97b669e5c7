// Bounded little-endian encoding of small records: control messages, handshakes, frame headers.
//
// A reader never reads past its input, never allocates more than the input holds, and keeps its first error, so one
// check of ok() or finish() at the end suffices. Plain values.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki {

static_assert(std::endian::native == std::endian::little,
              "the wire format is the memory format of little-endian hosts");

template <class T>
concept WireScalar = std::integral<T> || std::is_enum_v<T> || std::floating_point<T>;

class WireWriter {
 public:
  template <WireScalar T>
  void put(T value) {
    append(&value, sizeof(value));
  }
  void put_bytes(ConstBytes bytes);        // u32 length, then the bytes
  void put_string(std::string_view text);  // u32 length, then the text
  void put_raw(ConstBytes bytes) { append(bytes.data(), bytes.size()); }
  template <WireScalar T>
  void put_list(const std::vector<T>& values) {  // u32 count, then the values
    put(static_cast<std::uint32_t>(values.size()));
    append(values.data(), values.size() * sizeof(T));
  }

  const std::vector<std::byte>& bytes() const& { return out_; }
  std::vector<std::byte> take() && { return std::move(out_); }

 private:
  void append(const void* data, std::size_t size);
  std::vector<std::byte> out_;
};

class WireReader {
 public:
  explicit WireReader(ConstBytes in) : in_(in) {}

  template <WireScalar T>
  T get() {
    T value{};
    read(&value, sizeof(value));
    return value;
  }
  ConstBytes get_bytes();  // borrowed from the input
  std::string get_string();
  ConstBytes get_raw(std::size_t size);
  template <WireScalar T>
  std::vector<T> get_list() {
    const auto count = get<std::uint32_t>();
    if (count > in_.size() / sizeof(T)) {
      failed_ = true;
      return {};
    }
    std::vector<T> values(count);
    read(values.data(), values.size() * sizeof(T));
    return values;
  }
  // Returns the number of records that follow, each of at least `min_size` bytes; fails with 0 if the input is too
  // short for them.
  std::uint32_t get_count(std::size_t min_size);

  void fail() { failed_ = true; }
  bool ok() const { return !failed_; }
  std::size_t remaining() const { return in_.size(); }
  // Returns success if no read failed and no input is left; `what` names the record in the error.
  Status finish(std::string_view what) const;

 private:
  void read(void* out, std::size_t size);
  ConstBytes in_;
  bool failed_ = false;
};

inline constexpr std::size_t kMaxStatusText = 65536;

// Writes an error; texts are cut to kMaxStatusText bytes. Requires a status that is not ok.
void put_status(WireWriter& out, const Status& status);
// Reads an error. Success or an unknown code fails the reader, so that an error never turns into success.
Status get_status(WireReader& in);

}  // namespace sirtaki
