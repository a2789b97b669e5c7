#include "runtime/net/device/nccl/calls.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>

#include "runtime/base/check.h"

namespace sirtaki::net::nccl {
namespace {

using Call = Communicator::Call;

std::optional<Element> element_of(DType dtype) {
  switch (dtype) {
    case DType::kU8:
    case DType::kBool:
      return Element::kU8;
    case DType::kI8:
      return Element::kI8;
    case DType::kI32:
      return Element::kI32;
    case DType::kI64:
      return Element::kI64;
    case DType::kF16:
      return Element::kF16;
    case DType::kBF16:
      return Element::kBF16;
    case DType::kF32:
      return Element::kF32;
    case DType::kF64:
      return Element::kF64;
    case DType::kU16:
    case DType::kI16:
      return std::nullopt;
  }
  return std::nullopt;
}

// Bools are bytes of 0 or 1: "or" is their maximum, "and" their minimum.
Reduction reduction_of(const CollectiveArgs& args, int size) {
  if (averages_itself(args, size)) {
    return Reduction::kAverage;
  }
  const bool logical = args.dtype == DType::kBool;
  switch (args.op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return logical ? Reduction::kMax : Reduction::kSum;
    case ReduceOp::kProduct:
      return logical ? Reduction::kMin : Reduction::kProduct;
    case ReduceOp::kMin:
      return Reduction::kMin;
    case ReduceOp::kMax:
      return Reduction::kMax;
    case ReduceOp::kAdasum:
      break;
  }
  raise_bug(__FILE__, __LINE__, "reduce operation");
}

bool all_equal(const std::vector<std::int64_t>& counts) {
  return std::all_of(counts.begin(), counts.end(), [&](std::int64_t count) { return count == counts[0]; });
}

class Maker {
 public:
  Maker(const CollectiveArgs& args, Rank rank, int size, NativeStream stream)
      : args_(args), rank_(rank), size_(size), stream_(stream), item_(dtype_size(args.dtype)) {}

  std::vector<Call> allreduce() {
    if (!args_.out.empty()) {
      add([in = args_.in.data(), out = args_.out.data(), count = args_.out.size() / item_, element = element(),
           op = reduction_of(args_, size_), stream = stream_](const Api& api, CommHandle comm) {
        return api.all_reduce(in, out, count, element, op, comm, stream);
      });
    }
    return std::move(calls_);
  }

  std::vector<Call> broadcast() {
    if (!args_.out.empty()) {
      add_broadcast(args_.out.data(), args_.out, args_.root);
    }
    return std::move(calls_);
  }

  std::vector<Call> allgather() {
    if (args_.out.empty()) {
      return {};
    }
    if (all_equal(args_.recv_counts)) {
      add([in = args_.in.data(), out = args_.out.data(), bytes = args_.in.size(), stream = stream_](
              const Api& api, CommHandle comm) { return api.all_gather(in, out, bytes, Element::kU8, comm, stream); });
      return std::move(calls_);
    }
    // ncclAllGather has one count for all ranks. In a group, broadcasts run beside each other as sends and receives
    // would, but a block is read once on its rank and not once for each peer, and travels by NCCL's rings and trees.
    for_blocks(args_.recv_counts, [this](Rank root, std::size_t begin, std::size_t bytes) {
      const Bytes block = args_.out.subspan(begin, bytes);
      add_broadcast(root == rank_ ? args_.in.data() : block.data(), block, root);
    });
    return std::move(calls_);
  }

  std::vector<Call> reducescatter() {
    if (args_.in.empty()) {
      return {};
    }
    if (all_equal(args_.recv_counts)) {
      add([in = args_.in.data(), out = args_.out.data(), count = args_.out.size() / item_, element = element(),
           op = reduction_of(args_, size_), stream = stream_](const Api& api, CommHandle comm) {
        return api.reduce_scatter(in, out, count, element, op, comm, stream);
      });
      return std::move(calls_);
    }
    for_blocks(args_.recv_counts, [this](Rank root, std::size_t begin, std::size_t bytes) {
      add([in = args_.in.data() + begin, out = root == rank_ ? args_.out.data() : nullptr, count = bytes / item_,
           element = element(), op = reduction_of(args_, size_), root, stream = stream_](
              const Api& api, CommHandle comm) { return api.reduce(in, out, count, element, op, root, comm, stream); });
    });
    return std::move(calls_);
  }

