#include "launcher/links/links_page.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "runtime/engine/forecast/forecast.h"
#include "runtime/local_updates/choice.h"
#include "runtime/local_updates/forecast/forecast.h"

namespace sirtaki::launcher {
namespace {

// A training without communication.
struct Example {
  std::int64_t parameters = 0;
  std::int64_t step_us = 0;
};
constexpr std::array kExamples = {Example{400'000, 10'000}, Example{25'000'000, 250'000},
                                  Example{350'000'000, 1'000'000}};
// Constants of `sirtaki estimate`: the backward part of a step, the matrices of a model of unknown shapes, the smallest
// gain that is worth a setting, and the part of the bits on an Ethernet that are payload of TCP.
constexpr std::int64_t kBackwardThirds = 2;
constexpr int kLayers = 16;
constexpr double kLeastGain = 1.1;
constexpr double kPayloadPart = 1448.0 / 1514.0;

template <class... Values>
std::string formatted(const char* format, Values... values) {
  char text[128];
  const int size = std::snprintf(text, sizeof(text), format, values...);
  return {text, static_cast<std::size_t>(std::clamp<int>(size, 0, sizeof(text) - 1))};
}

std::string milliseconds(double seconds) {
  return formatted(seconds < 0.1 ? "%.3g ms" : "%.0f ms", seconds * 1e3);
}

std::string rate(double bytes_per_second) {
  const double mbit = bytes_per_second * 8 / 1e6;
  return mbit >= 999.5 ? formatted("%.3g Gbit/s", mbit / 1000) : formatted("%.3g Mbit/s", mbit);
}

double slower_way(const LinkReading& reading) {
  return std::min(reading.there, reading.back);
}

engine::StreamSpec model_of(std::int64_t parameters, const char* codec) {
  engine::StreamSpec spec;
  spec.name = "model";
  spec.codec = codec;
  const auto side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(parameters) / kLayers));
  for (int i = 0; i < kLayers; ++i) {
    spec.tensors.push_back(
        {.name = "layer" + std::to_string(i), .dims = {side, side}, .strides = {}, .dtype = DType::kF32, .device = {}});
  }
  return spec;
}

Result<std::string> advice_for(const Example& example, engine::Conditions at, const Config& config) {
  at.backward_us = example.step_us * kBackwardThirds / 3;
  at.forward_us = example.step_us - at.backward_us;
  SRT_ASSIGN(const auto dense, engine::forecast_step(model_of(example.parameters, "none"), at, config));
  SRT_ASSIGN(auto interval, local_updates::local_options("auto:compress=on"));
  local_updates::set_codec(interval, local_updates::kLadder);
  SRT_ASSIGN(const auto local, local_updates::forecast(model_of(example.parameters, "auto"), at, config, interval));
  const auto dense_us = static_cast<double>(dense.prediction.step_us);
  const auto setting = [dense_us](std::int64_t step_us, const char* option) {
    return std::pair(dense_us / static_cast<double>(std::max<std::int64_t>(step_us, 1)), option);
  };
  std::array settings = {setting(local.synchronous.prediction.step_us, "--compression auto"),
                         setting(local.step_us, "--local-updates auto")};
  if (settings[0].first < settings[1].first) {
    std::swap(settings[0], settings[1]);
  }
  const auto& [best, other] = settings;
  std::string line = formatted("  %5.4g M parameters, %4.4g ms a step: ", static_cast<double>(example.parameters) / 1e6,
                               static_cast<double>(example.step_us) / 1e3);
  if (best.first >= kLeastGain) {
    line += formatted("%.1fx with %s", best.first, best.second);
    return line + (other.first >= kLeastGain ? formatted(", %.1fx with %s\n", other.first, other.second) : "\n");
  }
  const double waits = 100 * (dense_us - static_cast<double>(example.step_us)) / dense_us;
  return line + formatted("nothing to gain: dense gradients take %.0f %% of the step\n", std::max(waits, 0.0));
}

}  // namespace

std::vector<HostPair> measured_pairs(int hosts) {
  std::vector<HostPair> pairs;
  for (Rank rank = 0; rank + 1 < hosts; ++rank) {
    pairs.emplace_back(rank, rank + 1);
  }
  if (hosts > 2) {
    pairs.emplace_back(0, hosts - 1);
  }
  return pairs;
}

std::string links_table(const std::vector<std::string>& hosts, const std::vector<LinkReading>& readings) {
  const std::vector<HostPair> pairs = measured_pairs(static_cast<int>(hosts.size()));
  const auto slowest = std::ranges::min_element(readings, {}, slower_way);
  std::vector<std::string> names;
  std::size_t width = 0;
  for (const auto& [first, second] : pairs) {
    names.push_back(hosts.at(static_cast<std::size_t>(first)) + " > " + hosts.at(static_cast<std::size_t>(second)));
    width = std::max(width, names.back().size());
  }
  std::string out = "Links between hosts (payload of one connection)\n";
  for (std::size_t i = 0; i < readings.size(); ++i) {
    names.at(i).append(width - names[i].size(), ' ');
    out += "  " + names[i] + "  round trip " + milliseconds(readings[i].round_trip) + ", there " +
           rate(readings[i].there) + ", back " + rate(readings[i].back);
    out += readings.size() > 1 && readings.begin() + static_cast<std::ptrdiff_t>(i) == slowest ? "  (slowest)\n" : "\n";
  }
  return out;
}

scheduler::LinkFacts weakest_link(const std::vector<LinkReading>& readings) {
  const double rate = slower_way(std::ranges::min(readings, {}, slower_way));
  const double round_trip = std::ranges::max(readings, {}, &LinkReading::round_trip).round_trip;
  return {.latency_ns = std::llround(round_trip / 2 * 1e9), .bytes_per_second = std::max(1LL, std::llround(rate))};
}

Result<std::string> links_advice(const scheduler::LinkFacts& link, int hosts, const Config& config) {
  engine::Conditions at;
  at.ranks = hosts;
  at.link = link;
  SRT_TRY(engine::check_ranks(hosts));
  at.codec_costs = engine::time_codecs(hosts);
  const double latency = static_cast<double>(link.latency_ns) / 1e9;
  const auto payload = static_cast<double>(link.bytes_per_second);
  std::string out = "Gain over dense gradients, SGD on " + std::to_string(hosts) + " hosts with " + rate(payload) +
                    " and " + milliseconds(latency) + " a message, by size and by a step alone\n";
  for (const Example& example : kExamples) {
    SRT_ASSIGN(const std::string line, advice_for(example, at, config));
    out += line;
  }
  out += formatted("  your model: sirtaki estimate MODEL.py --bandwidth %.2fMbit --latency %.3fms --ranks %d\n",
                   payload * 8 / 1e6 / kPayloadPart, latency * 1e3, hosts);
  return out;
}

}  // namespace sirtaki::launcher
