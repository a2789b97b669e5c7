#include "runtime/engine/reduction/shared.h"

#include <algorithm>
#include <utility>

#include "kernels/finite/finite.h"
#include "kernels/half/elements.h"
#include "runtime/base/check.h"

namespace sirtaki::engine {
namespace {

using Norm = kernels::ref::Plain<float>;

}  // namespace

Shared::Shared(ReductionSpec spec, ReductionDeps deps, StageNote note)
    : Reduction(std::move(spec), deps, std::move(note)), slices_(this->spec().slices, net()) {}

void Shared::begin() {
  std::size_t norm_bytes = slices_.count_bytes();
  std::size_t id_bytes = 0;
  std::size_t value_bytes = 0;
  for (const Stripe& stripe : slices_.stripes()) {
    const compression::CodecState& state = slices_.codec_state(stripe);
    const auto selection = state.codec().selection(state.params(), state.shape());
    SRT_CHECK(selection && selection->numel() == stripe.piece.numel && selection->value() == DType::kF32);
    places_.push_back({*selection, norm_bytes, id_bytes, value_bytes});
    norm_bytes += selection->norm_bytes();
    id_bytes += selection->id_bytes();
    value_bytes += selection->value_bytes();
  }
  norms_ = buffers().take(norm_bytes);
  ids_ = buffers().take(id_bytes);
  values_ = buffers().take(value_bytes);
  for (const Stripe& stripe : slices_.stripes()) {
    const Place& place = places_[stripe.index];
    if (slices_.check_finite(stripe)) {
      place.selection.norms(slices_.feedback(stripe), norms(place));
    } else {
      std::fill_n(norms(place), place.selection.norm_bytes(), std::byte{0});
    }
  }
  slices_.write_counts(norms_.bytes());
  allreduce(0, norms_.bytes(), [this] { return choose(); });
}

bool Shared::norms_are_possible(const Place& place) const {
  for (std::size_t at = 0; at < place.selection.norm_bytes(); at += Norm::kSize) {
    if (!(Norm::load(norms(place) + at) >= 0)) {
      return false;
    }
  }
  return true;
}

Status Shared::choose() {
  SRT_TRY(slices_.read_counts(norms_.bytes(), size()));
  for (const Stripe& stripe : slices_.stripes()) {
    const Place& place = places_[stripe.index];
    if (!slices_.carries(stripe.slice)) {
      std::fill_n(values(place), place.selection.value_bytes(), std::byte{0});
      continue;
    }
    if (!norms_are_possible(place)) {
      return slices_.corrupt_from(-1, stripe.slice, "the norm of a block is negative or not a number");
    }
    place.selection.select(norms(place), ids(place));
    place.selection.gather(ids(place), slices_.feedback(stripe), values(place));
  }
  allreduce(1, values_.bytes(), [this] { return finish(); });
  return {};
}

Status Shared::finish() {
  for (const Stripe& stripe : slices_.stripes()) {
    const Place& place = places_[stripe.index];
    // A sum may overflow although no term does; all ranks see the same sum.
    if (!kernels::all_finite(DType::kF32, values(place), place.selection.values())) {
      slices_.mark_bad(stripe.slice);
    }
    if (!slices_.carries(stripe.slice)) {
      slices_.fill(stripe);
      continue;
    }
    slices_.store_residual(stripe);
    const compression::BlockSelection::Part sums{ids(place), values(place)};
    place.selection.sum({&sums, 1}, stripe.gradient);
    slices_.scale(stripe, divisor(), spec().postscale);
  }
  return {};
}

std::shared_ptr<Reduction> make_shared_reduction(ReductionSpec spec, ReductionDeps deps, StageNote note) {
  return std::make_shared<Shared>(std::move(spec), deps, std::move(note));
}

}  // namespace sirtaki::engine
