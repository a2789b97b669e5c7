#include "runtime/engine/recipes/gather.h"

#include <utility>

namespace sirtaki::engine {

Gather::Gather(ReductionSpec spec, ReductionDeps deps, StageNote note)
    : Reduction(std::move(spec), deps, std::move(note)), slices_(this->spec().slices) {}

void Gather::begin() {
  bytes_ = slices_.header_bytes();
  for (const Stripe& stripe : slices_.stripes()) {
    bytes_ += stripe.payload_bytes;
  }
  const auto ranks = static_cast<std::size_t>(size());
  memory_ = buffers().take(ranks * bytes_);
  const Bytes own = memory_.bytes().subspan(static_cast<std::size_t>(rank()) * bytes_, bytes_);
  std::size_t at = slices_.header_bytes();
  for (const Stripe& stripe : slices_.stripes()) {
    slices_.encode(stripe, own.subspan(at, stripe.payload_bytes));
    at += stripe.payload_bytes;
  }
  slices_.write_header(own);
  allgather(0, memory_.bytes(), std::vector<std::int64_t>(ranks, static_cast<std::int64_t>(bytes_)),
            [this] { return finish(); });
}

Status Gather::finish() {
  for (Rank r = 0; r < size(); ++r) {
    SRT_TRY(slices_.read_header(r, block(r)));
  }
  std::size_t at = slices_.header_bytes();
  for (const Stripe& stripe : slices_.stripes()) {
    for (Rank r = 0; r < size() && slices_.carries(stripe.slice); ++r) {
      SRT_TRY(slices_.check(stripe, r, block(r).subspan(at, stripe.payload_bytes)));
    }
    at += stripe.payload_bytes;
  }
  at = slices_.header_bytes();
  std::vector<const std::byte*> payloads(static_cast<std::size_t>(size()));
  const int divisor = spec().op == ReduceOp::kAverage ? size() : 1;
  for (const Stripe& stripe : slices_.stripes()) {
    for (Rank r = 0; r < size(); ++r) {
      payloads[static_cast<std::size_t>(r)] = block(r).data() + at;
    }
    slices_.apply(stripe, payloads, divisor, spec().postscale);
    at += stripe.payload_bytes;
  }
  return {};
}

}  // namespace sirtaki::engine
