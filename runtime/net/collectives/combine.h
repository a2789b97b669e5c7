// combine: reduction of received memory: sums in rank order, averages divided at the end. Pure functions.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/base/tensor.h"
#include "runtime/net/collectives/collectives.h"
#include "runtime/net/link/hosts.h"

namespace sirtaki::net {

// Computes out = sources[0] op sources[1] op ...; `out` may be one of the sources. kAverage divides the sum by
// args.divisor, or by the number of sources. Every source has out.size() bytes, a whole number of elements.
void combine(const CollectiveArgs& args, std::span<const std::byte* const> sources, Bytes out);

// Returns the divisor of the sums of each host in an average of halves, which keeps the sums finite: a power of two, at
// least the number of ranks of any host. It changes no bits unless an intermediate result is subnormal. Returns 1 for
// all other operations.
double host_divisor(const CollectiveArgs& args, const Hosts& hosts);

// Combines sources by rank, first the ranks of each host, then the hosts. For little data.
void combine_by_host(const CollectiveArgs& args, const Hosts& hosts, std::span<const std::byte* const> sources,
                     Bytes out);

}  // namespace sirtaki::net
