#include "runtime/engine/reduction/gather.h"

#include <utility>

namespace sirtaki::engine {

Gather::Gather(ReductionSpec spec, ReductionDeps deps, StageNote note)
    : Reduction(std::move(spec), deps, std::move(note)), slices_(this->spec().slices, net()) {}

void Gather::begin() {
  std::vector<std::int64_t> counts;
  block_at_ = {0};
  for (Rank r = 0; r < size(); ++r) {
    std::size_t bytes = slices_.header_bytes();
    for (const Stripe& stripe : slices_.stripes()) {
      bytes += slices_.payload_bytes(stripe, r);
    }
    counts.push_back(static_cast<std::int64_t>(bytes));
    block_at_.push_back(block_at_.back() + bytes);
  }
  memory_ = buffers().take(block_at_.back());
  const Bytes own = block(rank());
  std::size_t at = slices_.header_bytes();
  for (const Stripe& stripe : slices_.stripes()) {
    slices_.encode(stripe, own.subspan(at, stripe.payload_bytes));
    at += stripe.payload_bytes;
  }
  slices_.write_header(own);
  allgather(0, memory_.bytes(), std::move(counts), [this] { return finish(); });
}

Status Gather::finish() {
  for (Rank r = 0; r < size(); ++r) {
    SRT_TRY(slices_.read_header(r, block(r)));
  }
  for (Rank r = 0; r < size(); ++r) {
    std::size_t at = slices_.header_bytes();
    for (const Stripe& stripe : slices_.stripes()) {
      const std::size_t bytes = slices_.payload_bytes(stripe, r);
      if (slices_.carries(stripe.slice)) {
        SRT_TRY(slices_.check(stripe, r, block(r).subspan(at, bytes)));
      }
      at += bytes;
    }
  }
  std::vector<const std::byte*> payloads;
  for (Rank r = 0; r < size(); ++r) {
    payloads.push_back(block(r).data() + slices_.header_bytes());
  }
  for (const Stripe& stripe : slices_.stripes()) {
    slices_.apply(stripe, payloads, divisor(), spec().postscale);
    for (Rank r = 0; r < size(); ++r) {
      payloads[static_cast<std::size_t>(r)] += slices_.payload_bytes(stripe, r);
    }
  }
  return {};
}

std::shared_ptr<Reduction> make_gather_reduction(ReductionSpec spec, ReductionDeps deps, StageNote note) {
  return std::make_shared<Gather>(std::move(spec), deps, std::move(note));
}

}  // namespace sirtaki::engine
