#include "runtime/net/combine.h"

#include <vector>

#include "kernels/reduce/reduce.h"
#include "kernels/scale/scale.h"

namespace sirtaki::net {
namespace {

ReduceOp undivided(ReduceOp op) {
  return op == ReduceOp::kAverage ? ReduceOp::kSum : op;
}

void divide(const CollectiveArgs& args, std::size_t sources, Bytes out) {
  if (args.op == ReduceOp::kAverage) {
    const auto divisor = args.divisor > 0 ? args.divisor : static_cast<std::int64_t>(sources);
    kernels::divide_by(args.dtype, out.data(), static_cast<std::int64_t>(out.size() / dtype_size(args.dtype)), divisor);
  }
}

void reduce(const CollectiveArgs& args, std::span<const std::byte* const> sources, Bytes out) {
  const auto elements = static_cast<std::int64_t>(out.size() / dtype_size(args.dtype));
  kernels::reduce(undivided(args.op), args.dtype, sources, out.data(), elements);
}

}  // namespace

void combine(const CollectiveArgs& args, std::span<const std::byte* const> sources, Bytes out) {
  reduce(args, sources, out);
  divide(args, sources.size(), out);
}

void combine_by_host(const CollectiveArgs& args, const Hosts& hosts, std::span<const std::byte* const> sources,
                     Bytes out) {
  std::vector<std::vector<std::byte>> sums;
  std::vector<const std::byte*> by_host;
  for (const std::vector<Rank>& ranks : hosts.ranks()) {
    std::vector<const std::byte*> local;
    for (const Rank rank : ranks) {
      local.push_back(sources[static_cast<std::size_t>(rank)]);
    }
    if (local.size() == 1) {
      by_host.push_back(local[0]);
      continue;
    }
    sums.emplace_back(out.size());
    reduce(args, local, sums.back());
    by_host.push_back(sums.back().data());
  }
  reduce(args, by_host, out);
  divide(args, sources.size(), out);
}

}  // namespace sirtaki::net
