// JsonWriter: writes JSON text piece by piece, without a document in memory. A plain value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sirtaki {

// Appends `text` as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD.
void append_json_string(std::string& out, std::string_view text);

// Writes the commas. Requires that the caller opens, closes and names in the right order.
class JsonWriter {
 public:
  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);
  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(std::int64_t number);
  JsonWriter& value(std::uint64_t number);
  JsonWriter& value(int number) { return value(static_cast<std::int64_t>(number)); }
  JsonWriter& value(double number);  // null if it is not finite
  JsonWriter& value(bool flag);

  const std::string& text() const& { return out_; }
  std::string take() && { return std::move(out_); }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  void separate();
  std::string out_;
  bool comma_ = false;
};

}  // namespace sirtaki
