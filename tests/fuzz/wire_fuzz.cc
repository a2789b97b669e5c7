// The bounded reader under an arbitrary sequence of reads, and the decoder of timeline chunks.
#include "runtime/base/check.h"
#include "runtime/base/telemetry/timeline.h"
#include "runtime/base/wire.h"
#include "tests/fuzz/fuzz_main.h"

namespace sirtaki::fuzz {
namespace {

// Reads one value; returns the bytes of memory that its result holds.
std::size_t read_one(WireReader& reader, std::uint8_t operation) {
  switch (operation % 8) {
    case 0:
      (void)reader.get<std::uint8_t>();
      return 0;
    case 1:
      (void)reader.get<std::int64_t>();
      return 0;
    case 2:
      return reader.get_string().size();
    case 3:
      return reader.get_bytes().size();
    case 4:
      return reader.get_list<std::uint64_t>().capacity() * sizeof(std::uint64_t);
    case 5:
      return reader.get_list<std::uint8_t>().capacity();
    case 6:
      return std::size_t{reader.get_count(3)} * 3;
    default:
      return reader.get_raw(operation / 8).size();
  }
}

void check_reader(ConstBytes operations, ConstBytes bytes) {
  WireReader reader(bytes);
  for (const std::byte operation : operations) {
    const std::size_t before = reader.remaining();
    const bool was_ok = reader.ok();
    const std::size_t held = read_one(reader, static_cast<std::uint8_t>(operation));
    SRT_CHECK(held <= before);
    SRT_CHECK(reader.remaining() <= before);
    SRT_CHECK(was_ok || (!reader.ok() && held == 0));
  }
  SRT_CHECK(reader.finish("record").ok() == (reader.ok() && reader.remaining() == 0));
}

void check_chunk(ConstBytes bytes) {
  const auto chunk = decode_timeline_chunk(bytes);
  if (!chunk) {
    SRT_CHECK(chunk.status().code() == Code::kCorrupt);
    return;
  }
  const std::vector<std::byte> again = encode(*chunk);
  SRT_CHECK(again.size() == bytes.size() && std::equal(again.begin(), again.end(), bytes.begin()));
}

}  // namespace

std::vector<Input> seeds() {
  Timeline timeline(2, "host (pid 7)");
  Track& loop = timeline.track("loop", 8);
  Track& user = timeline.track("user", 2);
  for (int i = 0; i < 6; ++i) {
    const Span span{.name = timeline.name_id("weight." + std::to_string(i)),
                    .stage = static_cast<Stage>(i),
                    .position = i,
                    .bytes = 1 << i,
                    .begin = TimePoint(Duration(i)),
                    .end = TimePoint(Duration(10 * i))};
    loop.record(span);
    user.record(span);
  }
  WireWriter writer;
  writer.put_raw(std::as_bytes(std::span("\x08\x02\x03\x04\x05\x06\x01", 7)));
  writer.put_string("gradient");
  writer.put_list(std::vector<std::uint64_t>{1, 2, 3});
  writer.put_list(std::vector<std::uint8_t>{1, 2, 3});
  return {input_from(timeline.drain()), input_from(writer.bytes())};
}

}  // namespace sirtaki::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const std::size_t operations = size == 0 ? 0 : std::min<std::size_t>(data[0] % 16, size - 1);
  if (size != 0) {
    sirtaki::fuzz::check_reader(bytes.subspan(1, operations), bytes.subspan(1 + operations));
  }
  sirtaki::fuzz::check_chunk(bytes);
  return 0;
}