  // Never the alltoall of newer versions: a rank knows its own counts only, but all ranks would have to make the same
  // choice. A block without elements is sent by neither side, and the own block is the caller's (own_block()).
  std::vector<Call> alltoall() {
    for_blocks(args_.send_counts, [this](Rank peer, std::size_t begin, std::size_t bytes) {
      if (peer == rank_) {
        return;
      }
      add([data = args_.in.data() + begin, bytes, peer, stream = stream_](const Api& api, CommHandle comm) {
        return api.send(data, bytes, Element::kU8, peer, comm, stream);
      });
    });
    for_blocks(args_.recv_counts, [this](Rank peer, std::size_t begin, std::size_t bytes) {
      if (peer == rank_) {
        return;
      }
      add([data = args_.out.data() + begin, bytes, peer, stream = stream_](const Api& api, CommHandle comm) {
        return api.recv(data, bytes, Element::kU8, peer, comm, stream);
      });
    });
    return std::move(calls_);
  }

 private:
  Element element() const { return *element_of(args_.dtype); }

  template <class Function>
  void add(Function function) {
    calls_.emplace_back(std::move(function));
  }
  void add_broadcast(const std::byte* in, Bytes out, Rank root) {
    add([in, out, root, stream = stream_](const Api& api, CommHandle comm) {
      return api.broadcast(in, out.data(), out.size(), Element::kU8, root, comm, stream);
    });
  }
  // Calls function(rank, begin, bytes) for each block that is not empty.
  template <class Function>
  void for_blocks(const std::vector<std::int64_t>& counts, Function function) {
    std::size_t begin = 0;
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
      const std::size_t bytes = static_cast<std::size_t>(counts[rank]) * item_;
      if (bytes > 0) {
        function(static_cast<Rank>(rank), begin, bytes);
      }
      begin += bytes;
    }
  }

  const CollectiveArgs& args_;
  const Rank rank_;
  const int size_;
  const NativeStream stream_;
  const std::size_t item_;
  std::vector<Call> calls_;
};

}  // namespace

bool averages_itself(const CollectiveArgs& args, int size) {
  if (args.op != ReduceOp::kAverage || args.divisor != 0) {
    return false;
  }
  switch (args.dtype) {
    case DType::kF16:
    case DType::kBF16:
      return true;
    case DType::kF32:
    case DType::kF64:
      return std::has_single_bit(static_cast<unsigned>(size));
    default:
      return false;
  }
}

Status check_supported(const CollectiveArgs& args) {
  if (args.kind == OpKind::kBarrier) {
    return {Code::kUnsupported, "barrier: there is none on the device; use the collectives of the host"};
  }
  const bool reduces = args.kind == OpKind::kAllreduce || args.kind == OpKind::kReduceScatter;
  if (reduces && !element_of(args.dtype)) {
    return {Code::kUnsupported, std::string(op_kind_name(args.kind)) + ": NCCL does not reduce " +
                                    std::string(dtype_name(args.dtype)) + "; use another dtype"};
  }
  return {};
}

OwnBlock own_block(const CollectiveArgs& args, Rank rank) {
  if (args.kind != OpKind::kAlltoall) {
    return {};
  }
  const auto bytes_of = [&](const std::vector<std::int64_t>& counts, std::size_t first, std::size_t last) {
    const auto begin = counts.begin();
    const auto sum = std::accumulate(begin + static_cast<std::ptrdiff_t>(first),
                                     begin + static_cast<std::ptrdiff_t>(last), std::int64_t{0});
    return static_cast<std::size_t>(sum) * dtype_size(args.dtype);
  };
  const auto me = static_cast<std::size_t>(rank);
  const std::size_t bytes = bytes_of(args.send_counts, me, me + 1);
  return {args.in.subspan(bytes_of(args.send_counts, 0, me), bytes),
          args.out.subspan(bytes_of(args.recv_counts, 0, me), bytes)};
}

std::vector<Call> calls_of(const CollectiveArgs& args, Rank rank, int size, NativeStream stream) {
  Maker maker(args, rank, size, stream);
  switch (args.kind) {
    case OpKind::kAllreduce:
      return maker.allreduce();
    case OpKind::kAllgather:
      return maker.allgather();
    case OpKind::kBroadcast:
      return maker.broadcast();
    case OpKind::kAlltoall:
      return maker.alltoall();
    case OpKind::kReduceScatter:
      return maker.reducescatter();
    case OpKind::kBarrier:
      break;
  }
  raise_bug(__FILE__, __LINE__, "operation kind");
}

}  // namespace sirtaki::net::nccl
