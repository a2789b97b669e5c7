#include <cstdint>
#include <limits>
#include <numeric>
#include <string>

#include "runtime/net/collectives/collectives.h"

namespace sirtaki::net {
namespace {

Status bad(const CollectiveArgs& args, const std::string& text) {
  return invalid_argument(std::string(op_kind_name(args.kind)) + ": " + text);
}

// Returns the total of `counts` in bytes, or an error that contains `what`.
Result<std::size_t> total_bytes(const CollectiveArgs& args, const std::vector<std::int64_t>& counts, int size,
                                const char* what) {
  if (counts.size() != static_cast<std::size_t>(size)) {
    return bad(args, std::string(what) + " has " + std::to_string(counts.size()) + " entries for " +
                         std::to_string(size) + " ranks");
  }
  const auto limit = std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(dtype_size(args.dtype));
  std::int64_t total = 0;
  for (const std::int64_t count : counts) {
    if (count < 0 || count > limit - total) {
      return bad(args, std::string(what) + " holds " + std::to_string(count) + ", which is negative or too large");
    }
    total += count;
  }
  return static_cast<std::size_t>(total) * dtype_size(args.dtype);
}

Status same_size(const CollectiveArgs& args, const char* what, std::size_t have, std::size_t want) {
  if (have == want) {
    return {};
  }
  return bad(args, std::string(what) + " has " + std::to_string(have) + " bytes instead of " + std::to_string(want));
}

std::size_t block_bytes(const CollectiveArgs& args, const std::vector<std::int64_t>& counts, Rank rank) {
  return static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)]) * dtype_size(args.dtype);
}

// Returns the bytes of the blocks before that of `rank`. Requires recv_counts that total_bytes() accepts.
std::size_t bytes_before(const CollectiveArgs& args, Rank rank) {
  const std::int64_t elements =
      std::accumulate(args.recv_counts.begin(), args.recv_counts.begin() + rank, std::int64_t{0});
  return static_cast<std::size_t>(elements) * dtype_size(args.dtype);
}

Status check_reduction(const CollectiveArgs& args) {
  if (static_cast<int>(args.op) >= kElementwiseOpCount) {
    return bad(args, "unknown reduce operation " + std::to_string(static_cast<int>(args.op)));
  }
  if (args.dtype == DType::kBool && args.op == ReduceOp::kAverage) {
    return bad(args, "the average of bool is not defined; use sum, min or max, or another dtype");
  }
  return {};
}

// Input and output may be the same memory, element by element, but must not overlap with a shift.
Status check_overlap(const CollectiveArgs& args) {
  const auto in = reinterpret_cast<std::uintptr_t>(args.in.data());
  const auto out = reinterpret_cast<std::uintptr_t>(args.out.data());
  if (in == out || args.in.empty() || args.out.empty()) {
    return {};
  }
  if (in < out + args.out.size() && out < in + args.in.size()) {
    return bad(args, "input and output overlap without being the same memory");
  }
  return {};
}

// Accepts `block`, that of this rank, at its place in `whole`, the memory of all blocks, or outside of it. Requires
// recv_counts that total_bytes() accepts.
Status check_block(const CollectiveArgs& args, ConstBytes block, ConstBytes whole, Rank rank) {
  if (block.data() == whole.data() + bytes_before(args, rank)) {
    return {};
  }
  if (!block.empty() && block.data() == whole.data()) {
    return bad(args, "input and output overlap, but not where the own block is");
  }
  return check_overlap(args);
}

Status check_allreduce(const CollectiveArgs& args) {
  SRT_TRY(check_reduction(args));
  SRT_TRY(same_size(args, "the output", args.out.size(), args.in.size()));
  return check_overlap(args);
}

Status check_allgather(const CollectiveArgs& args, Rank rank, int size) {
  SRT_ASSIGN(const std::size_t total, total_bytes(args, args.recv_counts, size, "recv_counts"));
  SRT_TRY(same_size(args, "the input", args.in.size(), block_bytes(args, args.recv_counts, rank)));
  SRT_TRY(same_size(args, "the output", args.out.size(), total));
  return check_block(args, args.in, args.out, rank);
}

Status check_alltoall(const CollectiveArgs& args, Rank rank, int size) {
  SRT_ASSIGN(const std::size_t sent, total_bytes(args, args.send_counts, size, "send_counts"));
  SRT_ASSIGN(const std::size_t received, total_bytes(args, args.recv_counts, size, "recv_counts"));
  SRT_TRY(same_size(args, "the input", args.in.size(), sent));
  SRT_TRY(same_size(args, "the output", args.out.size(), received));
  SRT_TRY(same_size(args, "the own block", block_bytes(args, args.recv_counts, rank),
                    block_bytes(args, args.send_counts, rank)));
  if (!args.in.empty() && args.in.data() == args.out.data()) {
    return bad(args, "input and output must not be the same memory");
  }
  return check_overlap(args);
}

Status check_reducescatter(const CollectiveArgs& args, Rank rank, int size) {
  SRT_TRY(check_reduction(args));
  SRT_ASSIGN(const std::size_t total, total_bytes(args, args.recv_counts, size, "recv_counts"));
  SRT_TRY(same_size(args, "the input", args.in.size(), total));
  SRT_TRY(same_size(args, "the output", args.out.size(), block_bytes(args, args.recv_counts, rank)));
  return check_block(args, args.out, args.in, rank);
}

Status check_broadcast(const CollectiveArgs& args, int size) {
  if (args.root < 0 || args.root >= size) {
    return bad(args, "root " + std::to_string(args.root) + " is not a rank of 0 to " + std::to_string(size - 1));
  }
  return {};
}

}  // namespace

Status check_args(const CollectiveArgs& args, Rank rank, int size) {
  if (!dtype_from_wire(static_cast<std::uint8_t>(args.dtype))) {
    return bad(args, "unknown dtype " + std::to_string(static_cast<int>(args.dtype)));
  }
  const std::size_t item = dtype_size(args.dtype);
  if (args.kind != OpKind::kBarrier && (args.in.size() % item != 0 || args.out.size() % item != 0)) {
    return bad(args, "the memory is not a whole number of " + std::string(dtype_name(args.dtype)) + " elements");
  }
  switch (args.kind) {
    case OpKind::kAllreduce:
      return check_allreduce(args);
    case OpKind::kAllgather:
      return check_allgather(args, rank, size);
    case OpKind::kBroadcast:
      return check_broadcast(args, size);
    case OpKind::kAlltoall:
      return check_alltoall(args, rank, size);
    case OpKind::kReduceScatter:
      return check_reducescatter(args, rank, size);
    case OpKind::kBarrier:
      return {};
  }
  return bad(args, "unknown operation " + std::to_string(static_cast<int>(args.kind)));
}

}  // namespace sirtaki::net
