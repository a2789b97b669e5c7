#include "adapters/c/convert_local.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "adapters/c/convert.h"
#include "adapters/c/struct_size.h"
#include "runtime/local_updates/choice.h"

namespace sirtaki::adapters {
namespace {

Status bad(const std::string& what) {
  return invalid_argument("local updates: " + what);
}

Result<local_updates::OuterOptions> to_outer(const sirtaki_local_args& args,
                                             const local_updates::OuterOptions& preset) {
  switch (args.outer) {
    case SIRTAKI_OUTER_NONE:
      return local_updates::OuterOptions();
    case SIRTAKI_OUTER_MOMENTUM:
    case SIRTAKI_OUTER_NESTEROV:
      return local_updates::OuterOptions{.on = true,
                                         .lr = args.outer_lr,
                                         .momentum = args.outer_momentum,
                                         .nesterov = args.outer == SIRTAKI_OUTER_NESTEROV};
    case SIRTAKI_OUTER_PRESET:
      return preset;
    default:
      return bad("outer is " + std::to_string(args.outer));
  }
}

Result<local_updates::LocalOptions> to_interval(const sirtaki_local_args& args) {
  if (std::string_view(args.interval) != "callable") {
    return local_updates::local_options(std::string_view(args.interval));
  }
  if (args.steps == nullptr) {
    return bad("the interval is a function's, and sirtaki_local_args.steps is NULL");
  }
  return local_updates::local_options(
      [steps = args.steps, context = args.context](const std::string& round) { return steps(context, round.c_str()); });
}

// Returns the tensor, which must be in host memory because models are merged there.
Result<TensorSpec> to_host_tensor(const sirtaki_tensor& tensor, const std::string& name) {
  SRT_ASSIGN(TensorSpec spec, to_tensor(tensor, Data::kNeeded, name));
  if (spec.view.device.type != DeviceType::kCpu) {
    return Status(Code::kUnsupported,
                  name + " is on " + device_name(spec.view.device) +
                      "; local updates work on memory of the host, give them a copy there",
                  Blame{-1, name});
  }
  return spec;
}

Result<local_updates::LocalBuffer> to_buffer(const sirtaki_local_args& args, int index) {
  const auto at = static_cast<std::size_t>(index);
  const std::string what = "buffer " + std::to_string(index) + " of local updates";
  if (args.buffer_names[at] == nullptr) {
    return invalid_argument(what + " has no name");
  }
  const std::int32_t rule = args.buffer_rules[at];
  if (rule < SIRTAKI_BUFFER_MEAN || rule > SIRTAKI_BUFFER_MOST) {
    return invalid_argument(what + " has rule " + std::to_string(rule));
  }
  SRT_ASSIGN(const sirtaki_tensor described, tensor_at(args.buffers, index));
  SRT_ASSIGN(const TensorSpec tensor, to_host_tensor(described, args.buffer_names[at]));
  local_updates::LocalBuffer buffer{args.buffer_names[at], tensor.view, static_cast<local_updates::BufferRule>(rule)};
  if (buffer.rule == local_updates::BufferRule::kVariance) {
    buffer.mean = args.buffer_means[at];
  }
  return buffer;
}

}  // namespace

Result<local_updates::LocalOptions> to_local_options(const sirtaki_local_args& given) {
  SRT_ASSIGN(const sirtaki_local_args args, known_local(&given));
  if (args.name == nullptr || args.name[0] == '\0') {
    return bad("sirtaki_local_args.name is missing; it is the same on all ranks");
  }
  if (args.interval == nullptr) {
    return bad("sirtaki_local_args.interval is missing; a number of steps or a policy, as \"auto\"");
  }
  if (args.merge != SIRTAKI_MERGE_CORRECTED && args.merge != SIRTAKI_MERGE_OVERWRITE) {
    return bad("merge is " + std::to_string(args.merge));
  }
  SRT_ASSIGN(local_updates::LocalOptions options, to_interval(args));
  options.name = args.name;
  SRT_ASSIGN(options.ranks, to_ranks(args.ranks, args.ranks_count, args.name));
  options.fragments = args.fragments;
  options.merge = args.merge == SIRTAKI_MERGE_OVERWRITE ? local_updates::MergeRule::kOverwrite
                                                        : local_updates::MergeRule::kCorrected;
  SRT_ASSIGN(options.outer, to_outer(args, options.outer));
  if (args.codec != nullptr) {
    local_updates::set_codec(options, args.codec);
  }
  SRT_TRY(local_updates::check(options));
  return options;
}

Result<local_updates::LocalModel> to_local_model(const sirtaki_local_args& given) {
  SRT_ASSIGN(const sirtaki_local_args args, known_local(&given));
  if (args.count < 0 || (args.count > 0 && (args.names == nullptr || args.tensors == nullptr))) {
    return bad("names, tensors and count do not fit together");
  }
  if (args.buffer_count < 0 ||
      (args.buffer_count > 0 && (args.buffer_names == nullptr || args.buffers == nullptr ||
                                 args.buffer_rules == nullptr || args.buffer_means == nullptr))) {
    return bad("buffer_names, buffers, buffer_rules, buffer_means and buffer_count do not fit together");
  }
  std::vector<local_updates::LocalTensor> tensors;
  for (int i = 0; i < args.count; ++i) {
    if (args.names[i] == nullptr) {
      return bad("names[" + std::to_string(i) + "] is NULL");
    }
    SRT_ASSIGN(const sirtaki_tensor described, tensor_at(args.tensors, i));
    SRT_ASSIGN(TensorSpec tensor, to_host_tensor(described, args.names[i]));
    tensors.push_back({args.names[i], tensor.view, std::move(tensor.dims)});
  }
  std::vector<local_updates::LocalBuffer> buffers;
  for (int i = 0; i < args.buffer_count; ++i) {
    SRT_ASSIGN(local_updates::LocalBuffer buffer, to_buffer(args, i));
    buffers.push_back(std::move(buffer));
  }
  return local_updates::lay_out(std::move(tensors), std::move(buffers), args.fragments);
}

Result<local_updates::LocalStep> to_local_step(const sirtaki_local_step_args& given) {
  SRT_ASSIGN(const sirtaki_local_step_args args, known_local_step(&given));
  if (args.share < 0) {
    return bad("the share of a step is " + std::to_string(args.share));
  }
  local_updates::LocalStep step;
  step.lr = args.lr;
  if (args.has_loss != 0) {
    step.loss = args.loss;
  }
  step.share = args.share;
  if (args.steps_left >= 0) {
    step.steps_left = args.steps_left;
  }
  step.stall = Duration(std::max<std::int64_t>(args.waited_ns, 0));
  return step;
}

Status from_outcome(const local_updates::LocalOutcome& outcome, const local_updates::LocalPace& pace,
                    sirtaki_local_outcome* out) {
  if (out == nullptr) {
    return {};
  }
  sirtaki_local_outcome made{};
  made.average_gradients = pace.averages_gradients ? 1 : 0;
  made.model_changed = outcome.model_changed ? 1 : 0;
  made.reset_optimizer = outcome.reset_optimizer ? 1 : 0;
  made.equalize_optimizer = outcome.equalize_optimizer ? 1 : 0;
  made.donor = outcome.donor;
  made.decisions = static_cast<std::int32_t>(outcome.decisions.size());
  made.steps = pace.steps;
  made.delay = pace.delay;
  return write_outcome(made, out);
}

}  // namespace sirtaki::adapters
