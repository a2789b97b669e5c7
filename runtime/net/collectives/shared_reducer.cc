#include <algorithm>
#include <map>

#include "runtime/net/collectives/algorithms.h"
#include "runtime/net/collectives/combine.h"
#include "runtime/net/collectives/reducer.h"
#include "runtime/net/collectives/shared_operation.h"

namespace sirtaki::net {
namespace {

using Effect = TurnQueue::Effect;

// Number of segments of a block between two ranks, if their size allows, so that both copy and sum at the same time.
// With more ranks there is always one with work, blocks are smaller and messages more numerous: one segment, up to
// twice as large.
constexpr std::size_t kSegmentsOfTwo = 2;
constexpr std::size_t kLeastSharedSegmentBytes = 128 * 1024;
// Size of the pieces in which a result is copied, so that each is still in the nearest cache.
constexpr std::size_t kPieceBytes = 64 * 1024;

// Reduce-scatter: every rank publishes block j of its input for rank j, which sums in rank order directly from the
// memory of the others. For an allreduce every rank publishes its result for all. In a SharedBuffer both are read in
// place.
class SharedReducer final : public SharedOperation {
 public:
  using SharedOperation::SharedOperation;

 private:
  struct Inputs {
    int missing = 0;
    std::vector<Arrival> by_rank;
  };

  bool gathers() const { return args().kind == OpKind::kAllreduce; }
  const Block& block_of(Rank rank) const { return blocks_[static_cast<std::size_t>(rank)]; }
  std::size_t count(Rank rank) const { return segment_count(block_of(rank), segment_); }
  Block segment(Rank rank, std::size_t index) const { return segment_of(block_of(rank), segment_, index); }
  std::size_t window() const { return static_cast<std::size_t>(options().window); }
  std::size_t& next_of(Rank peer) { return next_input_[static_cast<std::size_t>(peer)]; }

  void begin() override {
    blocks_ = gathers() ? equal_blocks(args().in.size() / item(), item(), size())
                        : counted_blocks(args().recv_counts, item());
    own_out_ = gathers() ? args().out.subspan(block_of(rank()).begin, block_of(rank()).size) : args().out;
    choose_segments();
    // Results arrive from all ranks, so all have read the published input when the operation ends.
    if (gathers() && args().in.data() == args().out.data()) {
      shared_page_ = publish_shared(others());
    }
    next_input_.assign(static_cast<std::size_t>(size()), 0);
    inputs_.resize(window());
    for (std::size_t index = 0; index < window(); ++index) {
      expect_inputs(index);
      for (const Rank peer : others()) {
        expect_answer(peer, index);
        publish_next(peer);
      }
    }
  }

  void choose_segments() {
    std::size_t largest = 0;
    for (const Block& block : blocks_) {
      largest = std::max(largest, block.size);
    }
    const std::size_t most = (size() == 2 ? 1 : 2) * options().segment_bytes;
    const std::size_t parts = size() == 2 ? kSegmentsOfTwo : 1;
    const std::size_t wanted = std::clamp(largest / parts, std::min(kLeastSharedSegmentBytes, most), most);
    segment_ = std::max(wanted / item(), std::size_t{1}) * item();
  }

  void publish_next(Rank peer) {
    const std::size_t index = next_of(peer)++;
    if (index >= count(peer)) {
      return;
    }
    if (shared_page_) {
      announce_shared({peer}, slot_of(Kind::kData, index), *shared_page_);
    } else {
      turn(Effect::kFills, segment(peer, index).size, [this, peer, index] {
        const Block part = segment(peer, index);
        publish({peer}, slot_of(Kind::kData, index), args().in.subspan(part.begin, part.size));
      });
    }
  }

