#include "runtime/engine/reduction/ring.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/finite/finite.h"
#include "kernels/half/elements.h"
#include "kernels/reduce/reduce.h"
#include "kernels/sparse_sum/sparse_sum.h"
#include "kernels/threshold_select/threshold_select.h"

namespace sirtaki::engine {
namespace {

using Float = kernels::ref::Plain<float>;
using Count = kernels::ref::Plain<std::uint32_t>;

std::size_t dense_bytes(std::int64_t numel) {
  return static_cast<std::size_t>(numel) * sizeof(float);
}

std::size_t sparse_bytes(std::int64_t numel, std::int64_t entries) {
  return Count::kSize + kernels::sparse_bytes(DType::kF32, numel, entries);
}

kernels::SparsePayload entries_of(ConstBytes in) {
  return {in.data() + Count::kSize, Count::load(in.data())};
}

std::uint32_t count_nonzero(const std::byte* elements, std::int64_t numel) {
  std::uint32_t count = 0;
  for (std::int64_t i = 0; i < numel; ++i) {
    count += Float::load(elements + dense_bytes(i)) != 0.0F ? 1U : 0U;
  }
  return count;
}

}  // namespace

Ring::Ring(ReductionSpec spec, ReductionDeps deps, StageNote note)
    : Reduction(std::move(spec), deps, std::move(note)), slices_(this->spec().slices, net()) {}

// The tensor alone determines owners, so that sums do not depend on its partitions.
void Ring::add_cells(const Stripe& stripe, std::size_t at) {
  const compression::CodecState& state = slices_.codec_state(stripe);
  if (state.ownership().stripe < state.shape().numel) {
    cells_.push_back({stripe.slice, stripe.piece.numel, at, stripe.owner});
    return;
  }
  const std::int64_t share = (stripe.piece.numel + size() - 1) / size();
  std::int64_t first = 0;
  for (Rank owner = 0; first < stripe.piece.numel; ++owner) {
    const std::int64_t numel = std::min(share, stripe.piece.numel - first);
    cells_.push_back({stripe.slice, numel, at + dense_bytes(first), owner});
    first += numel;
  }
}

void Ring::begin() {
  std::size_t bytes = 0;
  std::size_t payload_bytes = 0;
  for (const Stripe& stripe : slices_.stripes()) {
    add_cells(stripe, bytes);
    bytes += stripe.size_bytes();
    payload_bytes = std::max(payload_bytes, stripe.payload_bytes);
  }
  elements_ = buffers().take(bytes);
  const BufferPool::Buffer scratch = buffers().take(payload_bytes);
  std::byte* elements = elements_.bytes().data();
  for (const Stripe& stripe : slices_.stripes()) {
    const Bytes payload = scratch.bytes().first(stripe.payload_bytes);
    if (slices_.encode(stripe, payload)) {
      const std::byte* const own = payload.data();
      slices_.codec_state(stripe).coder().sum(stripe.piece, {&own, 1}, elements);
    } else {
      std::fill_n(elements, stripe.size_bytes(), std::byte{0});
    }
    elements += stripe.size_bytes();
  }
  const auto ranks = static_cast<std::size_t>(size());
  const std::size_t header_bytes = slices_.header_bytes() + entries_bytes();
  headers_ = buffers().take(ranks * header_bytes);
  const Bytes own = headers_.bytes().subspan(static_cast<std::size_t>(rank()) * header_bytes, header_bytes);
  slices_.write_header(own);
  write_entries(own.subspan(slices_.header_bytes()));
  allgather(0, headers_.bytes(), std::vector<std::int64_t>(ranks, static_cast<std::int64_t>(header_bytes)), [this] {
    SRT_TRY(read_headers());
    return size() > 1 ? hop(1) : collect();
  });
}

void Ring::write_entries(Bytes header) const {
  for (std::size_t i = 0; i < cells_.size(); ++i) {
    Count::store(count_nonzero(elements(cells_[i]), cells_[i].numel), header.data() + i * Count::kSize);
  }
}

Status Ring::read_headers() {
  const std::size_t header_bytes = slices_.header_bytes() + entries_bytes();
  for (Rank r = 0; r < size(); ++r) {
    const ConstBytes header = headers_.bytes().subspan(static_cast<std::size_t>(r) * header_bytes, header_bytes);
    SRT_TRY(slices_.read_header(r, header));
    std::vector<std::uint32_t>& entries = entries_.emplace_back(cells_.size());
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      entries[i] = Count::load(header.data() + slices_.header_bytes() + i * Count::kSize);
      if (entries[i] > cells_[i].numel) {
        return slices_.corrupt_from(r, cells_[i].slice, "a header counts more elements than the cell has");
      }
    }
  }
  headers_ = {};
  return {};
}

