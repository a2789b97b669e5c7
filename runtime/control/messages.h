// Control messages between a member (one rank's engine) and the coordinator, with their bounded wire form.
//
// Member -> coordinator: MemberMessage. Coordinator -> members: CoordinatorMessage. Both travel as opaque payloads of
// the rendezvous connection, in order per connection. docs/wire_format.md lists them. Plain values; pure.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/tensor.h"
#include "runtime/base/types.h"

namespace sirtaki::control {

// What all ranks must agree on before an operation by name may run.
struct OpMeta {
  OpKind kind = OpKind::kAllreduce;
  DType dtype = DType::kF32;
  ReduceOp reduce_op = ReduceOp::kSum;
  Rank root = 0;
  DeviceType device = DeviceType::kCpu;
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<std::int64_t> dims;     // the first may differ between ranks for allgather and alltoall
  std::vector<std::int64_t> strides;  // of the memory in elements; empty: row-major

  // True when the two ranks may take part in one operation.
  bool compatible(const OpMeta& other) const;
  // 16 bits that differ (almost always) when the metas are not compatible; part of the tag on the wire, so that ranks
  // that disagree never mix their bytes.
  std::uint16_t fingerprint() const;
  std::string to_string() const;  // "allreduce sum float32 [2, 3]"
};

// ---- member -> coordinator ----

// Use number `use` of `name` on this rank, with what it is.
struct Announce {
  std::string name;
  std::uint64_t use = 0;
  OpMeta meta;
};

// A use ended with an error that the others may not know of.
struct OpFailed {
  std::string name;
  std::uint64_t use = 0;
  Status status;
};

struct StreamTensorMeta {
  std::string name;
  DType dtype = DType::kF32;
  DeviceType device = DeviceType::kCpu;
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> strides;
  bool operator==(const StreamTensorMeta&) const = default;
};

struct StreamOpen {
  std::string name;
  std::uint64_t plan_digest = 0;
  ReduceOp reduce_op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  std::string codec;
  std::vector<StreamTensorMeta> tensors;
  bool operator==(const StreamOpen&) const = default;
};

// This rank cannot go on with the stream's current step.
struct StreamAbort {
  StreamId stream;
  std::uint32_t attempt = 0;
  std::uint64_t step = 0;
  Status status;
};

// This rank has tensors without a gradient in this step: all ranks are to exchange who has which, from now on.
struct StreamUnused {
  StreamId stream;
  std::uint32_t attempt = 0;
  std::uint64_t step = 0;
};

struct StreamClose {
  StreamId stream;
};

enum class WaitKind : std::uint8_t { kOp = 0, kStreamOpen = 1, kStreamStep = 2 };

struct WaitEntry {
  WaitKind kind = WaitKind::kOp;
  std::string name;
  std::uint64_t use = 0;    // kStreamStep: attempt << 32 | step
  std::uint16_t check = 0;  // fingerprint; kOp only
  std::string what;         // for people: "allreduce sum float32 [2, 3]"
  bool operator==(const WaitEntry&) const = default;
};

// What is in flight on this rank; sent when it has waited for a moment in which nothing moved, when that changes, now
// and then while other work moves, and on Query. An empty list: nothing.
struct Waiting {
  bool blocked = false;        // every thread that ever waits is waiting now, and nothing moves
  bool gives_way = false;      // a thread among them goes on without its result when it gets GiveWay
  std::uint64_t progress = 0;  // changes whenever this rank submits or completes anything
  std::vector<WaitEntry> entries;
  bool operator==(const Waiting&) const = default;
};

// Recorded spans (base/timeline.h encodes them); the hub writes them to the job's trace file.
struct TraceChunk {
  std::vector<std::byte> records;
  bool last = false;
};

struct TraceRequest {
  bool start = false;
  std::string path;
};

// The last word of a rank that leaves in order: how many uses of each name it has submitted and seen through. A rank
// may complete a use before the others have submitted it (a broadcast's root), and leave.
struct Leaving {
  struct Count {
    std::string name;
    std::uint64_t uses = 0;
    bool operator==(const Count&) const = default;
  };
  std::vector<Count> counts;  // by name
  bool operator==(const Leaving&) const = default;
};

// A place between two steps of a stream.
struct StreamPlace {
  StreamId stream;
  std::uint32_t attempt = 0;
  std::uint64_t step = 0;  // the next
  bool operator==(const StreamPlace&) const = default;
};

// This rank has no more data: others may go on stepping, it takes part with zeros, from these places on.
struct Joined {
  std::vector<StreamPlace> places;
  std::vector<Leaving::Count> counts;  // uses submitted; it submits no more until all ranks have joined
  bool operator==(const Joined&) const = default;
};

// Answers AskUnused: those of the names asked for that this rank has not used since and has nothing in flight of, with
// their uses so far. The rank begins no use of them until Forgotten.
struct Unused {
  std::vector<Leaving::Count> counts;
  bool operator==(const Unused&) const = default;
};

// All ranks live, and this one knows that the job cannot go on: it has lost the way to the coordinator over the tree of
// relays, or its GPU. The job is to end.
struct JobBroken {
  Status status;
};

using MemberMessage = std::variant<Announce, OpFailed, StreamOpen, StreamAbort, StreamUnused, StreamClose, Waiting,
                                   TraceChunk, TraceRequest, Leaving, Joined, JobBroken, Unused>;

// ---- coordinator -> members ----

// All ranks have announced this use and agree. Who has not started it starts it now.
struct Agreed {
  std::string name;
  std::uint64_t use = 0;
  std::uint32_t id = 0;
};

// A rank announced this use although the name was agreed: announce it too, now or when it comes.
struct Recall {
  std::uint32_t id = 0;
  std::uint64_t use = 0;
};

// This use ends with `status` on all ranks. A rank that has not submitted it yet: with `everywhere`, its submission
// fails with the same status; else the number is skipped (nobody knows that it would ever come).
struct OpCancelled {
  std::string name;
  std::uint64_t use = 0;
  bool everywhere = false;
  Status status;
};

struct StreamAgreed {
  std::string name;
  StreamId stream;
};

struct StreamRefused {
  std::string name;
  Status status;
};

// Step `step` of the attempt before `attempt` is void on all ranks; the next is step 0 of `attempt`. A rank that still
// receives the last of the step before completes it first: all others have. Without `everywhere`, a rank that has not
// begun the step is not told of it.
struct StreamAborted {
  StreamId stream;
  std::uint32_t attempt = 0;
  std::uint64_t step = 0;
  bool everywhere = true;
  Status status;
};

// From this step on, the ranks exchange which tensors had a gradient.
struct StreamFlags {
  StreamId stream;
  std::uint32_t attempt = 0;
  std::uint64_t step = 0;
};

// The job cannot go on.
struct JobFailed {
  Status status;
};

struct TraceSwitch {
  bool on = false;
};

// Answer with Waiting.
struct Query {};

// Every rank waits for what another has not submitted, and this one may submit more if it does not wait.
struct GiveWay {};

// To a rank that has joined while others have not: take part in their steps.
struct StandIn {};

// Every rank has joined, `last` as the last. At each place, the step that some ranks have begun is void, and the next
// is step 0 of the attempt given; the steps before it are completed first.
struct AllJoined {
  Rank last = 0;
  std::vector<StreamPlace> resets;
};

// These ranks have shut down in order. Only in jobs with a tree of relays: there, what was agreed before may still be
// on its way when the notice on the rank's own connection comes.
struct RanksLeft {
  std::vector<Rank> ranks;
};

// To ranks that have not joined while these have: announce every use until all ranks have joined, and those that have
// begun already and that one of `ranks` has not submitted, by its counts. What was agreed once would begin unasked.
struct SomeJoined {
  std::vector<Rank> ranks;
  std::vector<Leaving::Count> counts;
};

// To a rank that has joined: all others take part in this use, so take part with zeros, or without rows. Agreed
// follows.
struct StandInOp {
  std::string name;
  std::uint64_t use = 0;
  OpMeta meta;
};

// The job knows more names than it is to keep: answer with Unused.
struct AskUnused {
  std::vector<std::string> names;
};

// Of the names that were asked for, all ranks forget these, so that their next use is the first; the others go on.
struct Forgotten {
  std::vector<std::string> names;
  std::vector<std::string> kept;
};

using CoordinatorMessage = std::variant<Agreed, Recall, OpCancelled, StreamAgreed, StreamRefused, StreamAborted,
                                        StreamFlags, JobFailed, TraceSwitch, Query, StandIn, AllJoined, RanksLeft,
                                        SomeJoined, StandInOp, GiveWay, AskUnused, Forgotten>;

std::vector<std::byte> encode(const MemberMessage& message);
std::vector<std::byte> encode(const CoordinatorMessage& message);
Result<MemberMessage> decode_member_message(ConstBytes bytes);
Result<CoordinatorMessage> decode_coordinator_message(ConstBytes bytes);

}  // namespace sirtaki::control
