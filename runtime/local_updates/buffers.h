// Buffers of a model made equal on all ranks: running means and variances pooled, counters at their largest.
//
//   mean      mu = sum of c mu_i over sum of c;  variance = that of c (var_i + mu_i^2) - mu^2, at least 0
// with a rank's share c. In float64 and in rank order, so all ranks have the same bits. A rank with a buffer that is
// not finite does not count.
// Used inside runtime/local_updates, at drains. Pure; the exchange is the caller's.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/local_updates/exchange.h"
#include "runtime/local_updates/model.h"

namespace sirtaki::local_updates {

// This rank's buffers, with its share.
std::vector<std::byte> pack_buffers(const std::vector<LocalBuffer>& buffers, std::int64_t share);
// Writes them. kCorrupt: what a rank told cannot be; then none is changed.
Status pool_buffers(const std::vector<LocalBuffer>& buffers, const Reports& reports);

}  // namespace sirtaki::local_updates
