// The table of options: every row is reachable under each of its names and sets its own field.
#include <gtest/gtest.h>

#include <set>

#include "runtime/base/config/config.h"
#include "runtime/base/config/config_load.h"

namespace sirtaki {
namespace {

using namespace std::chrono_literals;

struct Row {
  const char* name;
  const char* text;  // valid, not the default, canonical
  bool (*holds)(const Config&);
};

const Row kRows[] = {
    {"job.rank", "3", [](const Config& c) { return c.job.rank == 3; }},
    {"job.size", "4", [](const Config& c) { return c.job.size == 4; }},
    {"job.rendezvous", "[fd00::1]:4000", [](const Config& c) { return c.job.rendezvous == "[fd00::1]:4000"; }},
    {"job.secret_file", "/run/secret", [](const Config& c) { return c.job.secret_file == "/run/secret"; }},
    {"job.secret_fd", "7", [](const Config& c) { return c.job.secret_fd == 7; }},
    {"job.host_id", "rack-1", [](const Config& c) { return c.job.host_id == "rack-1"; }},
    {"job.port_range", "41000-41100",
     [](const Config& c) {
       return c.job.port_range == PortRange{41000, 41100};
     }},
    {"control.heartbeat_interval", "500ms", [](const Config& c) { return c.control.heartbeat_interval == 500ms; }},
    {"control.heartbeat_timeout", "3s", [](const Config& c) { return c.control.heartbeat_timeout == 3s; }},
    {"control.connect_timeout", "7s", [](const Config& c) { return c.control.connect_timeout == 7s; }},
    {"elastic.min", "2", [](const Config& c) { return c.elastic.min == 2; }},
    {"elastic.max", "4", [](const Config& c) { return c.elastic.max == 4; }},
    {"elastic.on_failure", "host", [](const Config& c) { return c.elastic.on_failure == "host"; }},
    {"elastic.cooldown", "10s", [](const Config& c) { return c.elastic.cooldown == 10s; }},
    {"elastic.cooldown_limit", "2min", [](const Config& c) { return c.elastic.cooldown_limit == 2min; }},
    {"elastic.reset_limit", "4", [](const Config& c) { return c.elastic.reset_limit == 4; }},
    {"elastic.restarts", "9", [](const Config& c) { return c.elastic.restarts == 9; }},
    {"elastic.timeout", "30s", [](const Config& c) { return c.elastic.timeout == 30s; }},
    {"elastic.hub_wait", "0s", [](const Config& c) { return c.elastic.hub_wait == 0s; }},
    {"elastic.join_timeout", "3min", [](const Config& c) { return c.elastic.join_timeout == 3min; }},
    {"elastic.silence", "600ms", [](const Config& c) { return c.elastic.silence == 600ms; }},
    {"elastic.snapshot_dir", "/local/a", [](const Config& c) { return c.elastic.snapshot_dir == "/local/a"; }},
    {"elastic.snapshot_every", "5min", [](const Config& c) { return c.elastic.snapshot_every == 5min; }},
    {"elastic.resume", "auto", [](const Config& c) { return c.elastic.resume == "auto"; }},
    {"elastic.divergence", "report", [](const Config& c) { return c.elastic.divergence == "report"; }},
    {"control.join_timeout", "8s", [](const Config& c) { return c.control.join_timeout == 8s; }},
    {"control.stuck_after", "2s", [](const Config& c) { return c.control.stuck_after == 2s; }},
    {"control.stall_warn", "9s", [](const Config& c) { return c.control.stall_warn == 9s; }},
    {"control.stall_fail", "2h", [](const Config& c) { return c.control.stall_fail == 2h; }},
    {"control.shutdown_grace", "0s", [](const Config& c) { return c.control.shutdown_grace == 0s; }},
    {"control.names", "7", [](const Config& c) { return c.control.names == 7; }},
    {"control.fanout", "8", [](const Config& c) { return c.control.fanout == 8; }},
    {"schedule.fusion_bytes", "2MiB", [](const Config& c) { return c.schedule.fusion_bytes == 2 << 20; }},
    {"schedule.partition_bytes", "3MiB", [](const Config& c) { return c.schedule.partition_bytes == 3 << 20; }},
    {"schedule.credit_bytes", "8MiB", [](const Config& c) { return c.schedule.credit_bytes == 8 << 20; }},
    {"schedule.replan", "false", [](const Config& c) { return !c.schedule.replan; }},
    {"net.backend", "gloo", [](const Config& c) { return c.net.backend == "gloo"; }},
    {"net.interface", "eth1", [](const Config& c) { return c.net.interface == "eth1"; }},
    {"net.address", "10.0.0.1", [](const Config& c) { return c.net.address == "10.0.0.1"; }},
    {"net.eager_bytes", "128KiB", [](const Config& c) { return c.net.eager_bytes == 128 << 10; }},
    {"net.window_bytes", "2MiB", [](const Config& c) { return c.net.window_bytes == 2 << 20; }},
    {"net.fragment_bytes", "256KiB", [](const Config& c) { return c.net.fragment_bytes == 256 << 10; }},
    {"net.exchange_bytes", "32KiB", [](const Config& c) { return c.net.exchange_bytes == 32 << 10; }},
    {"net.shared_memory", "off", [](const Config& c) { return c.net.shared_memory == "off"; }},
    {"net.hierarchy", "off", [](const Config& c) { return c.net.hierarchy == "off"; }},
    {"device.data", "nccl", [](const Config& c) { return c.device.data == "nccl"; }},
    {"device.codecs", "host", [](const Config& c) { return c.device.codecs == "host"; }},
    {"device.nccl_library", "/opt/libnccl.so.2",
     [](const Config& c) { return c.device.nccl_library == "/opt/libnccl.so.2"; }},
    {"device.nccl_partition_bytes", "16MiB", [](const Config& c) { return c.device.nccl_partition_bytes == 16 << 20; }},
    {"device.nccl_credit_bytes", "128MiB", [](const Config& c) { return c.device.nccl_credit_bytes == 128 << 20; }},
    {"device.nccl_connect_timeout", "5min", [](const Config& c) { return c.device.nccl_connect_timeout == 5min; }},
    {"device.nccl_launch_timeout", "3s", [](const Config& c) { return c.device.nccl_launch_timeout == 3s; }},
    {"device.nccl_timeout", "2h", [](const Config& c) { return c.device.nccl_timeout == 2h; }},
    {"device.nccl_end_timeout", "1s", [](const Config& c) { return c.device.nccl_end_timeout == 1s; }},
    {"compression.codec", "bf16", [](const Config& c) { return c.compression.codec == "bf16"; }},
    {"compression.rules", "a*=>fp16",
     [](const Config& c) { return c.compression.rules == "a*=>fp16" && c.compression.codec == "none"; }},
    {"compression.nonfinite", "skip", [](const Config& c) { return c.compression.nonfinite == "skip"; }},
    {"local.updates", "qsr", [](const Config& c) { return c.local.updates == "qsr"; }},
    {"torch.sync", "forward", [](const Config& c) { return c.torch.sync == "forward"; }},
    {"torch.unequal_models", "error", [](const Config& c) { return c.torch.unequal_models == "error"; }},
    {"log.level", "debug", [](const Config& c) { return c.log.level == "debug"; }},
    {"log.file", "/tmp/x.log", [](const Config& c) { return c.log.file == "/tmp/x.log"; }},
    {"log.fd", "7", [](const Config& c) { return c.log.fd == 7; }},
    {"log.format", "json", [](const Config& c) { return c.log.format == "json"; }},
    {"log.python", "true", [](const Config& c) { return c.log.python; }},
    {"log.timestamps", "false", [](const Config& c) { return !c.log.timestamps; }},
    {"timeline.path", "trace.json", [](const Config& c) { return c.timeline.path == "trace.json"; }},
    {"timeline.flush_interval", "1s", [](const Config& c) { return c.timeline.flush_interval == 1s; }},
    {"report.live", "off", [](const Config& c) { return c.report.live == "off"; }},
    {"report.end", "false", [](const Config& c) { return !c.report.end; }},
    {"report.file", "run.json", [](const Config& c) { return c.report.file == "run.json"; }},
    {"metrics.port", "9091", [](const Config& c) { return c.metrics.port == 9091; }},
};

// Returns sources with a job size, without which job.rank is invalid.
ConfigSources with_size() {
  ConfigSources sources;
  sources.environment["SIRTAKI_JOB_SIZE"] = "8";
  return sources;
}

void expect_row(const ConfigSources& sources, const Row& row, std::string_view source) {
  const auto config = load_config(sources);
  ASSERT_TRUE(config) << row.name << ": " << config.status().to_string();
  EXPECT_TRUE(row.holds(**config)) << row.name;
  EXPECT_EQ((*config)->source(row.name), source);
  EXPECT_EQ(get_option(*find_option(row.name), **config), row.text);
}

TEST(ConfigOptions, TestTableHasEveryOptionOnce) {
  std::set<std::string> tested;
  for (const Row& row : kRows) {
    EXPECT_TRUE(tested.insert(row.name).second) << row.name;
  }
  for (const OptionInfo& option : option_table()) {
    EXPECT_TRUE(tested.contains(option.name)) << option.name;
  }
  EXPECT_EQ(tested.size(), option_table().size());
}

TEST(ConfigOptions, NoRowHoldsByDefault) {
  const Config config;
  for (const Row& row : kRows) {
    EXPECT_FALSE(row.holds(config)) << row.name;
    EXPECT_EQ(config.source(row.name), "default");
  }
}

TEST(ConfigOptions, EveryRowIsReadFromItsVariable) {
  for (const Row& row : kRows) {
    ConfigSources sources = with_size();
    const OptionInfo& option = *find_option(row.name);
    sources.environment[option.env] = row.text;
    expect_row(sources, row, option.env);
  }
}

TEST(ConfigOptions, EveryRowIsReadFromItsTomlKey) {
  for (const Row& row : kRows) {
    ConfigSources sources = with_size();
    sources.environment.erase(find_option(row.name)->env);
    sources.file_text = "# a comment\n" + option_line(row.name, row.text);
    expect_row(sources, row, "sirtaki.toml:2");
  }
}

TEST(ConfigOptions, EveryRowIsReadFromTheCommandLineAndTheProgram) {
  for (const Row& row : kRows) {
    ConfigSources sources = with_size();
    sources.command_line = option_line(row.name, row.text);
    expect_row(sources, row, "command line");
    sources = with_size();
    sources.program = option_line(row.name, row.text);
    expect_row(sources, row, "program");
  }
}

TEST(ConfigOptions, DefaultsAreCanonicalAndConsistent) {
  const Config config;
  EXPECT_TRUE(validate(config).ok());
  for (const OptionInfo& option : option_table()) {
    Config copy;
    EXPECT_TRUE(set_option(option, get_option(option, config), copy).ok()) << option.name;
    EXPECT_EQ(get_option(option, copy), get_option(option, config)) << option.name;
    EXPECT_FALSE(option.help.empty()) << option.name;
    EXPECT_TRUE(option.help.ends_with('.')) << option.name;
    EXPECT_FALSE(accepted_form(option).empty()) << option.name;
  }
}

TEST(ConfigOptions, NamesAreUnique) {
  std::set<std::string> names;
  for (const OptionInfo& option : option_table()) {
    for (const std::string& name : {option.name, option.env, option.flag, option.alias_env, option.alias_flag}) {
      EXPECT_TRUE(name.empty() || names.insert(name).second) << name;
    }
  }
}

TEST(ConfigOptions, RangesAreEnforcedAtBothEnds) {
  Config config;
  const OptionInfo& size = *find_option("net.fragment_bytes");
  EXPECT_TRUE(set_option(size, "4KiB", config).ok());
  EXPECT_TRUE(set_option(size, "64MiB", config).ok());
  EXPECT_EQ(set_option(size, "4095", config).code(), Code::kInvalidArgument);
  EXPECT_EQ(set_option(size, "67108865", config).code(), Code::kInvalidArgument);
  EXPECT_EQ(config.net.fragment_bytes, 64 << 20);
  EXPECT_FALSE(set_option(*find_option("job.rank"), "-2", config).ok());
  EXPECT_FALSE(set_option(*find_option("job.rank"), "99999999999", config).ok());
  EXPECT_FALSE(set_option(*find_option("control.stuck_after"), "1ms", config).ok());
}

TEST(ConfigOptions, BadValueNamesOptionValueAndWhatIsAccepted) {
  Config config;
  const Status status = set_option(*find_option("compression.codec"), "fp61", config);
  EXPECT_EQ(
      status.text(),
      "compression.codec: compression 'fp61': unknown codec or policy 'fp61' (did you mean fp16?); known are none, "
      "fp16, bf16, int8, int4, fp8_e4m3, fp8_e5m2, onebit, twobit, group_topk, threshold_sparse, kernel_sparse, "
      "block_topk, powersgd, hylo, algc, importance, auto; accepted: CODEC[:key=value,key=value] or rules "
      "GLOB=>CODEC;GLOB=>CODEC");
  EXPECT_NE(set_option(*find_option("compression.rules"), "fp16", config).text().find("\"fp16\" has no GLOB=>"),
            std::string_view::npos);
}

TEST(ConfigOptions, AgreedOptionsAreTheOnesThatChangeWhatIsSent) {
  Config config;
  ASSERT_TRUE(set_option(*find_option("schedule.fusion_bytes"), "1048576", config).ok());
  std::vector<std::string> names;
  for (const auto& [name, value] : agreed_options(config)) {
    names.push_back(name);
    if (name == "schedule.fusion_bytes") {
      EXPECT_EQ(value, "1MiB");  // canonical text, so that ranks compare meanings and not spellings
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{"control.fanout",
                                             "elastic.min",
                                             "elastic.snapshot_dir",
                                             "elastic.resume",
                                             "elastic.divergence",
                                             "schedule.fusion_bytes",
                                             "schedule.partition_bytes",
                                             "schedule.credit_bytes",
                                             "schedule.replan",
                                             "net.backend",
                                             "net.eager_bytes",
                                             "net.window_bytes",
                                             "net.fragment_bytes",
                                             "net.exchange_bytes",
                                             "net.shared_memory",
                                             "net.hierarchy",
                                             "device.data",
                                             "device.codecs",
                                             "device.nccl_partition_bytes",
                                             "device.nccl_credit_bytes",
                                             "compression.codec",
                                             "compression.rules",
                                             "compression.nonfinite",
                                             "local.updates",
                                             "torch.sync",
                                             "torch.unequal_models"}));
}

TEST(ConfigOptions, JsonHasEveryOptionWithItsSource) {
  ConfigSources sources;
  sources.environment["SIRTAKI_NET_INTERFACE"] = "eth\"1";
  const auto config = load_config(sources);
  ASSERT_TRUE(config);
  const std::string json = options_json(**config);
  EXPECT_NE(json.find(R"("name":"net.interface","value":"eth\"1","source":"SIRTAKI_NET_INTERFACE","default":"")"),
            std::string::npos);
  EXPECT_NE(json.find(R"("env":"SIRTAKI_TORCH_SYNC","cli":"--torch-sync","alias":"sync","agreed":true,"horovod":"")"),
            std::string::npos);
  EXPECT_NE(json.find(R"("alias":"timeline","agreed":false,"horovod":"HOROVOD_TIMELINE")"), std::string::npos);
  for (const OptionInfo& option : option_table()) {
    EXPECT_NE(json.find("\"name\":\"" + option.name + "\""), std::string::npos);
  }
}

TEST(ConfigOptions, PageHasEveryOption) {
  const std::string page = options_markdown();
  for (const OptionInfo& option : option_table()) {
    EXPECT_NE(page.find("### " + option.name + "\n"), std::string::npos);
    EXPECT_NE(page.find("`" + option.env + "`"), std::string::npos);
    EXPECT_EQ(page.find("`" + option.flag + "`") != std::string::npos, !set_by_launcher(option.name)) << option.name;
  }
}

}  // namespace
}  // namespace sirtaki
