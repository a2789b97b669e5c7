// Control messages between a member (the engine of one rank) and the coordinator, with their bounded wire form.
//
// MemberMessage travels from member to coordinator, CoordinatorMessage from coordinator to members. Both are opaque
// payloads of the rendezvous connection, in order on each connection. docs/wire_format.md lists them. Plain values;
// pure.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/tensor.h"
#include "runtime/base/types.h"

namespace sirtaki::control {

// The properties of an operation by name on which all ranks must agree before it runs.
struct OpMeta {
  OpKind kind = OpKind::kAllreduce;
  DType dtype = DType::kF32;
  ReduceOp reduce_op = ReduceOp::kSum;
  Rank root = 0;
  DeviceType device = DeviceType::kCpu;
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<std::int64_t> dims;     // the first may differ between ranks for allgather and alltoall
  std::vector<std::int64_t> strides;  // strides of the memory in elements; empty: row-major

  // Returns true if the two ranks may take part in one operation.
  bool compatible(const OpMeta& other) const;
  // Returns 16 bits that differ (almost always) if the metas are not compatible. They are part of the tag on the wire,
  // so that ranks that disagree never mix their bytes.
  std::uint16_t fingerprint() const;
  std::string to_string() const;  // "allreduce sum float32 [2, 3]"
};

// ---- member -> coordinator ----

// Announces use number `use` of `name` on this rank, with its properties.
struct Announce {
  std::string name;
  std::uint64_t use = 0;
  OpMeta meta;
};

// Reports that a use ended with an error that the others may not know.
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

// Reports that this rank cannot complete the current step of the stream.
struct StreamAbort {
  StreamId stream;
  std::uint32_t attempt = 0;
  std::uint64_t step = 0;
  Status status;
};

// Reports that this rank has tensors without a gradient in this step: from now on all ranks exchange which rank has
// which gradient.
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

// Lists the operations in flight on this rank. It is sent after a moment of waiting without progress, after each change
// of such a list, occasionally while other work makes progress, and in answer to Query. An empty list means that
// nothing is in flight.
struct Waiting {
  bool blocked = false;        // every thread that ever waits is waiting now, and nothing makes progress
  bool gives_way = false;      // one of these threads continues without its result after GiveWay
  std::uint64_t progress = 0;  // changes whenever this rank submits or completes an operation
  std::vector<WaitEntry> entries;
  bool operator==(const Waiting&) const = default;
};

// Carries recorded spans (base/timeline.h encodes them); the hub writes them to the trace file of the job.
struct TraceChunk {
  std::vector<std::byte> records;
  bool last = false;
};

struct TraceRequest {
  bool start = false;
  std::string path;
};

// The last message of a rank that leaves in order: for each name, the number of uses that it has submitted and
// completed. A rank may complete a use before the others have submitted it (the root of a broadcast), and leave.
struct Leaving {
  struct Count {
    std::string name;
    std::uint64_t uses = 0;
    bool operator==(const Count&) const = default;
  };
  std::vector<Count> counts;  // sorted by name
  bool operator==(const Leaving&) const = default;
};

// A place between two steps of a stream.
struct StreamPlace {
  StreamId stream;
  std::uint32_t attempt = 0;
  std::uint64_t step = 0;  // the next step
  bool operator==(const StreamPlace&) const = default;
};

// Reports that this rank has no more data: from these places on it contributes zeros while others continue.
struct Joined {
  std::vector<StreamPlace> places;
  std::vector<Leaving::Count> counts;  // uses submitted; this rank submits no more until all ranks have joined
  bool operator==(const Joined&) const = default;
};

// Answers AskUnused with the listed names that this rank has not used since and has not in flight, and with their
// numbers of uses. The rank begins no use of them until Forgotten.
struct Unused {
  std::vector<Leaving::Count> counts;
  bool operator==(const Unused&) const = default;
};

// Reports that the job has to end although all ranks live: this rank has lost its path to the coordinator over the tree
// of relays, or its GPU.
struct JobBroken {
  Status status;
};

using MemberMessage = std::variant<Announce, OpFailed, StreamOpen, StreamAbort, StreamUnused, StreamClose, Waiting,
                                   TraceChunk, TraceRequest, Leaving, Joined, JobBroken, Unused>;

// ---- coordinator -> members ----

// All ranks have announced this use and agree. Ranks that have not started it start it now.
struct Agreed {
  std::string name;
  std::uint64_t use = 0;
  std::uint32_t id = 0;
};

// A rank announced this use although the name was agreed: the receiver announces it, too, now or when it submits it.
struct Recall {
  std::uint32_t id = 0;
  std::uint64_t use = 0;
};

// This use ends with `status` on all ranks. On a rank that has not submitted it yet, the submission fails with the same
// status if `everywhere` is set; otherwise the number is skipped, because the use may never come.
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
// receives the end of the previous step completes that one first, because all others have. Without `everywhere`, the
// program of a rank that has not begun the step gets no error.
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

// The job ends.
struct JobFailed {
  Status status;
};

struct TraceSwitch {
  bool on = false;
};

// Requests Waiting.
struct Query {};

// Every rank waits for an operation that another rank has not submitted, and this rank may submit more if it does not
// wait.
struct GiveWay {};

// Sent to a rank that has joined while others have not: it takes part in their steps.
struct StandIn {};

// Every rank has joined, `last` as the last one. At each place, the step that some ranks have begun is void, and the
// next is step 0 of the given attempt; earlier steps are completed first.
struct AllJoined {
  Rank last = 0;
  std::vector<StreamPlace> resets;
};

// These ranks have shut down in order. Used only in jobs with a tree of relays, where the notice on the own connection
// of a rank may overtake earlier agreements.
struct RanksLeft {
  std::vector<Rank> ranks;
};

// Sent to ranks that have not joined while these have: they announce every use until all ranks have joined, and also
// uses in flight that one of `ranks` has not submitted, by its counts. Without it, known names would start without a
// question.
struct SomeJoined {
  std::vector<Rank> ranks;
  std::vector<Leaving::Count> counts;
};

// Sent to a rank that has joined: all others take part in this use, so it takes part with zeros, or without rows.
// Agreed follows.
struct StandInOp {
  std::string name;
  std::uint64_t use = 0;
  OpMeta meta;
};

// The job has more names than its limit: the receiver answers with Unused.
struct AskUnused {
  std::vector<std::string> names;
};

// All ranks forget `names`, so that their next use is the first; names in `kept` continue.
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
