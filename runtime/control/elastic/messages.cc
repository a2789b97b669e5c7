#include "runtime/control/elastic/messages.h"

#include "runtime/base/wire.h"
#include "runtime/control/message_kinds.h"

namespace sirtaki::control {
namespace {

// ---- encoding: one overload a type, in the order of the fields ----

void put(WireWriter& w, const MemberId& m) {
  w.put(m.slot);
  w.put(m.incarnation);
}

void put(WireWriter& w, const StreamReports& reports) {
  w.put(static_cast<std::uint32_t>(reports.size()));
  for (const StreamReport& report : reports) {
    w.put(report.stream.value);
    w.put(report.attempt);
    w.put(report.step);
    w.put(report.state);
  }
}

void put(WireWriter& w, const StreamVerdicts& verdicts) {
  w.put(static_cast<std::uint32_t>(verdicts.size()));
  for (const StreamVerdict& stream : verdicts) {
    w.put(stream.stream.value);
    w.put(stream.committed);
  }
}

void put(WireWriter& w, const LostRank& m) {
  w.put(static_cast<std::int32_t>(m.rank));
  put_status(w, m.cause);
}

void put(WireWriter& w, const Hello& m) {
  put(w, m.id);
}

void put(WireWriter& w, const Regroup& m) {
  w.put(m.last.value);
  w.put(m.change);
  w.put(static_cast<std::uint8_t>(m.has_state));
  w.put(static_cast<std::uint8_t>(m.admits));
  w.put(static_cast<std::uint8_t>(!m.why.ok()));
  if (!m.why.ok()) {
    put_status(w, m.why);
  }
  put(w, m.streams);
  w.put(static_cast<std::uint32_t>(m.unreachable.size()));
  for (const Rank rank : m.unreachable) {
    w.put(static_cast<std::int32_t>(rank));
  }
}

void put(WireWriter& w, const Departure& m) {
  w.put(static_cast<std::uint8_t>(m.done));
}

void put(WireWriter& w, const Admission& m) {
  w.put(static_cast<std::uint8_t>(m.admits));
}

void put(WireWriter& /*w*/, const MustLeave& /*m*/) {}

void put(WireWriter& w, const EpochEnds& m) {
  w.put(m.epoch.value);
  put(w, m.lost);
}

void put(WireWriter& w, const ChangeWanted& m) {
  w.put(m.number);
}

void put(WireWriter& w, const EpochFormed& m) {
  w.put(m.epoch.value);
  w.put(m.change);
  w.put(static_cast<std::uint8_t>(m.grows));
  w.put(static_cast<std::int32_t>(m.rank));
  w.put(static_cast<std::uint32_t>(m.seats.size()));
  for (const Seat& seat : m.seats) {
    put(w, seat.id);
    w.put(static_cast<std::int32_t>(seat.old_rank));
    w.put(static_cast<std::uint8_t>(seat.has_state));
  }
  put(w, m.streams);
}

void put(WireWriter& w, const JobEnds& m) {
  put_status(w, m.why);
}

void put(WireWriter& w, const Announced& m) {
  w.put(m.processes);
}

// Writes a message of any type.
constexpr auto kPutRoster = [](WireWriter& w, const auto& message) { put(w, message); };

// ---- decoding ----

bool get_flag(WireReader& r) {
  const auto value = r.get<std::uint8_t>();
  if (value > 1) {
    r.fail();
  }
  return value == 1;
}

MemberId get_id(WireReader& r) {
  const auto slot = r.get<std::int32_t>();
  if (slot < 0) {
    r.fail();
  }
  return {slot, r.get<std::uint32_t>()};
}

StreamReports get_reports(WireReader& r) {
  StreamReports reports(r.get_count(15));
  for (StreamReport& report : reports) {
    report.stream = StreamId(r.get<std::uint16_t>());
    report.attempt = r.get<std::uint32_t>();
    report.step = r.get<std::uint64_t>();
    const auto state = r.get<std::uint8_t>();
    if (state > static_cast<std::uint8_t>(StepState::kPassed)) {
      r.fail();
      return {};
    }
    report.state = static_cast<StepState>(state);
  }
  return reports;
}

StreamVerdicts get_verdicts(WireReader& r) {
  StreamVerdicts verdicts(r.get_count(10));
  for (StreamVerdict& stream : verdicts) {
    stream.stream = StreamId(r.get<std::uint16_t>());
    stream.committed = r.get<std::uint64_t>();
  }
  return verdicts;
}

LostRank get_lost(WireReader& r) {
  const Rank rank = r.get<std::int32_t>();
  return {rank, get_status(r)};
}

Hello get(WireReader& r, Tag<Hello>) {
  return {get_id(r)};
}

Regroup get(WireReader& r, Tag<Regroup>) {
  Regroup m;
  m.last = Epoch(r.get<std::uint32_t>());
  m.change = r.get<std::uint32_t>();
  m.has_state = get_flag(r);
  m.admits = get_flag(r);
  if (get_flag(r)) {
    m.why = get_status(r);
  }
  m.streams = get_reports(r);
  m.unreachable.resize(r.get_count(4));
  for (Rank& rank : m.unreachable) {
    rank = r.get<std::int32_t>();
    if (rank < 0) {
      r.fail();
    }
  }
  return m;
}

Departure get(WireReader& r, Tag<Departure>) {
  return {get_flag(r)};
}

Admission get(WireReader& r, Tag<Admission>) {
  return {get_flag(r)};
}

MustLeave get(WireReader& /*r*/, Tag<MustLeave> /*type*/) {
  return {};
}

EpochEnds get(WireReader& r, Tag<EpochEnds>) {
  const Epoch epoch(r.get<std::uint32_t>());
  return {epoch, get_lost(r)};
}

ChangeWanted get(WireReader& r, Tag<ChangeWanted>) {
  return {r.get<std::uint32_t>()};
}

// The receiver indexes the seats by its rank.
EpochFormed get(WireReader& r, Tag<EpochFormed>) {
  EpochFormed m;
  m.epoch = Epoch(r.get<std::uint32_t>());
  m.change = r.get<std::uint32_t>();
  m.grows = get_flag(r);
  m.rank = r.get<std::int32_t>();
  m.seats.resize(r.get_count(13));
  for (Seat& seat : m.seats) {
    seat.id = get_id(r);
    seat.old_rank = r.get<std::int32_t>();
    seat.has_state = get_flag(r);
  }
  m.streams = get_verdicts(r);
  if (m.rank < 0 || static_cast<std::size_t>(m.rank) >= m.seats.size()) {
    r.fail();
  }
  return m;
}

JobEnds get(WireReader& r, Tag<JobEnds>) {
  return {get_status(r)};
}

Announced get(WireReader& r, Tag<Announced>) {
  return {r.get<std::uint32_t>()};
}

// Reads a message of any type.
constexpr auto kGetRoster = [](WireReader& r, auto tag) { return get(r, tag); };

}  // namespace

std::vector<std::byte> encode(const RosterReport& message) {
  return encode_variant(message, kPutRoster);
}

std::vector<std::byte> encode(const RosterNotice& message) {
  return encode_variant(message, kPutRoster);
}

Result<RosterReport> decode_roster_report(ConstBytes bytes) {
  return decode_variant<RosterReport>(bytes, "report of a member", kGetRoster);
}

Result<RosterNotice> decode_roster_notice(ConstBytes bytes) {
  return decode_variant<RosterNotice>(bytes, "notice to a member", kGetRoster);
}

}  // namespace sirtaki::control
