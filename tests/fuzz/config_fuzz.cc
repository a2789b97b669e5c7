// All readers of text that a person writes: TOML, option values, launcher variables.
#include "runtime/base/check.h"
#include "runtime/base/config/config_load.h"
#include "runtime/base/config/config_toml.h"
#include "runtime/base/config/job_env.h"
#include "tests/fuzz/fuzz_main.h"

namespace sirtaki::fuzz {
namespace {

bool is_user_error(const Status& status) {
  return status.code() == Code::kInvalidArgument && !status.text().empty();
}

void check_file(const std::string& text) {
  ConfigSources sources;
  sources.file_text = text;
  const auto config = load_config(sources);
  if (!config) {
    SRT_CHECK(is_user_error(config.status()));
    return;
  }
  // An accepted value is printed in a form that is accepted and means the same.
  ConfigSources again;
  for (const OptionInfo& option : option_table()) {
    again.program += option_line(option.name, get_option(option, **config));
  }
  const auto second = load_config(again);
  SRT_CHECK(second);
  for (const OptionInfo& option : option_table()) {
    SRT_CHECK(get_option(option, **second) == get_option(option, **config));
  }
}

void check_values(const std::string& text) {
  if (const auto size = parse_bytes(text)) {
    SRT_CHECK(*size >= 0 && *parse_bytes(format_bytes(*size)) == *size);
  }
  if (const auto time = parse_duration(text)) {
    SRT_CHECK(time->count() >= 0 && *parse_duration(format_duration(*time)) == *time);
  }
  if (const auto ports = parse_port_range(text)) {
    SRT_CHECK(*parse_port_range(format_port_range(*ports)) == *ports);
  }
  // Any text without a zero byte survives a TOML line, unless TOML cannot hold it (not UTF-8).
  const auto entries = parse_toml(option_line("net.interface", text), "line");
  SRT_CHECK(!entries || (entries->size() == 1 && entries->front().value == text));
}

void check_environment(const std::string& text) {
  const std::size_t half = text.size() / 2;
  const auto config = load_config({.environment = {{"SIRTAKI_NET_WINDOW_BYTES", text}, {"HOROVOD_LOG_LEVEL", text}},
                                   .file_path = {},
                                   .file_text = {},
                                   .command_line = {},
                                   .program = {}});
  SRT_CHECK(config || is_user_error(config.status()));
  const auto job = detect_job({{"RANK", text.substr(0, half)}, {"WORLD_SIZE", text.substr(half)}});
  SRT_CHECK(job ? job->rank >= 0 && job->rank < job->size : is_user_error(job.status()));
  SRT_CHECK(first_slurm_host(text).find(',') == std::string::npos);
}

}  // namespace

std::vector<Input> seeds() {
  return {input_from("compression = \"fp16\"\n[net]\ninterface = \"eth1\" # comment\neager_bytes = 1000\n"),
          input_from("[control]\nstall_warn = \"1.5s\"\nstall_fail = '2h'\n[log]\ntimestamps = false\n"),
          input_from("schedule.partition_bytes = \"2MiB\"\njob.port_range = \"41000-41100\"\n"),
          input_from("[a.b]\nc = [1, 2, {d = 1979-05-27T07:32:00Z}]\n\"e\" = \"\"\"x\ny\"\"\"\n"),
          input_from("512KiB"),
          input_from("250ms"),
          input_from("41000-41100"),
          input_from("rack[1-2]n[05-06],login"),
          input_from("14")};
}

}  // namespace sirtaki::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  sirtaki::fuzz::check_file(text);
  sirtaki::fuzz::check_values(text);
  sirtaki::fuzz::check_environment(text);
  return 0;
}
