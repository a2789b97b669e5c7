#include "kernels/sparse_sum/sparse_sum.h"

#include <cstring>

#include "kernels/sparse_sum/payload.h"
#include "runtime/base/check.h"

namespace sirtaki::kernels {
namespace {

using Float = ref::Plain<float>;

// Reads the entries of one payload, tile by tile.
struct Cursor {
  const std::byte* counts;
  const std::byte* values;
  const std::byte* offsets;
};

template <class Value>
void add_tile(Cursor& cursor, std::byte* out) {
  const std::size_t count = SparseCount::load(cursor.counts);
  for (std::size_t e = 0; e < count; ++e) {
    std::byte* at = out + SparseOffset::load(cursor.offsets + e * SparseOffset::kSize) * sizeof(float);
    Float::store(ref::canonical(Float::load(at) + Value::load(cursor.values + e * Value::kSize)), at);
  }
  cursor.counts += SparseCount::kSize;
  cursor.values += count * Value::kSize;
  cursor.offsets += count * SparseOffset::kSize;
}

// Payloads are added in batches, one cursor each; the first batch starts from zeros.
constexpr std::size_t kBatch = 64;

template <class Value>
void add_batch(std::int64_t n, std::span<const SparsePayload> payloads, bool first, std::byte* out) {
  Cursor cursors[kBatch];
  for (std::size_t p = 0; p < payloads.size(); ++p) {
    const std::byte* data = payloads[p].data;
    const std::byte* values = data + sparse_values_at(n);
    cursors[p] = {data, values, values + static_cast<std::size_t>(payloads[p].entries) * Value::kSize};
  }
  for (std::int64_t begin = 0; begin < n; begin += kSparseTile) {
    std::byte* tile = out + static_cast<std::size_t>(begin) * sizeof(float);
    if (first) {
      std::memset(tile, 0, static_cast<std::size_t>(std::min(kSparseTile, n - begin)) * sizeof(float));
    }
    for (std::size_t p = 0; p < payloads.size(); ++p) {
      add_tile<Value>(cursors[p], tile);
    }
  }
}

bool tile_valid(const SparseTile& tile, const std::byte* offsets) {
  std::size_t least = 0;
  for (std::size_t e = tile.first; e < tile.first + tile.count; ++e) {
    const std::size_t offset = SparseOffset::load(offsets + e * SparseOffset::kSize);
    if (offset < least || offset >= tile.elements) {
      return false;
    }
    least = offset + 1;
  }
  return true;
}

}  // namespace

std::size_t sparse_bytes(DType value, std::int64_t n, std::int64_t entries) {
  SRT_CHECK(value == DType::kF32 || value == DType::kF16 || value == DType::kBF16);
  SRT_CHECK(n >= 0 && entries >= 0 && entries <= n);
  const auto count = static_cast<std::size_t>(entries);
  return sparse_offsets_at(value, n, count) + count * SparseOffset::kSize;
}

bool sparse_valid(DType value, std::int64_t n, const SparsePayload& payload) {
  const auto entries = static_cast<std::size_t>(payload.entries);
  const std::byte* offsets = payload.data + sparse_offsets_at(value, n, entries);
  bool valid = true;
  std::size_t seen = 0;
  for_each_sparse_tile(static_cast<std::size_t>(n), payload.data, [&](const SparseTile& tile) {
    seen += tile.count;
    valid = valid && seen <= entries && tile_valid(tile, offsets);
  });
  return valid && seen == entries;
}

void sparse_sum(DType value, std::int64_t n, std::span<const SparsePayload> payloads, std::byte* out) {
  SRT_CHECK(n >= 0);
  with_value_type(value, [&]<class Value>() {
    std::size_t done = 0;
    do {
      const std::size_t batch = std::min(kBatch, payloads.size() - done);
      add_batch<Value>(n, payloads.subspan(done, batch), done == 0, out);
      done += batch;
    } while (done < payloads.size());
  });
}

void sparse_clear(DType value, std::int64_t n, const SparsePayload& payload, std::byte* data) {
  SRT_CHECK(n >= 0);
  const std::byte* offsets = payload.data + sparse_offsets_at(value, n, static_cast<std::size_t>(payload.entries));
  for_each_sparse_tile(static_cast<std::size_t>(n), payload.data, [&](const SparseTile& tile) {
    for (std::size_t e = tile.first; e < tile.first + tile.count; ++e) {
      const std::size_t offset = SparseOffset::load(offsets + e * SparseOffset::kSize);
      Float::store(0.0F, data + (tile.begin + offset) * sizeof(float));
    }
  });
}

}  // namespace sirtaki::kernels