std::int64_t Ring::capacity(std::size_t cell, int ranks) const {
  std::int64_t entries = 0;
  for (int place = 1; place <= ranks; ++place) {
    entries += entries_[static_cast<std::size_t>(rank_at(cells_[cell].owner + place))][cell];
  }
  return std::min(entries, cells_[cell].numel);
}

bool Ring::dense(std::size_t cell, int ranks) const {
  return sparse_bytes(cells_[cell].numel, capacity(cell, ranks)) >= dense_bytes(cells_[cell].numel);
}

std::size_t Ring::bytes_of(std::size_t cell, int ranks) const {
  if (!slices_.carries(cells_[cell].slice)) {
    return 0;
  }
  return std::min(sparse_bytes(cells_[cell].numel, capacity(cell, ranks)), dense_bytes(cells_[cell].numel));
}

std::size_t Ring::bytes_of_owner(Rank owner, int ranks) const {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < cells_.size(); ++i) {
    bytes += cells_[i].owner == owner ? bytes_of(i, ranks) : 0;
  }
  return bytes;
}

void Ring::write(std::size_t cell, int ranks, Bytes out) const {
  const Cell& source = cells_[cell];
  if (dense(cell, ranks)) {
    std::memcpy(out.data(), elements(source), dense_bytes(source.numel));
    return;
  }
  // Selects every element that is not zero.
  const kernels::ThresholdSelect how{std::numeric_limits<float>::denorm_min(), capacity(cell, ranks)};
  const kernels::Selected selected =
      kernels::threshold_select(how, source.numel, {.gradient = elements(source)}, out.data() + Count::kSize);
  Count::store(static_cast<std::uint32_t>(selected.entries), out.data());
  std::ranges::fill(out.subspan(sparse_bytes(source.numel, selected.entries)), std::byte{0});
}

Status Ring::check(std::size_t cell, int ranks, Rank from, ConstBytes in) const {
  if (!slices_.carries(cells_[cell].slice) || dense(cell, ranks)) {
    return {};
  }
  const kernels::SparsePayload payload = entries_of(in);
  if (payload.entries > capacity(cell, ranks) || !kernels::sparse_valid(DType::kF32, cells_[cell].numel, payload)) {
    return slices_.corrupt_from(from, cells_[cell].slice,
                                "a number of entries or an offset is one that no rank writes");
  }
  return {};
}

void Ring::read(std::size_t cell, int ranks, ConstBytes in, std::byte* out) const {
  if (dense(cell, ranks)) {
    std::memcpy(out, in.data(), dense_bytes(cells_[cell].numel));
    return;
  }
  const kernels::SparsePayload payload = entries_of(in);
  kernels::sparse_sum(DType::kF32, cells_[cell].numel, {&payload, 1}, out);
}

