#include <algorithm>
#include <cstring>

#include "runtime/net/collectives/algorithms.h"
#include "runtime/net/collectives/combine.h"
#include "runtime/net/collectives/reducer.h"

namespace sirtaki::net {
namespace {

// Every rank sends all its data to all ranks and reduces everything.
class ExchangeAllreduce final : public Operation {
 public:
  using Operation::Operation;

 private:
  void begin() override {
    const ConstBytes in = args().in;
    stage_ = staging(in.size() * static_cast<std::size_t>(size() - 1));
    missing_ = 2 * (size() - 1);
    for (int step = 1; step < size(); ++step) {
      const Rank peer = (rank() + step) % size();
      recv(peer, 0, Bytes(place(peer), in.size()), [this] { arrived(); });
    }
    // Sends must have ended, too, because the output may be the memory they read.
    for (int step = 1; step < size(); ++step) {
      send((rank() + step) % size(), 0, in, [this] { arrived(); });
    }
    if (size() == 1) {
      reduce();
    }
  }

  std::byte* place(Rank peer) const {
    const auto column = static_cast<std::size_t>(peer < rank() ? peer : peer - 1);
    return stage_.data() + column * args().in.size();
  }

  void arrived() {
    if (--missing_ == 0) {
      reduce();
    }
  }

  void reduce() {
    std::vector<const std::byte*> sources(static_cast<std::size_t>(size()));
    for (Rank source = 0; source < size(); ++source) {
      sources[static_cast<std::size_t>(source)] = source == rank() ? args().in.data() : place(source);
    }
    if (options().hosts.several_with_several()) {
      combine_by_host(args(), options().hosts, sources, args().out);
    } else {
      combine(args(), sources, args().out);
    }
  }

  Staging stage_;
  int missing_ = 0;
};

// Reduce-scatter, then every rank sends its block of the result to all, segment by segment. Input and output may be the
// same memory: a segment of the result arrives only after its owner has received the input of this rank to it.
class DirectAllreduce final : public SegmentReducer {
 public:
  using SegmentReducer::SegmentReducer;

 private:
  void begin() override {
    const std::vector<Block> blocks = equal_blocks(args().in.size() / item(), item(), size());
    const Block& own = blocks[static_cast<std::size_t>(rank())];
    next_gather_.assign(static_cast<std::size_t>(size()), 0);
    reduce_scatter(blocks, args().out.subspan(own.begin, own.size));
    for (int step = 1; step < size(); ++step) {
      const Rank peer = (rank() + size() - step) % size();
      for (std::size_t ahead = 0; ahead < window(); ++ahead) {
        gather_next(peer);
      }
    }
  }

  void gather_next(Rank peer) {
    const Block& block = blocks()[static_cast<std::size_t>(peer)];
    const std::size_t index = next_gather_[static_cast<std::size_t>(peer)];
    if (index >= segment_count(block, segment_bytes())) {
      return;
    }
    ++next_gather_[static_cast<std::size_t>(peer)];
    const Block segment = segment_of(block, segment_bytes(), index);
    recv(peer, gather_slot(index), args().out.subspan(segment.begin, segment.size), [this, peer] {
      gather_next(peer);
      received_one();
    });
  }

  void on_reduced(std::size_t index) override { gather(index); }

  std::vector<std::size_t> next_gather_;  // index: peer; the segment to receive next
};

class DirectReduceScatter final : public SegmentReducer {
 public:
  using SegmentReducer::SegmentReducer;

 private:
  void begin() override {
    if (size() == 1) {
      const std::byte* source = args().in.data();
      combine(args(), {&source, 1}, args().out);
      return;
    }
    reduce_scatter(counted_blocks(args().recv_counts, item()), args().out);
  }
  void on_reduced(std::size_t) override {}
};

}  // namespace

bool is_one_exchange(const CollectiveArgs& args, const DirectOptions& options, int size) {
  const auto elements = args.in.size() / dtype_size(args.dtype);
  return args.in.size() <= most_at_once(args, options) || elements < static_cast<std::size_t>(size);
}

std::shared_ptr<Operation> make_allreduce(Operation::Setup setup) {
  const int size = setup.link->size();
  if (size == 1 || is_one_exchange(setup.args, *setup.options, size)) {
    return std::make_shared<ExchangeAllreduce>(std::move(setup));
  }
  return std::make_shared<DirectAllreduce>(std::move(setup));
}

std::shared_ptr<Operation> make_reducescatter(Operation::Setup setup) {
  return std::make_shared<DirectReduceScatter>(std::move(setup));
}

}  // namespace sirtaki::net
