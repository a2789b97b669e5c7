#include "runtime/local_updates/buffers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/base/wire.h"

namespace sirtaki::local_updates {
namespace {

// The report of one rank.
struct Packed {
  double share = 0;
  std::vector<std::vector<double>> values;          // indexed by buffer; empty for counters
  std::vector<std::vector<std::int64_t>> counters;  // indexed by buffer
};

template <class T>
std::vector<T> elements(const TensorView& view) {
  std::vector<T> values(static_cast<std::size_t>(view.numel));
  if (!values.empty()) {
    std::memcpy(values.data(), view.data, view.size_bytes());
  }
  return values;
}

std::vector<double> floats(const TensorView& view) {
  if (view.dtype == DType::kF64) {
    return elements<double>(view);
  }
  const auto values = elements<float>(view);
  return {values.begin(), values.end()};
}

void store(const std::vector<double>& values, const TensorView& view) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (view.dtype == DType::kF64) {
      std::memcpy(view.data + i * sizeof(double), &values[i], sizeof(double));
    } else {
      const auto value = static_cast<float>(values[i]);
      std::memcpy(view.data + i * sizeof(float), &value, sizeof(float));
    }
  }
}

Result<Packed> unpack(ConstBytes bytes, const std::vector<LocalBuffer>& buffers) {
  WireReader in(bytes);
  Packed packed;
  packed.share = static_cast<double>(in.get<std::int64_t>());
  for (const LocalBuffer& buffer : buffers) {
    const bool counter = buffer.view.dtype == DType::kI64;
    packed.values.push_back(counter ? std::vector<double>() : in.get_list<double>());
    packed.counters.push_back(counter ? in.get_list<std::int64_t>() : std::vector<std::int64_t>());
    if (packed.values.back().size() + packed.counters.back().size() != static_cast<std::size_t>(buffer.view.numel)) {
      in.fail();
    }
  }
  SRT_TRY(in.finish("buffers"));
  const bool finite = std::ranges::all_of(packed.values, [](const std::vector<double>& values) {
    return std::ranges::all_of(values, [](double value) { return std::isfinite(value); });
  });
  if (!finite || packed.share < 0) {
    packed.share = 0;
  }
  return packed;
}

// Returns the weighted mean of f(buffers of a rank, i) over ranks.
template <class F>
std::vector<double> mean_of(const std::vector<Packed>& ranks, std::size_t numel, const F& f) {
  std::vector<double> mean(numel);
  for (std::size_t i = 0; i < numel; ++i) {
    double sum = 0;
    double total = 0;
    for (const Packed& rank : ranks) {
      if (rank.share > 0) {
        sum += rank.share * f(rank, i);
        total += rank.share;
      }
    }
    mean[i] = sum / total;
  }
  return mean;
}

std::vector<double> pooled(const std::vector<Packed>& ranks, const LocalBuffer& buffer, std::size_t index) {
  const auto numel = static_cast<std::size_t>(buffer.view.numel);
  if (buffer.rule == BufferRule::kMost) {
    std::vector<double> most(numel, -INFINITY);
    for (const Packed& rank : ranks) {
      for (std::size_t i = 0; rank.share > 0 && i < numel; ++i) {
        most[i] = std::max(most[i], rank.values[index][i]);
      }
    }
    return most;
  }
  if (buffer.rule == BufferRule::kMean) {
    return mean_of(ranks, numel, [index](const Packed& rank, std::size_t i) { return rank.values[index][i]; });
  }
  const auto means = static_cast<std::size_t>(buffer.mean);
  const auto mean = mean_of(ranks, numel, [means](const Packed& rank, std::size_t i) { return rank.values[means][i]; });
  auto variance = mean_of(ranks, numel, [index, means](const Packed& rank, std::size_t i) {
    const double mu = rank.values[means][i];
    return rank.values[index][i] + mu * mu;
  });
  for (std::size_t i = 0; i < numel; ++i) {
    variance[i] = std::max(variance[i] - mean[i] * mean[i], 0.0);
  }
  return variance;
}

void store_largest(const std::vector<Packed>& ranks, std::size_t index, const TensorView& view) {
  std::vector<std::int64_t> most = ranks.front().counters[index];
  for (const Packed& rank : ranks) {
    for (std::size_t i = 0; i < most.size(); ++i) {
      most[i] = std::max(most[i], rank.counters[index][i]);
    }
  }
  if (!most.empty()) {
    std::memcpy(view.data, most.data(), view.size_bytes());
  }
}

}  // namespace

std::vector<std::byte> pack_buffers(const std::vector<LocalBuffer>& buffers, std::int64_t share) {
  WireWriter out;
  out.put(share);
  for (const LocalBuffer& buffer : buffers) {
    if (buffer.view.dtype == DType::kI64) {
      out.put_list(elements<std::int64_t>(buffer.view));
    } else {
      out.put_list(floats(buffer.view));
    }
  }
  return std::move(out).take();
}

Status pool_buffers(const std::vector<LocalBuffer>& buffers, const Reports& reports) {
  std::vector<Packed> ranks;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    auto packed = unpack(reports[rank], buffers);
    if (!packed) {
      return packed.status().with_context("rank " + std::to_string(rank));
    }
    ranks.push_back(std::move(*packed));
  }
  // Equal buffers keep their bits, because a mean of equal numbers may be rounded.
  const bool equal = std::ranges::all_of(reports, [&](const auto& report) { return report == reports.front(); });
  if (equal) {
    return {};
  }
  const bool any = std::ranges::any_of(ranks, [](const Packed& rank) { return rank.share > 0; });
  std::vector<std::vector<double>> values(buffers.size());
  for (std::size_t b = 0; b < buffers.size(); ++b) {
    if (buffers[b].view.dtype == DType::kI64) {
      store_largest(ranks, b, buffers[b].view);
    } else if (any) {
      values[b] = pooled(ranks, buffers[b], b);
    } else {
      // No rank counts, so the values of rank 0 at least make buffers equal.
      values[b] = ranks.front().values[b];
    }
  }
  for (std::size_t b = 0; b < buffers.size(); ++b) {
    store(values[b], buffers[b].view);
  }
  return {};
}

}  // namespace sirtaki::local_updates
