#include "runtime/control/messages.h"

#include <bit>
#include <type_traits>
#include <utility>

#include "runtime/base/wire.h"
#include "runtime/control/message_kinds.h"

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

void put(WireWriter& w, const Unused& m) {
  put(w, m.counts);
}

void put(WireWriter& w, const std::vector<std::string>& names) {
  w.put(static_cast<std::uint32_t>(names.size()));
  for (const std::string& name : names) {
    w.put_string(name);
  }
}

void put(WireWriter& w, const AskUnused& m) {
  put(w, m.names);
}

void put(WireWriter& w, const Forgotten& m) {
  put(w, m.names);
  put(w, m.kept);
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

// Writes a message of any type.
constexpr auto kPut = [](WireWriter& w, const auto& message) { put(w, message); };

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
  return encode_variant(message, kPut);
}
std::vector<std::byte> encode(const CoordinatorMessage& message) {
  return encode_variant(message, kPut);
}

}  // namespace sirtaki::control