  void expect_inputs(std::size_t index) {
    if (index >= count(rank())) {
      return;
    }
    Inputs& inputs = inputs_[index % window()];
    inputs.missing = size() - 1;
    inputs.by_rank.resize(static_cast<std::size_t>(size()));
    for (const Rank peer : others()) {
      fetch(peer, slot_of(Kind::kData, index), segment(rank(), index), [this, &inputs, peer, index](Arrival data) {
        inputs.by_rank[static_cast<std::size_t>(peer)] = std::move(data);
        if (--inputs.missing == 0) {
          turn(Effect::kFrees, segment(rank(), index).size, [this, index] { sum(index); });
        }
      });
    }
  }

  void sum(std::size_t index) {
    Inputs& inputs = inputs_[index % window()];
    const Block part = segment(rank(), index);
    const Bytes out = own_out_.subspan(part.begin - block_of(rank()).begin, part.size);
    const std::vector<Rank> readers = gathers() ? others() : std::vector<Rank>();
    const Room room = gathers() && !shared_page_ ? reserve(readers, part.size) : Room();
    const std::size_t piece = std::max(kPieceBytes / item(), std::size_t{1}) * item();
    for (std::size_t begin = 0; begin < part.size; begin += piece) {
      const Bytes result = out.subspan(begin, std::min(piece, part.size - begin));
      combine(args(), sources_at(inputs, part.begin, begin), result);
      if (room) {
        std::copy(result.begin(), result.end(), room->memory.data() + begin);
      }
    }
    inputs.by_rank.clear();
    expect_inputs(index + window());
    if (shared_page_) {
      announce_shared(readers, slot_of(Kind::kResult, index), *shared_page_);
    } else if (gathers()) {
      announce(readers, slot_of(Kind::kResult, index), room, out);
    } else if (index + window() < count(rank())) {
      for (const Rank peer : others()) {
        send(peer, slot_of(Kind::kTaken, index), {});
      }
    }
  }

  // Returns the input of every rank to a segment from byte `offset` on; `begin` is its offset in the whole input.
  std::vector<const std::byte*> sources_at(const Inputs& inputs, std::size_t begin, std::size_t offset) const {
    std::vector<const std::byte*> sources;
    for (const Arrival& input : inputs.by_rank) {
      sources.push_back(input.data.empty() ? nullptr : input.data.data() + offset);
    }
    sources[static_cast<std::size_t>(rank())] = args().in.data() + begin + offset;
    return sources;
  }

  // Receives the notice that `peer` has read the input of this rank to its segment `index`, so that the next one may be
  // published: its result, or an empty message if there is none.
  void expect_answer(Rank peer, std::size_t index) {
    if (gathers() && index < count(peer)) {
      fetch(peer, slot_of(Kind::kResult, index), segment(peer, index), [this, peer, index](Arrival data) {
        results_[{peer, index}] = std::move(data);
        turn(Effect::kFrees, segment(peer, index).size, [this, peer, index] { take_result(peer, index); });
      });
    } else if (!gathers() && index + window() < count(peer)) {
      recv(peer, slot_of(Kind::kTaken, index), {}, [this, peer, index] {
        expect_answer(peer, index + window());
        publish_next(peer);
      });
    }
  }

  void take_result(Rank peer, std::size_t index) {
    const Block part = segment(peer, index);
    const auto found = results_.find({peer, index});
    std::copy(found->second.data.begin(), found->second.data.end(), args().out.data() + part.begin);
    results_.erase(found);
    expect_answer(peer, index + window());
    publish_next(peer);
  }

  std::vector<Block> blocks_;
  Bytes own_out_;
  std::size_t segment_ = 0;
  SharedPage shared_page_;                                   // page of the SharedBuffer with input and result
  std::vector<std::size_t> next_input_;                      // index: peer; the segment to publish next
  std::vector<Inputs> inputs_;                               // index: place in the window
  std::map<std::pair<Rank, std::size_t>, Arrival> results_;  // not copied yet
};

}  // namespace

std::shared_ptr<Operation> make_shared_reduction(Operation::Setup setup) {
  return std::make_shared<SharedReducer>(std::move(setup));
}

}  // namespace sirtaki::net
