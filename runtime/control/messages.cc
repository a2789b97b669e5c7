#include "runtime/control/messages.h"

#include <bit>
#include <type_traits>
#include <utility>

#include "runtime/base/wire.h"

namespace sirtaki::control {
namespace {

bool first_dim_is_free(OpKind kind) {
  return kind == OpKind::kAllgather || kind == OpKind::kAlltoall;
}

// ---- encoding: one overload a type, in the order of the fields ----

void put(WireWriter& w, const OpMeta& m) {
  w.put(m.kind);
  w.put(m.dtype);
  w.put(m.reduce_op);
  w.put(static_cast<std::int32_t>(m.root));
  w.put(m.device);
  w.put(m.prescale);
  w.put(m.postscale);
  w.put_list(m.dims);
  w.put_list(m.strides);
}

void put(WireWriter& w, const Announce& m) {
  w.put_string(m.name);
  w.put(m.use);
  put(w, m.meta);
}

void put(WireWriter& w, const OpFailed& m) {
  w.put_string(m.name);
  w.put(m.use);
  put_status(w, m.status);
}

void put(WireWriter& w, const StreamOpen& m) {
  w.put_string(m.name);
  w.put(m.plan_digest);
  w.put(m.reduce_op);
  w.put(m.prescale);
  w.put(m.postscale);
  w.put_string(m.codec);
  w.put(static_cast<std::uint32_t>(m.tensors.size()));
  for (const StreamTensorMeta& t : m.tensors) {
    w.put_string(t.name);
    w.put(t.dtype);
    w.put(t.device);
    w.put_list(t.dims);
    w.put_list(t.strides);
  }
}

void put(WireWriter& w, const StreamAbort& m) {
  w.put(m.stream.value);
  w.put(m.attempt);
  w.put(m.step);
  put_status(w, m.status);
}

void put(WireWriter& w, const StreamUnused& m) {
  w.put(m.stream.value);
  w.put(m.attempt);
  w.put(m.step);
}

void put(WireWriter& w, const StreamClose& m) {
  w.put(m.stream.value);
}

void put(WireWriter& w, const Waiting& m) {
  w.put(static_cast<std::uint8_t>(m.blocked));
  w.put(static_cast<std::uint8_t>(m.gives_way));
  w.put(m.progress);
  w.put(static_cast<std::uint32_t>(m.entries.size()));
  for (const WaitEntry& e : m.entries) {
    w.put(e.kind);
    w.put_string(e.name);
    w.put(e.use);
    w.put(e.check);
    w.put_string(e.what);
  }
}

void put(WireWriter& w, const TraceChunk& m) {
  w.put(static_cast<std::uint8_t>(m.last));
  w.put_bytes(m.records);
}

void put(WireWriter& w, const TraceRequest& m) {
  w.put(static_cast<std::uint8_t>(m.start));
  w.put_string(m.path);
}

void put(WireWriter& w, const std::vector<Leaving::Count>& counts) {
  w.put(static_cast<std::uint32_t>(counts.size()));
  for (const Leaving::Count& count : counts) {
    w.put_string(count.name);
    w.put(count.uses);
  }
}

void put(WireWriter& w, const std::vector<StreamPlace>& places) {
  w.put(static_cast<std::uint32_t>(places.size()));
  for (const StreamPlace& place : places) {
    w.put(place.stream.value);
    w.put(place.attempt);
    w.put(place.step);
  }
}

void put(WireWriter& w, const Leaving& m) {
  put(w, m.counts);
}

void put(WireWriter& w, const Joined& m) {
  put(w, m.places);
  put(w, m.counts);
}

void put(WireWriter& w, const JobBroken& m) {
  put_status(w, m.status);
}

void put(WireWriter& w, const Agreed& m) {
  w.put_string(m.name);
  w.put(m.use);
  w.put(m.id);
}

void put(WireWriter& w, const Recall& m) {
  w.put(m.id);
  w.put(m.use);
}

void put(WireWriter& w, const OpCancelled& m) {
  w.put_string(m.name);
  w.put(m.use);
  w.put(static_cast<std::uint8_t>(m.everywhere));
  put_status(w, m.status);
}

void put(WireWriter& w, const StreamAgreed& m) {
  w.put_string(m.name);
  w.put(m.stream.value);
}

void put(WireWriter& w, const StreamRefused& m) {
  w.put_string(m.name);
  put_status(w, m.status);
}

void put(WireWriter& w, const StreamAborted& m) {
  w.put(m.stream.value);
  w.put(m.attempt);
  w.put(m.step);
  w.put(static_cast<std::uint8_t>(m.everywhere));
  put_status(w, m.status);
}

void put(WireWriter& w, const StreamFlags& m) {
  w.put(m.stream.value);
  w.put(m.attempt);
  w.put(m.step);
}

void put(WireWriter& w, const JobFailed& m) {
  put_status(w, m.status);
}

void put(WireWriter& /*w*/, const Query& /*m*/) {}

void put(WireWriter& /*w*/, const GiveWay& /*m*/) {}

void put(WireWriter& /*w*/, const StandIn& /*m*/) {}

void put(WireWriter& w, const RanksLeft& m) {
  w.put(static_cast<std::uint32_t>(m.ranks.size()));
  for (const Rank rank : m.ranks) {
    w.put(rank);
  }
}

void put(WireWriter& w, const SomeJoined& m) {
  w.put_list(m.ranks);
  put(w, m.counts);
}

void put(WireWriter& w, const StandInOp& m) {
  w.put_string(m.name);
  w.put(m.use);
  put(w, m.meta);
}

void put(WireWriter& w, const AllJoined& m) {
  w.put(static_cast<std::int32_t>(m.last));
  put(w, m.resets);
}

void put(WireWriter& w, const TraceSwitch& m) {
  w.put(static_cast<std::uint8_t>(m.on));
}

template <class Variant>
std::vector<std::byte> encode_variant(const Variant& message) {
  WireWriter writer;
  writer.put(static_cast<std::uint8_t>(message.index()));
  std::visit([&](const auto& m) { put(writer, m); }, message);
  return std::move(writer).take();
}

// ---- decoding ----

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

template <class T>
struct Tag {};

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

// Reads the alternative with number `index`; an unknown number fails the reader.
template <class Variant, std::size_t I = 0>
Variant get_alternative(WireReader& r, std::size_t index) {
  if constexpr (I == std::variant_size_v<Variant>) {
    r.fail();
    return Variant{};
  } else {
    if (index == I) {
      return get(r, Tag<std::variant_alternative_t<I, Variant>>{});
    }
    return get_alternative<Variant, I + 1>(r, index);
  }
}

template <class Variant>
Result<Variant> decode_variant(ConstBytes bytes, std::string_view what) {
  WireReader reader(bytes);
  const auto index = reader.get<std::uint8_t>();
  Variant message = get_alternative<Variant>(reader, index);
  SRT_TRY(reader.finish(what));
  return message;
}

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccdULL;
  return hash ^ (hash >> 33);
}

}  // namespace

