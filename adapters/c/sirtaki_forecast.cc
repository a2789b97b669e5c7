// The C interface: forecasts.
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "adapters/c/borrowed_json.h"
#include "adapters/c/convert.h"
#include "adapters/c/convert_local.h"
#include "adapters/c/default_session.h"
#include "adapters/c/sirtaki.h"
#include "adapters/c/struct_size.h"
#include "runtime/base/json.h"
#include "runtime/engine/forecast/forecast.h"
#include "runtime/local_updates/forecast/forecast.h"

using sirtaki::Config;
using sirtaki::JsonWriter;
using sirtaki::Result;
using sirtaki::Status;
using sirtaki::engine::Conditions;
using sirtaki::engine::StepForecast;
using sirtaki::engine::StreamSpec;
using sirtaki::local_updates::LocalForecast;
using sirtaki::scheduler::CodecCosts;

namespace {

constexpr std::int64_t kNsPerUs = 1000;

Conditions to_conditions(const sirtaki_forecast_args& args, std::size_t tensors, const CodecCosts& costs) {
  Conditions at;
  at.ranks = args.ranks;
  at.link = {args.latency_ns, args.bytes_per_second};
  at.forward_us = args.forward_ns / kNsPerUs;
  at.backward_us = args.backward_ns / kNsPerUs;
  for (std::size_t i = 0; args.ready_ns != nullptr && i < tensors; ++i) {
    at.ready_us.push_back(args.ready_ns[i] / kNsPerUs);
  }
  at.codec_costs = costs;
  return at;
}

void write_step(JsonWriter& json, const std::string& policy, std::int64_t step_us, std::int64_t compute_us,
                std::int64_t sent_bytes) {
  json.key("step_ns").value(step_us * kNsPerUs);
  json.key("exposed_ns").value((step_us - compute_us) * kNsPerUs);
  json.key("sent_bytes").value(sent_bytes);
  json.key("policy").value(policy);
}

void write_local(JsonWriter& json, const LocalForecast& local) {
  const auto& interval = local.interval;
  json.key("mode").value(sirtaki::local_updates::mode_name(interval.mode));
  json.key("steps").value(interval.steps).key("delay").value(interval.delay);
  json.key("codec").value(local.codec);
  json.key("reason").value(sirtaki::local_updates::reason_name(interval.reason));
  json.key("transfer_ns").value(local.transfer_us * kNsPerUs).key("dense_ns").value(local.dense_us * kNsPerUs);
}

// Codecs are timed once for each number of ranks.
using Timed = std::map<int, CodecCosts>;

Status write_forecast(JsonWriter& json, const sirtaki_forecast_args& args, const Config& config, Timed& timed) {
  if (args.stream == nullptr) {
    return sirtaki::invalid_argument("a forecast needs the tensors of a stream");
  }
  SRT_ASSIGN(const StreamSpec spec, sirtaki::adapters::to_stream(*args.stream));
  SRT_TRY(sirtaki::engine::check_ranks(args.ranks));
  const auto [costs, is_new] = timed.try_emplace(args.ranks);
  if (is_new) {
    costs->second = sirtaki::engine::time_codecs(args.ranks);
  }
  const Conditions at = to_conditions(args, spec.tensors.size(), costs->second);
  const std::int64_t compute_us = at.forward_us + at.backward_us;
  json.begin_object();
  if (args.local == nullptr) {
    SRT_ASSIGN(const StepForecast step, sirtaki::engine::forecast_step(spec, at, config));
    write_step(json, step.policy, step.prediction.step_us, compute_us, step.sent_bytes);
    json.key("tensors");
    sirtaki::engine::write_tensors(json, spec, step);
  } else {
    SRT_ASSIGN(const auto options, sirtaki::adapters::to_local_options(*args.local));
    SRT_ASSIGN(const LocalForecast local, sirtaki::local_updates::forecast(spec, at, config, options));
    write_step(json, local.synchronous.policy, local.step_us, compute_us, local.sent_bytes);
    write_local(json, local);
  }
  json.end_object();
  return {};
}

Result<std::string> forecast_json(const sirtaki_forecast_args* given, int count) {
  if (given == nullptr || count < 0) {
    return sirtaki::invalid_argument("args is NULL, or count is negative");
  }
  SRT_ASSIGN(const auto config, sirtaki::adapters::DefaultSession::instance().config());
  Timed timed;
  JsonWriter json;
  json.begin_array();
  const char* cursor = reinterpret_cast<const char*>(given);
  for (int i = 0; i < count; ++i) {
    SRT_ASSIGN(const sirtaki_forecast_args args, sirtaki::adapters::known_forecast(cursor));
    // The header of the caller may have another size than sizeof(sirtaki_forecast_args) here.
    const std::size_t size = reinterpret_cast<const sirtaki_forecast_args*>(cursor)->struct_size;
    if (size != given->struct_size) {
      return sirtaki::invalid_argument("args[" + std::to_string(i) + "].struct_size is " + std::to_string(size) +
                                       " and args[0].struct_size is " + std::to_string(given->struct_size) +
                                       "; set it to sizeof(sirtaki_forecast_args) in all of them");
    }
    SRT_TRY(write_forecast(json, args, *config, timed));
    cursor += size;
  }
  json.end_array();
  return std::move(json).take();
}

}  // namespace

extern "C" {

const char* sirtaki_forecast_json(const sirtaki_forecast_args* args, int count) {
  return sirtaki::adapters::borrowed_json([&] { return forecast_json(args, count); });
}

}  // extern "C"
