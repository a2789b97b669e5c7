// combine: the reduction of a collective on memory that has arrived: sums in rank order, averages divided at the end.
// Pure functions of one thread at a time.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/base/tensor.h"
#include "runtime/net/collectives/collectives.h"
#include "runtime/net/link/hosts.h"

namespace sirtaki::net {

// out = sources[0] op sources[1] op ... ; `out` may be one of the sources. kAverage divides the sum by args.divisor, or
// by the number of sources. Every source is out.size() bytes, a whole number of elements.
void combine(const CollectiveArgs& args, std::span<const std::byte* const> sources, Bytes out);

// An average of halves goes over hosts by their sums divided by this, so that these fit: a power of two, no less than
// the ranks of any host. It changes no bits unless an intermediate result is subnormal. 1 for all else.
double host_divisor(const CollectiveArgs& args, const Hosts& hosts);

// The same with sources by rank, host by host: first the ranks of each, then the hosts. For little data.
void combine_by_host(const CollectiveArgs& args, const Hosts& hosts, std::span<const std::byte* const> sources,
                     Bytes out);

}  // namespace sirtaki::net
