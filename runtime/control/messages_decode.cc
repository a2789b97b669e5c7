// Decoders of the control messages.
#include <type_traits>
#include <utility>

#include "runtime/base/wire.h"
#include "runtime/control/message_kinds.h"
#include "runtime/control/messages.h"

namespace sirtaki::control {
namespace {

template <class Enum>
Enum get_enum(WireReader& r, int count) {
  const auto value = r.get<std::uint8_t>();
  if (value >= count) {
    r.fail();
    return Enum{};
  }
  return static_cast<Enum>(value);
}

bool get_bool(WireReader& r) {
  return r.get<std::uint8_t>() != 0;
}

DType get_dtype(WireReader& r) {
  return get_enum<DType>(r, kDTypeCount);
}
DeviceType get_device(WireReader& r) {
  return get_enum<DeviceType>(r, 2);
}
ReduceOp get_reduce_op(WireReader& r) {
  return get_enum<ReduceOp>(r, kReduceOpCount);
}
StreamId get_stream(WireReader& r) {
  return StreamId(r.get<std::uint16_t>());
}

OpMeta get_meta(WireReader& r) {
  OpMeta m;
  m.kind = get_enum<OpKind>(r, kOpKindCount);
  m.dtype = get_dtype(r);
  m.reduce_op = get_reduce_op(r);
  m.root = r.get<std::int32_t>();
  m.device = get_device(r);
  m.prescale = r.get<double>();
  m.postscale = r.get<double>();
  m.dims = r.get_list<std::int64_t>();
  m.strides = r.get_list<std::int64_t>();
  return m;
}

Announce get(WireReader& r, Tag<Announce>) {
  Announce m;
  m.name = r.get_string();
  m.use = r.get<std::uint64_t>();
  m.meta = get_meta(r);
  return m;
}

OpFailed get(WireReader& r, Tag<OpFailed>) {
  OpFailed m;
  m.name = r.get_string();
  m.use = r.get<std::uint64_t>();
  m.status = get_status(r);
  return m;
}

StreamOpen get(WireReader& r, Tag<StreamOpen>) {
  StreamOpen m;
  m.name = r.get_string();
  m.plan_digest = r.get<std::uint64_t>();
  m.reduce_op = get_reduce_op(r);
  m.prescale = r.get<double>();
  m.postscale = r.get<double>();
  m.codec = r.get_string();
  const auto count = r.get_count(14);
  m.tensors.reserve(count);
  for (std::uint32_t i = 0; i < count && r.ok(); ++i) {
    StreamTensorMeta t;
    t.name = r.get_string();
    t.dtype = get_dtype(r);
    t.device = get_device(r);
    t.dims = r.get_list<std::int64_t>();
    t.strides = r.get_list<std::int64_t>();
    m.tensors.push_back(std::move(t));
  }
  return m;
}

StreamAbort get(WireReader& r, Tag<StreamAbort>) {
  StreamAbort m;
  m.stream = get_stream(r);
  m.attempt = r.get<std::uint32_t>();
  m.step = r.get<std::uint64_t>();
  m.status = get_status(r);
  return m;
}

StreamUnused get(WireReader& r, Tag<StreamUnused>) {
  StreamUnused m;
  m.stream = get_stream(r);
  m.attempt = r.get<std::uint32_t>();
  m.step = r.get<std::uint64_t>();
  return m;
}

StreamClose get(WireReader& r, Tag<StreamClose>) {
  return {get_stream(r)};
}

Waiting get(WireReader& r, Tag<Waiting>) {
  Waiting m;
  m.blocked = get_bool(r);
  m.gives_way = get_bool(r);
  m.progress = r.get<std::uint64_t>();
  const auto count = r.get_count(19);
  m.entries.reserve(count);
  for (std::uint32_t i = 0; i < count && r.ok(); ++i) {
    WaitEntry e;
    e.kind = get_enum<WaitKind>(r, 3);
    e.name = r.get_string();
    e.use = r.get<std::uint64_t>();
    e.check = r.get<std::uint16_t>();
    e.what = r.get_string();
    m.entries.push_back(std::move(e));
  }
  return m;
}

TraceChunk get(WireReader& r, Tag<TraceChunk>) {
  TraceChunk m;
  m.last = get_bool(r);
  const ConstBytes bytes = r.get_bytes();
  m.records.assign(bytes.begin(), bytes.end());
  return m;
}

TraceRequest get(WireReader& r, Tag<TraceRequest>) {
  TraceRequest m;
  m.start = get_bool(r);
  m.path = r.get_string();
  return m;
}

std::vector<Leaving::Count> get_counts(WireReader& r) {
  const auto count = r.get_count(12);
  std::vector<Leaving::Count> counts;
  counts.reserve(count);
  for (std::uint32_t i = 0; i < count && r.ok(); ++i) {
    Leaving::Count c;
    c.name = r.get_string();
    c.uses = r.get<std::uint64_t>();
    counts.push_back(std::move(c));
  }
  return counts;
}

std::vector<StreamPlace> get_places(WireReader& r) {
  const auto count = r.get_count(14);
  std::vector<StreamPlace> places(count);
  for (StreamPlace& place : places) {
    place.stream = get_stream(r);
    place.attempt = r.get<std::uint32_t>();
    place.step = r.get<std::uint64_t>();
  }
  return places;
}

Leaving get(WireReader& r, Tag<Leaving>) {
  return {get_counts(r)};
}

Joined get(WireReader& r, Tag<Joined>) {
  Joined m;
  m.places = get_places(r);
  m.counts = get_counts(r);
  return m;
}

Unused get(WireReader& r, Tag<Unused>) {
  return {get_counts(r)};
}

std::vector<std::string> get_names(WireReader& r) {
  std::vector<std::string> names(r.get_count(4));
  for (std::string& name : names) {
    name = r.get_string();
  }
  return names;
}

AskUnused get(WireReader& r, Tag<AskUnused>) {
  return {get_names(r)};
}

Forgotten get(WireReader& r, Tag<Forgotten>) {
  Forgotten m;
  m.names = get_names(r);
  m.kept = get_names(r);
  return m;
}

JobBroken get(WireReader& r, Tag<JobBroken>) {
  return {get_status(r)};
}

Agreed get(WireReader& r, Tag<Agreed>) {
  Agreed m;
  m.name = r.get_string();
  m.use = r.get<std::uint64_t>();
  m.id = r.get<std::uint32_t>();
  return m;
}

Recall get(WireReader& r, Tag<Recall>) {
  Recall m;
  m.id = r.get<std::uint32_t>();
  m.use = r.get<std::uint64_t>();
  return m;
}

OpCancelled get(WireReader& r, Tag<OpCancelled>) {
  OpCancelled m;
  m.name = r.get_string();
  m.use = r.get<std::uint64_t>();
  m.everywhere = get_bool(r);
  m.status = get_status(r);
  return m;
}

StreamAgreed get(WireReader& r, Tag<StreamAgreed>) {
  StreamAgreed m;
  m.name = r.get_string();
  m.stream = get_stream(r);
  return m;
}

StreamRefused get(WireReader& r, Tag<StreamRefused>) {
  StreamRefused m;
  m.name = r.get_string();
  m.status = get_status(r);
  return m;
}

StreamAborted get(WireReader& r, Tag<StreamAborted>) {
  StreamAborted m;
  m.stream = get_stream(r);
  m.attempt = r.get<std::uint32_t>();
  m.step = r.get<std::uint64_t>();
  m.everywhere = get_bool(r);
  m.status = get_status(r);
  return m;
}

StreamFlags get(WireReader& r, Tag<StreamFlags>) {
  StreamFlags m;
  m.stream = get_stream(r);
  m.attempt = r.get<std::uint32_t>();
  m.step = r.get<std::uint64_t>();
  return m;
}

JobFailed get(WireReader& r, Tag<JobFailed>) {
  return {get_status(r)};
}

GiveWay get(WireReader& /*r*/, Tag<GiveWay>) {
  return {};
}

Query get(WireReader& /*r*/, Tag<Query>) {
  return {};
}

StandIn get(WireReader& /*r*/, Tag<StandIn>) {
  return {};
}

AllJoined get(WireReader& r, Tag<AllJoined>) {
  AllJoined m;
  m.last = r.get<std::int32_t>();
  m.resets = get_places(r);
  return m;
}

RanksLeft get(WireReader& r, Tag<RanksLeft>) {
  RanksLeft m;
  m.ranks.resize(r.get_count(sizeof(Rank)));
  for (Rank& rank : m.ranks) {
    rank = r.get<Rank>();
  }
  return m;
}

SomeJoined get(WireReader& r, Tag<SomeJoined>) {
  SomeJoined m;
  m.ranks = r.get_list<Rank>();
  m.counts = get_counts(r);
  return m;
}

StandInOp get(WireReader& r, Tag<StandInOp>) {
  StandInOp m;
  m.name = r.get_string();
  m.use = r.get<std::uint64_t>();
  m.meta = get_meta(r);
  return m;
}

TraceSwitch get(WireReader& r, Tag<TraceSwitch>) {
  return {get_bool(r)};
}

// Reads a message of any type.
constexpr auto kGet = [](WireReader& r, auto tag) { return get(r, tag); };

}  // namespace

Result<MemberMessage> decode_member_message(ConstBytes bytes) {
  return decode_variant<MemberMessage>(bytes, "control message of a member", kGet);
}

Result<CoordinatorMessage> decode_coordinator_message(ConstBytes bytes) {
  return decode_variant<CoordinatorMessage>(bytes, "control message of the coordinator", kGet);
}

}  // namespace sirtaki::control
