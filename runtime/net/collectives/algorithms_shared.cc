#include <algorithm>
#include <cstring>

#include "runtime/net/collectives/algorithms.h"
#include "runtime/net/collectives/reducer.h"
#include "runtime/net/collectives/shared_operation.h"

namespace sirtaki::net {
namespace {

using Effect = TurnQueue::Effect;

// Data of one rank for one or several readers, segment by segment.
struct Flow {
  std::vector<Rank> peers;   // the readers; for a receiver, the sender
  Bytes memory;              // read only by its sender
  std::vector<int> missing;  // index: place in the window; readers that have not taken the segment
};

// Allgather, broadcast and alltoall as a list of flows: sender, readers and memory.
class SharedMove final : public SharedOperation {
 public:
  using SharedOperation::SharedOperation;

 private:
  void begin() override {
    segment_ = std::max(options().segment_bytes / item(), std::size_t{1}) * item();
    make_flows();
    for (std::size_t flow = 0; flow < incoming_.size(); ++flow) {
      receive(flow);
    }
    for (std::size_t flow = 0; flow < outgoing_.size(); ++flow) {
      publish_flow(flow);
    }
    copy_own();
  }

  std::size_t window() const { return static_cast<std::size_t>(options().window); }
  Block segment(const Flow& flow, std::size_t index) const {
    return segment_of({0, flow.memory.size()}, segment_, index);
  }
  std::size_t count(const Flow& flow) const { return segment_count({0, flow.memory.size()}, segment_); }
  bool small(const Flow& flow) const { return flow.memory.size() <= options().exchange_bytes; }
  // The counts of an alltoall differ between ranks, so both ends of a flow compare its length.
  static std::uint32_t check_of(const Flow& flow) {
    return static_cast<std::uint32_t>(flow.memory.size()) * 2654435761U;
  }

  void make_flows() {
    if (args().kind == OpKind::kBroadcast) {
      if (rank() == args().root) {
        outgoing_.push_back({others(), args().out, {}});
      } else {
        incoming_.push_back({{args().root}, args().out, {}});
      }
      return;
    }
    const auto incoming = counted_blocks(args().recv_counts, item());
    own_out_ = part(args().out, incoming, rank());
    for (const Rank peer : others()) {
      incoming_.push_back({{peer}, part(args().out, incoming, peer), {}});
    }
    // Only the receiver of a flow writes its memory.
    const Bytes in(const_cast<std::byte*>(args().in.data()), args().in.size());
    if (args().kind == OpKind::kAllgather) {
      own_in_ = in;
      outgoing_.push_back({others(), in, {}});
      return;
    }
    const auto outgoing = counted_blocks(args().send_counts, item());
    own_in_ = part(in, outgoing, rank());
    for (const Rank peer : others()) {
      outgoing_.push_back({{peer}, part(in, outgoing, peer), {}});
    }
  }

  static Bytes part(Bytes memory, const std::vector<Block>& blocks, Rank rank) {
    const Block& block = blocks[static_cast<std::size_t>(rank)];
    return memory.subspan(block.begin, block.size);
  }

  void copy_own() {
    if (own_in_.data() == own_out_.data()) {
      return;
    }
    for (std::size_t begin = 0; begin < own_in_.size(); begin += segment_) {
      const std::size_t bytes = std::min(segment_, own_in_.size() - begin);
      turn(Effect::kFrees, bytes,
           [this, begin, bytes] { std::memmove(own_out_.data() + begin, own_in_.data() + begin, bytes); });
    }
  }

  void publish_flow(std::size_t number) {
    Flow& flow = outgoing_[number];
    if (small(flow)) {
      for (const Rank peer : flow.peers) {
        send(
            peer, slot_of(Kind::kData, 0), flow.memory, [] {}, check_of(flow));
      }
      return;
    }
    flow.missing.assign(window(), 0);
    for (std::size_t index = 0; index < window(); ++index) {
      publish_segment(number, index);
    }
  }

  void publish_segment(std::size_t number, std::size_t index) {
    Flow& flow = outgoing_[number];
    if (index >= count(flow)) {
      return;
    }
    if (index + window() < count(flow)) {
      flow.missing[index % window()] = static_cast<int>(flow.peers.size());
      for (const Rank peer : flow.peers) {
        recv(peer, slot_of(Kind::kTaken, index), {}, [this, number, index] {
          if (--outgoing_[number].missing[index % window()] == 0) {
            publish_segment(number, index + window());
          }
        });
      }
    }
    turn(Effect::kFills, segment(flow, index).size, [this, number, index] {
      const Flow& out = outgoing_[number];
      const Block part = segment(out, index);
      publish(out.peers, slot_of(Kind::kData, index), out.memory.subspan(part.begin, part.size), check_of(out));
    });
  }

  void receive(std::size_t number) {
    const Flow& flow = incoming_[number];
    if (small(flow)) {
      recv(
          flow.peers[0], slot_of(Kind::kData, 0), flow.memory, [] {}, check_of(flow));
      return;
    }
    arrivals_.resize(incoming_.size());
    arrivals_[number].resize(window());
    for (std::size_t index = 0; index < window(); ++index) {
      receive_segment(number, index);
    }
  }

  void receive_segment(std::size_t number, std::size_t index) {
    const Flow& flow = incoming_[number];
    if (index >= count(flow)) {
      return;
    }
    const auto arrived = [this, number, index](Arrival data) {
      arrivals_[number][index % window()] = std::move(data);
      turn(Effect::kFrees, arrivals_[number][index % window()].data.size(),
           [this, number, index] { take(number, index); });
    };
    fetch(flow.peers[0], slot_of(Kind::kData, index), segment(flow, index), arrived, check_of(flow));
  }

  void take(std::size_t number, std::size_t index) {
    const Flow& flow = incoming_[number];
    Arrival& arrival = arrivals_[number][index % window()];
    std::copy(arrival.data.begin(), arrival.data.end(), flow.memory.data() + segment(flow, index).begin);
    arrival = Arrival();
    if (index + window() < count(flow)) {
      receive_segment(number, index + window());
      send(flow.peers[0], slot_of(Kind::kTaken, index), {});
    }
  }

  std::size_t segment_ = 0;
  std::vector<Flow> outgoing_;
  std::vector<Flow> incoming_;
  std::vector<std::vector<Arrival>> arrivals_;  // index: flow, place in the window; not copied yet
  Bytes own_in_;
  Bytes own_out_;
};

}  // namespace

bool goes_through_shared_memory(const Operation::Setup& setup) {
  const CollectiveArgs& args = setup.args;
  const std::size_t small = setup.options->exchange_bytes;
  if (!setup.shared) {
    return false;
  }
  switch (args.kind) {
    case OpKind::kAllreduce:
      return args.in.size() > small &&
             args.in.size() / dtype_size(args.dtype) >= static_cast<std::size_t>(setup.link->size());
    case OpKind::kReduceScatter:
      return args.in.size() > small;
    case OpKind::kAllgather:
    case OpKind::kBroadcast:
      return args.out.size() > small;
    case OpKind::kAlltoall:
      return true;
    case OpKind::kBarrier:
      return false;
  }
  return false;
}

std::shared_ptr<Operation> make_shared_operation(Operation::Setup setup) {
  const OpKind kind = setup.args.kind;
  const bool reduces = kind == OpKind::kAllreduce || kind == OpKind::kReduceScatter;
  if (reduces) {
    return make_shared_reduction(std::move(setup));
  }
  return std::make_shared<SharedMove>(std::move(setup));
}

}  // namespace sirtaki::net
