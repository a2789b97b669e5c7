#include "runtime/base/wire.h"

#include <limits>

#include "runtime/base/check.h"

namespace sirtaki {

void WireWriter::append(const void* data, std::size_t size) {
  if (size == 0) {
    return;
  }
  const auto* begin = static_cast<const std::byte*>(data);
  out_.insert(out_.end(), begin, begin + size);
}

void WireWriter::put_bytes(ConstBytes bytes) {
  SRT_CHECK(bytes.size() <= std::numeric_limits<std::uint32_t>::max());
  put(static_cast<std::uint32_t>(bytes.size()));
  append(bytes.data(), bytes.size());
}

void WireWriter::put_string(std::string_view text) {
  put_bytes(std::as_bytes(std::span(text.data(), text.size())));
}

void WireReader::read(void* out, std::size_t size) {
  if (failed_ || size > in_.size()) {
    failed_ = true;
    return;
  }
  if (size != 0) {
    std::memcpy(out, in_.data(), size);
    in_ = in_.subspan(size);
  }
}

ConstBytes WireReader::get_raw(std::size_t size) {
  if (failed_ || size > in_.size()) {
    failed_ = true;
    return {};
  }
  const ConstBytes out = in_.first(size);
  in_ = in_.subspan(size);
  return out;
}

ConstBytes WireReader::get_bytes() {
  return get_raw(get<std::uint32_t>());
}

std::string WireReader::get_string() {
  const ConstBytes bytes = get_bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::uint32_t WireReader::get_count(std::size_t min_size) {
  const auto count = get<std::uint32_t>();
  if (failed_ || count > in_.size() / (min_size == 0 ? 1 : min_size)) {
    failed_ = true;
    return 0;
  }
  return count;
}

Status WireReader::finish(std::string_view what) const {
  if (failed_) {
    return corrupt(std::string(what) + " is cut short or has a bad length");
  }
  if (!in_.empty()) {
    return corrupt(std::string(what) + " has " + std::to_string(in_.size()) + " bytes too many");
  }
  return {};
}

void put_status(WireWriter& out, const Status& status) {
  out.put(status.code());
  out.put(static_cast<std::int32_t>(status.blame().rank));
  out.put_string(std::string_view(status.blame().tensor).substr(0, kMaxStatusText));
  out.put_string(status.text().substr(0, kMaxStatusText));
}

Status get_status(WireReader& in) {
  const auto code = static_cast<Code>(in.get<std::uint8_t>());
  Blame blame;
  blame.rank = in.get<std::int32_t>();
  blame.tensor = in.get_string();
  std::string text = in.get_string();
  if (code == Code::kOk || code_name(code) == "unknown") {
    in.fail();
  }
  if (!in.ok()) {
    return corrupt("a status is cut short or has an unknown code");
  }
  return {code, std::move(text), std::move(blame)};
}

}  // namespace sirtaki
