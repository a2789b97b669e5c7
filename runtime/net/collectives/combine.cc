#include "runtime/net/collectives/combine.h"

#include <algorithm>
#include <vector>

#include "kernels/reduce/reduce.h"

namespace sirtaki::net {
namespace {

bool is_half(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16;
}

// `divisor` is used by kAverage only.
void reduce(const CollectiveArgs& args, std::span<const std::byte* const> sources, Bytes out, double divisor) {
  const auto elements = static_cast<std::int64_t>(out.size() / dtype_size(args.dtype));
  if (args.op == ReduceOp::kAverage) {
    kernels::average(args.dtype, sources, out.data(), elements, divisor);
  } else {
    kernels::reduce(args.op, args.dtype, sources, out.data(), elements);
  }
}

}  // namespace

void combine(const CollectiveArgs& args, std::span<const std::byte* const> sources, Bytes out) {
  reduce(args, sources, out, args.divisor > 0 ? args.divisor : static_cast<double>(sources.size()));
}

double host_divisor(const CollectiveArgs& args, const Hosts& hosts) {
  if (args.op != ReduceOp::kAverage || !is_half(args.dtype)) {
    return 1.0;
  }
  std::size_t most = 0;
  for (const std::vector<Rank>& ranks : hosts.ranks()) {
    most = std::max(most, ranks.size());
  }
  double divisor = 1.0;
  while (divisor < static_cast<double>(most)) {
    divisor *= 2.0;
  }
  return divisor;
}

void combine_by_host(const CollectiveArgs& args, const Hosts& hosts, std::span<const std::byte* const> sources,
                     Bytes out) {
  const double here = host_divisor(args, hosts);
  const double all = args.divisor > 0 ? args.divisor : static_cast<double>(sources.size());
  std::vector<std::vector<std::byte>> sums;
  std::vector<const std::byte*> by_host;
  for (const std::vector<Rank>& ranks : hosts.ranks()) {
    std::vector<const std::byte*> local;
    for (const Rank rank : ranks) {
      local.push_back(sources[static_cast<std::size_t>(rank)]);
    }
    if (local.size() == 1 && here == 1.0) {
      by_host.push_back(local[0]);
      continue;
    }
    sums.emplace_back(out.size());
    reduce(args, local, sums.back(), here);
    by_host.push_back(sums.back().data());
  }
  reduce(args, by_host, out, all / here);
}

}  // namespace sirtaki::net
