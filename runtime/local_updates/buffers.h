// Equalizes the buffers of a model on all ranks: running means and variances are pooled, counters take the maximum.
//
//   mean      mu = sum of c mu_i over sum of c
//   variance  the mean of c (var_i + mu_i^2) - mu^2, at least 0
// c is the share of a rank. Float64 in rank order, so all ranks have the same bits. A rank with a buffer that is not
// finite does not count. Internal to runtime/local_updates, used in drains. Pure; the caller does the exchange.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/local_updates/exchange.h"
#include "runtime/local_updates/model.h"

namespace sirtaki::local_updates {

// Returns the report of this rank: its share and its buffers.
std::vector<std::byte> pack_buffers(const std::vector<LocalBuffer>& buffers, std::int64_t share);
// Writes the pooled buffers. kCorrupt: an invalid report; no buffer changes then.
Status pool_buffers(const std::vector<LocalBuffer>& buffers, const Reports& reports);

}  // namespace sirtaki::local_updates