// Hop `number` sends the cells to which `number` ranks have added, this one last, and receives from the previous rank.
Status Ring::hop(int number) {
  const Rank sent = rank_at(rank() - number);
  const Rank received = rank_at(rank() - 1 - number);
  outgoing_ = buffers().take(bytes_of_owner(sent, number));
  arrived_ = buffers().take(bytes_of_owner(received, number));
  std::size_t begin = 0;
  for (std::size_t i = 0; i < cells_.size(); ++i) {
    if (cells_[i].owner == sent && slices_.carries(cells_[i].slice)) {
      write(i, number, outgoing_.bytes().subspan(begin, bytes_of(i, number)));
      begin += bytes_of(i, number);
    }
  }
  std::vector<std::int64_t> send(static_cast<std::size_t>(size()));
  std::vector<std::int64_t> receive = send;
  send[static_cast<std::size_t>(rank_at(rank() + 1))] = static_cast<std::int64_t>(outgoing_.bytes().size());
  receive[static_cast<std::size_t>(rank_at(rank() - 1))] = static_cast<std::int64_t>(arrived_.bytes().size());
  alltoall(number, outgoing_.bytes(), std::move(send), arrived_.bytes(), std::move(receive), [this, number] {
    SRT_TRY(add_arrived(number));
    return number + 1 < size() ? hop(number + 1) : collect();
  });
  return {};
}

Status Ring::add_arrived(int number) {
  const Rank owner = rank_at(rank() - 1 - number);
  std::size_t begin = 0;
  for (std::size_t i = 0; i < cells_.size(); ++i) {
    const Cell& cell = cells_[i];
    if (cell.owner != owner || !slices_.carries(cell.slice)) {
      continue;
    }
    const ConstBytes in = arrived_.bytes().subspan(begin, bytes_of(i, number));
    begin += in.size();
    SRT_TRY(check(i, number, rank_at(rank() - 1), in));
    const BufferPool::Buffer before = buffers().take(dense_bytes(cell.numel));
    read(i, number, in, before.bytes().data());
    const std::byte* const terms[] = {before.bytes().data(), elements(cell)};
    kernels::reduce(ReduceOp::kSum, DType::kF32, terms, elements(cell), cell.numel);
  }
  return {};
}

Status Ring::collect() {
  std::vector<std::int64_t> sizes;
  std::size_t total = 0;
  std::size_t own = 0;
  for (Rank owner = 0; owner < size(); ++owner) {
    own = owner == rank() ? total : own;
    sizes.push_back(static_cast<std::int64_t>(bytes_of_owner(owner, size())));
    total += static_cast<std::size_t>(sizes.back());
  }
  results_ = buffers().take(total);
  for (std::size_t i = 0; i < cells_.size(); ++i) {
    if (cells_[i].owner == rank() && slices_.carries(cells_[i].slice)) {
      write(i, size(), results_.bytes().subspan(own, bytes_of(i, size())));
      own += bytes_of(i, size());
    }
  }
  outgoing_ = {};
  arrived_ = {};
  allgather(size(), results_.bytes(), std::move(sizes), [this] { return finish(); });
  return {};
}

Status Ring::finish() {
  std::size_t begin = 0;
  for (Rank owner = 0; owner < size(); ++owner) {
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      if (cells_[i].owner != owner || !slices_.carries(cells_[i].slice)) {
        continue;
      }
      const ConstBytes in = results_.bytes().subspan(begin, bytes_of(i, size()));
      begin += in.size();
      SRT_TRY(check(i, size(), owner, in));
      read(i, size(), in, elements(cells_[i]));
    }
  }
  const std::byte* sums = elements_.bytes().data();
  for (const Stripe& stripe : slices_.stripes()) {
    // A sum may overflow although no term does; all ranks see the same sum.
    if (!kernels::all_finite(DType::kF32, sums, stripe.piece.numel)) {
      slices_.mark_bad(stripe.slice);
    }
    sums += stripe.size_bytes();
  }
  sums = elements_.bytes().data();
  for (const Stripe& stripe : slices_.stripes()) {
    if (slices_.carries(stripe.slice)) {
      slices_.store_residual(stripe);
      std::memcpy(stripe.gradient, sums, stripe.size_bytes());
      slices_.scale(stripe, divisor(), spec().postscale);
    } else {
      slices_.fill(stripe);
    }
    sums += stripe.size_bytes();
  }
  return {};
}

std::shared_ptr<Reduction> make_ring_reduction(ReductionSpec spec, ReductionDeps deps, StageNote note) {
  return std::make_shared<Ring>(std::move(spec), deps, std::move(note));
}

}  // namespace sirtaki::engine
