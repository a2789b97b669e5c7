#include <algorithm>
#include <cstring>

#include "runtime/net/collectives/algorithms.h"
#include "runtime/net/collectives/reducer.h"

namespace sirtaki::net {
namespace {

void copy(ConstBytes from, Bytes to) {
  if (!from.empty() && from.data() != to.data()) {
    std::memmove(to.data(), from.data(), from.size());
  }
}

class DirectAllgather final : public Operation {
 public:
  using Operation::Operation;

 private:
  void begin() override {
    const auto blocks = counted_blocks(args().recv_counts, item());
    for (int step = 1; step < size(); ++step) {
      const Rank from = (rank() + size() - step) % size();
      const Block& block = blocks[static_cast<std::size_t>(from)];
      recv(from, 0, args().out.subspan(block.begin, block.size), [] {});
    }
    for (int step = 1; step < size(); ++step) {
      send((rank() + step) % size(), 0, args().in);
    }
    const Block& own = blocks[static_cast<std::size_t>(rank())];
    copy(args().in, args().out.subspan(own.begin, own.size));
  }
};

class DirectAlltoall final : public Operation {
 public:
  using Operation::Operation;

 private:
  void begin() override {
    const auto outgoing = counted_blocks(args().send_counts, item());
    const auto incoming = counted_blocks(args().recv_counts, item());
    const auto at = [](const std::vector<Block>& blocks, Rank rank) { return blocks[static_cast<std::size_t>(rank)]; };
    for (int step = 1; step < size(); ++step) {
      const Rank from = (rank() + size() - step) % size();
      recv(from, 0, args().out.subspan(at(incoming, from).begin, at(incoming, from).size), [] {});
    }
    for (int step = 1; step < size(); ++step) {
      const Rank to = (rank() + step) % size();
      send(to, 0, args().in.subspan(at(outgoing, to).begin, at(outgoing, to).size));
    }
    copy(args().in.subspan(at(outgoing, rank()).begin, at(outgoing, rank()).size),
         args().out.subspan(at(incoming, rank()).begin, at(incoming, rank()).size));
  }
};

class FlatBroadcast final : public Operation {
 public:
  using Operation::Operation;

 private:
  void begin() override {
    if (rank() != args().root) {
      recv(args().root, 0, args().out, [] {});
      return;
    }
    for (int step = 1; step < size(); ++step) {
      send((rank() + step) % size(), 0, args().out);
    }
  }
};

// The root sends one block to each other rank, which forwards it to the rest, segment by segment: the link of the root
// carries the data once.
class ScatterBroadcast final : public Operation {
 public:
  using Operation::Operation;

 private:
  static constexpr std::uint32_t slot_of(std::size_t index) { return static_cast<std::uint32_t>(index); }

  void begin() override {
    segment_ = std::max(options().segment_bytes / item(), std::size_t{1}) * item();
    blocks_ = equal_blocks(args().out.size() / item(), item(), size() - 1);
    next_.assign(static_cast<std::size_t>(size()), 0);
    for (int step = 1; step < size(); ++step) {
      const Rank peer = (args().root + step) % size();
      for (int ahead = 0; ahead < options().window; ++ahead) {
        next(peer);
      }
    }
  }

  // Returns the block that `owner` forwards.
  const Block& block_of(Rank owner) const {
    return blocks_[static_cast<std::size_t>((owner + size() - args().root) % size() - 1)];
  }

  // The root sends the next segment of the owner; the owner receives and forwards it; the others receive it from there.
  void next(Rank owner) {
    const std::size_t index = next_[static_cast<std::size_t>(owner)];
    if (index >= segment_count(block_of(owner), segment_)) {
      return;
    }
    ++next_[static_cast<std::size_t>(owner)];
    const Block segment = segment_of(block_of(owner), segment_, index);
    const Bytes bytes = args().out.subspan(segment.begin, segment.size);
    if (rank() == args().root) {
      send(owner, slot_of(index), bytes, [this, owner] { next(owner); });
    } else if (rank() == owner) {
      recv(args().root, slot_of(index), bytes, [this, owner, index, bytes] {
        pass_on(index, bytes);
        next(owner);
      });
    } else {
      recv(owner, slot_of(index), bytes, [this, owner] { next(owner); });
    }
  }

  void pass_on(std::size_t index, Bytes bytes) {
    for (int step = 1; step < size(); ++step) {
      const Rank peer = (rank() + step) % size();
      if (peer != args().root) {
        send(peer, slot_of(index), bytes);
      }
    }
  }

  std::size_t segment_ = 0;
  std::vector<Block> blocks_;
  std::vector<std::size_t> next_;  // index: owner; the segment to start next
};

// Dissemination barrier: after round k, every rank has heard of 2^(k+1) ranks, directly or indirectly.
class DirectBarrier final : public Operation {
 public:
  using Operation::Operation;

 private:
  void begin() override { round(0, 1); }

  void round(std::uint32_t number, int distance) {
    if (distance >= size()) {
      return;
    }
    send((rank() + distance) % size(), number, {});
    recv((rank() + size() - distance) % size(), number, {},
         [this, number, distance] { round(number + 1, 2 * distance); });
  }
};

}  // namespace

std::shared_ptr<Operation> make_broadcast(Operation::Setup setup) {
  const std::size_t bytes = setup.args.out.size();
  if (setup.link->size() <= 2 || bytes <= setup.options->broadcast_bytes) {
    return std::make_shared<FlatBroadcast>(std::move(setup));
  }
  return std::make_shared<ScatterBroadcast>(std::move(setup));
}

std::shared_ptr<Operation> make_allgather(Operation::Setup setup) {
  return std::make_shared<DirectAllgather>(std::move(setup));
}

std::shared_ptr<Operation> make_alltoall(Operation::Setup setup) {
  return std::make_shared<DirectAlltoall>(std::move(setup));
}

std::shared_ptr<Operation> make_barrier(Operation::Setup setup) {
  return std::make_shared<DirectBarrier>(std::move(setup));
}

}  // namespace sirtaki::net