bool OpMeta::compatible(const OpMeta& o) const {
  if (kind != o.kind || dtype != o.dtype || reduce_op != o.reduce_op || root != o.root || device != o.device ||
      prescale != o.prescale || postscale != o.postscale || strides != o.strides || dims.size() != o.dims.size()) {
    return false;
  }
  for (std::size_t i = first_dim_is_free(kind) ? 1 : 0; i < dims.size(); ++i) {
    if (dims[i] != o.dims[i]) {
      return false;
    }
  }
  return true;
}

std::uint16_t OpMeta::fingerprint() const {
  std::uint64_t h = mix(static_cast<std::uint64_t>(kind), static_cast<std::uint64_t>(dtype));
  h = mix(h, static_cast<std::uint64_t>(reduce_op));
  h = mix(h, static_cast<std::uint64_t>(root));
  h = mix(h, static_cast<std::uint64_t>(device));
  h = mix(h, std::bit_cast<std::uint64_t>(prescale));
  h = mix(h, std::bit_cast<std::uint64_t>(postscale));
  h = mix(h, dims.size());
  for (std::size_t i = first_dim_is_free(kind) ? 1 : 0; i < dims.size(); ++i) {
    h = mix(h, static_cast<std::uint64_t>(dims[i]));
  }
  for (const std::int64_t stride : strides) {
    h = mix(h, static_cast<std::uint64_t>(stride));
  }
  return static_cast<std::uint16_t>(h);
}

std::string OpMeta::to_string() const {
  std::string text(op_kind_name(kind));
  if (kind == OpKind::kBarrier) {
    return text;
  }
  if (kind == OpKind::kAllreduce || kind == OpKind::kReduceScatter) {
    text += " " + std::string(reduce_op_name(reduce_op));
  }
  text += " " + std::string(dtype_name(dtype)) + " " + dims_to_string(dims);
  if (!strides.empty()) {
    text += " strides " + dims_to_string(strides);
  }
  if (kind == OpKind::kBroadcast) {
    text += " root " + std::to_string(root);
  }
  if (prescale != 1.0 || postscale != 1.0) {
    text += " scaled by " + std::to_string(prescale) + ", " + std::to_string(postscale);
  }
  return text + (device == DeviceType::kCpu ? "" : " on a GPU");
}

std::vector<std::byte> encode(const MemberMessage& message) {
  return encode_variant(message);
}
std::vector<std::byte> encode(const CoordinatorMessage& message) {
  return encode_variant(message);
}

Result<MemberMessage> decode_member_message(ConstBytes bytes) {
  return decode_variant<MemberMessage>(bytes, "control message of a member");
}

Result<CoordinatorMessage> decode_coordinator_message(ConstBytes bytes) {
  return decode_variant<CoordinatorMessage>(bytes, "control message of the coordinator");
}

}  // namespace sirtaki::control
