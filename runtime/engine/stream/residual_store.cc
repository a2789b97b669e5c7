#include "runtime/engine/stream/residual_store.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "compression/codecs/catalog.h"
#include "kernels/finite/finite.h"
#include "kernels/half/elements.h"
#include "kernels/scale/scale.h"
#include "runtime/base/check.h"
#include "runtime/engine/reduction/by_host.h"
#include "runtime/engine/reduction/wire_size.h"

namespace sirtaki::engine {
namespace {

using Float = kernels::ref::Plain<float>;

}  // namespace

ResidualStore::ResidualStore(const std::vector<StreamTensor>& tensors, Rank rank, int ranks,
                             const net::HostGroups* groups)
    : rank_(rank),
      ranks_(ranks),
      groups_(groups),
      states_(tensors.size()),
      reductions_(tensors.size(), ReductionKind::kDense),
      keeps_(tensors.size()),
      senders_(tensors.size()),
      sent_by_(tensors.size()),
      loaded_residuals_(tensors.size()),
      loaded_states_(tensors.size()),
      finite_(tensors.size(), 1) {
  for (const StreamTensor& tensor : tensors) {
    shapes_.push_back(shape_of(tensor));
  }
}

void ResidualStore::admit(int index, const scheduler::PlannedTensor& planned, const TensorView& gradient,
                          double prescale, std::uint64_t step) {
  std::byte* const data = gradient.bytes().data();
  if (!planned.decision.format().compressed()) {
    if (has_residual(index)) {
      // Residuals belong to scaled gradients, and this one will be scaled when it is sent.
      kernels::scale(DType::kF32, data, gradient.numel, prescale);
      flush_residual(index, gradient);
      kernels::scale(DType::kF32, data, gradient.numel, 1.0 / prescale);
    }
    states_[at(index)].reset();
    loaded_states_[at(index)].clear();
    return;
  }
  if (prescale != 1.0) {
    kernels::scale(DType::kF32, data, gradient.numel, prescale);
  }
  compression::CodecState& state = open(index, planned, gradient, step);
  state.at_step(step);
  for (const auto& sender : senders_[at(index)]) {
    sender->at_step(step);
  }
  finite_[at(index)] = 1;
}

void ResidualStore::begin(int index, const TensorView& gradient) {
  compression::CodecState& state = of(index);
  // If hosts sum first, no rank sees all the elements that are encoded.
  if (state.coder().wants_whole() && groups_ == nullptr) {
    std::byte* const data = gradient.bytes().data();
    finite_[at(index)] = kernels::all_finite(DType::kF32, data, gradient.numel) ? 1 : 0;
    if (finite(index)) {
      state.coder().begin(state.feedback(data, 0));
    }
  }
}

compression::CodecState& ResidualStore::open(int index, const scheduler::PlannedTensor& planned,
                                             const TensorView& gradient, std::uint64_t step) {
  std::unique_ptr<compression::CodecState>& state = states_[at(index)];
  const scheduler::Decision& decision = planned.decision;
  const compression::PayloadCodec* codec = compression::find_payload_codec(decision.codec);
  SRT_CHECK(codec != nullptr);
  const std::vector<std::int64_t> params = decision.params_of(rank_);
  const bool same = state && state->codec().id() == decision.codec && state->ownership().stripe == planned.stripe &&
                    std::ranges::equal(state->params(), params);
  if (!same || decision.keeps != keeps_[at(index)]) {
    open_senders(index, decision, *codec);
  }
  const ReductionKind before = std::exchange(reductions_[at(index)], decision.reduction);
  if (same && loaded_residuals_[at(index)].empty() && loaded_states_[at(index)].empty()) {
    if (before != decision.reduction && has_residual(index)) {
      // The residual of an owner would otherwise stay until the rank is an owner again.
      copy_residual(index, *state);
      flush_foreign(index, *state, gradient);
    }
    return *state;
  }
  auto next = std::make_unique<compression::CodecState>(*codec, params, shapes_[at(index)],
                                                        ownership_of(planned.stripe, rank_, ranks_, groups_, index));
  next->at_step(step);
  next->load_state(codec_state(index));
  loaded_states_[at(index)].clear();
  if (has_residual(index)) {
    if (decision.params[params::kFeedback] != 0) {
      copy_residual(index, *next);
      loaded_residuals_[at(index)].clear();
      flush_foreign(index, *next, gradient);
    } else {
      flush_residual(index, gradient);
    }
  }
  state = std::move(next);
  return *state;
}

void ResidualStore::open_senders(int index, const scheduler::Decision& decision,
                                 const compression::PayloadCodec& codec) {
  keeps_[at(index)] = decision.keeps;
  senders_[at(index)].clear();
  sent_by_[at(index)].clear();
  for (Rank r = 0; r < ranks_ && !decision.keeps.empty(); ++r) {
    // Coders of owners suffice, because these only decode payloads of other ranks.
    senders_[at(index)].push_back(codec.open_owner(decision.params_of(r), shapes_[at(index)]));
    sent_by_[at(index)].push_back(senders_[at(index)].back().get());
  }
}

void ResidualStore::copy_residual(int index, compression::CodecState& to) const {
  std::vector<float> values(static_cast<std::size_t>(shapes_[at(index)].numel));
  std::byte* const bytes = std::as_writable_bytes(std::span(values)).data();
  residual(index, bytes);
  to.load_residual(bytes);
}

bool ResidualStore::has_residual(int index) const {
  const auto& state = states_[at(index)];
  return !loaded_residuals_[at(index)].empty() || (state && !state->empty());
}

void ResidualStore::residual(int index, std::byte* out) const {
  const auto& state = states_[at(index)];
  const std::vector<float>& loaded = loaded_residuals_[at(index)];
  const std::size_t size = static_cast<std::size_t>(shapes_[at(index)].numel) * sizeof(float);
  if (!loaded.empty()) {
    std::memcpy(out, loaded.data(), size);
  } else if (state) {
    state->residual(out);
  } else {
    std::memset(out, 0, size);
  }
}

double ResidualStore::residual_norm(int index) const {
  if (!has_residual(index)) {
    return 0;
  }
  std::vector<float> values(static_cast<std::size_t>(shapes_[at(index)].numel));
  residual(index, std::as_writable_bytes(std::span(values)).data());
  double squares = 0;
  for (const float value : values) {
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  return std::sqrt(squares);
}

void ResidualStore::clear_residual(int index) {
  loaded_residuals_[at(index)].clear();
  if (states_[at(index)]) {
    states_[at(index)]->clear_residual();
  }
}

void ResidualStore::load_residual(int index, const std::byte* in) {
  std::vector<float>& loaded = loaded_residuals_[at(index)];
  loaded.resize(static_cast<std::size_t>(shapes_[at(index)].numel));
  std::memcpy(loaded.data(), in, loaded.size() * sizeof(float));
  loaded_states_[at(index)] = codec_state(index);
  states_[at(index)].reset();
}

std::vector<std::byte> ResidualStore::codec_state(int index) const {
  const auto& state = states_[at(index)];
  const std::vector<std::byte>& kept = loaded_states_[at(index)];
  return kept.empty() && state ? state->state() : kept;
}

Status ResidualStore::load_codec_state(int index, ConstBytes in) {
  if (!in.empty()) {
    SRT_TRY(compression::CodecState::check_state(in, shapes_[at(index)].numel));
  }
  if (states_[at(index)]) {
    // The codec is dropped, the residual stays.
    std::vector<float> values(has_residual(index) ? static_cast<std::size_t>(shapes_[at(index)].numel) : 0);
    if (!values.empty()) {
      residual(index, std::as_writable_bytes(std::span(values)).data());
    }
    states_[at(index)].reset();
    loaded_residuals_[at(index)] = std::move(values);
  }
  loaded_states_[at(index)].assign(in.begin(), in.end());
  return {};
}

void ResidualStore::flush_residual(int index, const TensorView& gradient) {
  std::byte* const data = gradient.bytes().data();
  std::vector<float>& loaded = loaded_residuals_[at(index)];
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    std::byte* const element = data + i * sizeof(float);
    Float::store(Float::load(element) + loaded[i], element);
  }
  loaded.clear();
  const auto& state = states_[at(index)];
  if (!state) {
    return;
  }
  if (const std::int64_t momentum = corrected_momentum(state->codec().id(), state->params()); momentum != 0) {
    flush_momentum(index, static_cast<float>(momentum) / static_cast<float>(params::kOne), gradient);
  } else {
    state->flush_residual({0, gradient.numel}, data);
  }
}

// Moves the residual of elements that another rank of the host encodes from now on into this gradient. If a residual is
// one of steps instead of gradients, the momentum m of the codec has made 1 / (1 - m) of each gradient.
void ResidualStore::flush_foreign(int index, compression::CodecState& state, const TensorView& gradient) {
  if (groups_ == nullptr || !ByHost::supports(reductions_[at(index)])) {
    return;
  }
  const auto momentum = static_cast<float>(corrected_momentum(state.codec().id(), state.params()));
  state.move_foreign_residual(1.0F - momentum / static_cast<float>(params::kOne), gradient.bytes().data());
}

// The residual is one of steps, but from now on the momentum m of the optimizer applies to all that it receives: each
// part d of a gradient is followed by m d, m^2 d ... So the residual is added to this gradient, m times the residual is
// subtracted from the next one, and the momentum u of the codec goes on in the optimizer as m u.
void ResidualStore::flush_momentum(int index, float momentum, const TensorView& gradient) {
  std::vector<float> values(static_cast<std::size_t>(gradient.numel));
  residual(index, std::as_writable_bytes(std::span(values)).data());
  std::byte* const data = gradient.bytes().data();
  const std::vector<float> steps = states_[at(index)]->momentum();
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::byte* const element = data + i * sizeof(float);
    const float going = steps.empty() ? 0.0F : momentum * steps[i];
    Float::store(Float::load(element) + values[i] + going, element);
    values[i] *= -momentum;
  }
  loaded_residuals_[at(index)] = std::move(values);
}

}  // namespace sirtaki::engine
