// Bounded little-endian encoding of small records: control messages, handshakes, frame headers.
//
// A reader never reads past its input, never allocates more than the input holds, and keeps its first error: check
// ok() (or finish()) once at the end. Plain values; no thread of their own.
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
  void put_string(std::string_view text);  // the same
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
  // A count of records that follow, each at least `min_size` bytes; 0 and failed when the input cannot hold them.
  std::uint32_t get_count(std::size_t min_size);

  void fail() { failed_ = true; }
  bool ok() const { return !failed_; }
  std::size_t remaining() const { return in_.size(); }
  // ok when nothing failed and nothing is left; `what` names the record in the error.
  Status finish(std::string_view what) const;

 private:
  void read(void* out, std::size_t size);
  ConstBytes in_;
  bool failed_ = false;
};

inline constexpr std::size_t kMaxStatusText = 65536;

// A Status on the wire, which is never ok. Its texts are cut to kMaxStatusText bytes.
void put_status(WireWriter& out, const Status& status);
// Ok or an unknown code fails the reader: an error never turns into success.
Status get_status(WireReader& in);

}  // namespace sirtaki
