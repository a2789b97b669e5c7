#include "runtime/base/config/config_load.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace sirtaki {
namespace {

using namespace std::chrono_literals;

Config loaded(const ConfigSources& sources) {
  const auto config = load_config(sources);
  EXPECT_TRUE(config) << config.status().to_string();
  return config ? **config : Config();
}

std::string error_of(const ConfigSources& sources) {
  const auto config = load_config(sources);
  EXPECT_FALSE(config);
  EXPECT_EQ(config.status().code(), Code::kInvalidArgument);
  return std::string(config.status().text());
}

ConfigSources file(std::string text) {
  ConfigSources sources;
  sources.file_path = "job.toml";
  sources.file_text = std::move(text);
  return sources;
}

ConfigSources variable(const std::string& name, const std::string& text) {
  ConfigSources sources;
  sources.environment[name] = text;
  return sources;
}

TEST(ConfigLoad, NothingGivenIsAllDefaults) {
  EXPECT_EQ(options_json(loaded({})), options_json(Config()));
}

TEST(ConfigLoad, LaterPlacesWin) {
  ConfigSources sources = file("[net]\ninterface = \"file\"\n");
  EXPECT_EQ(loaded(sources).net.interface, "file");
  EXPECT_EQ(loaded(sources).source("net.interface"), "job.toml:2");
  sources.environment["HOROVOD_GLOO_IFACE"] = "horovod";
  EXPECT_EQ(loaded(sources).net.interface, "horovod");
  sources.environment["SIRTAKI_NET_INTERFACE"] = "environment";
  EXPECT_EQ(loaded(sources).net.interface, "environment");
  sources.environment["SIRTAKI_CLI_OPTIONS"] = option_line("net.interface", "launcher");
  EXPECT_EQ(loaded(sources).net.interface, "launcher");
  EXPECT_EQ(loaded(sources).source("net.interface"), "command line");
  sources.command_line = option_line("net.interface", "own command line");
  EXPECT_EQ(loaded(sources).net.interface, "own command line");
  sources.program = option_line("net.interface", "program");
  EXPECT_EQ(loaded(sources).net.interface, "program");
  EXPECT_EQ(loaded(sources).source("net.interface"), "program");
}

TEST(ConfigLoad, TomlTakesNativeTypesAndTexts) {
  const Config config = loaded(
      file("[job]\nrank = 1\nsize = 2\n[log]\ntimestamps = false\n[net]\neager_bytes = 1000\nwindow_bytes = \"2MiB\"\n"
           "[control]\nstall_fail = \"1h\"\n"));
  EXPECT_EQ(config.job.rank, 1);
  EXPECT_EQ(config.job.size, 2);
  EXPECT_FALSE(config.log.timestamps);
  EXPECT_EQ(config.net.eager_bytes, 1000);
  EXPECT_EQ(config.net.window_bytes, 2 << 20);
  EXPECT_EQ(config.control.stall_fail, 1h);
}

TEST(ConfigLoad, ShortNamesWorkInEveryPlace) {
  EXPECT_EQ(loaded(file("compression = \"fp16\"\n")).compression.codec, "fp16");
  EXPECT_EQ(loaded(variable("SIRTAKI_COMPRESSION", "bf16")).compression.codec, "bf16");
  EXPECT_EQ(loaded(variable("SIRTAKI_COMPRESSION", "bf16")).source("compression.codec"), "SIRTAKI_COMPRESSION");
  EXPECT_EQ(loaded(variable("SIRTAKI_SECRET_FILE", "/s")).job.secret_file, "/s");
  ConfigSources sources;
  sources.command_line = option_line("timeline", "t.json") + option_line("sync", "step");
  EXPECT_EQ(loaded(sources).timeline.path, "t.json");
  EXPECT_EQ(loaded(sources).torch.sync, "step");
}

TEST(ConfigLoad, ShortAndLongNameMayAgreeButNotDiffer) {
  ConfigSources sources = variable("SIRTAKI_COMPRESSION", "fp16");
  sources.environment["SIRTAKI_COMPRESSION_CODEC"] = "fp16";
  EXPECT_EQ(loaded(sources).compression.codec, "fp16");
  sources.environment["SIRTAKI_COMPRESSION_CODEC"] = "bf16";
  EXPECT_NE(error_of(sources).find("compression.codec is given twice"), std::string::npos);
  // A method in two places is an override.
  sources.environment.erase("SIRTAKI_COMPRESSION_CODEC");
  sources.command_line = option_line("compression.codec", "bf16");
  EXPECT_EQ(loaded(sources).compression.codec, "bf16");
}

TEST(ConfigLoad, TensorTablesAreRulesInTheirOrder) {
  const Config config =
      loaded(file("compression = \"fp16\"\n[[tensor]]\nmatch = \"conv*\"\ncodec = \"group_topk\"\n"
                  "rate = 0.02\nef = false\n\n[[tensor]]\nmatch = \"*\"\ncodec = \"int8:block=64\"\n"
                  "min = \"1KiB\"\n"));
  EXPECT_EQ(config.compression.rules, "conv*=>group_topk:ef=false,rate=0.02;*=>int8:block=64,min=1KiB");
  EXPECT_EQ(config.compression.codec, "fp16");
  EXPECT_EQ(config.source("compression.rules"), "job.toml:2, 8");
}

TEST(ConfigLoad, BadTensorTablesAreNamedByTheirLine) {
  const std::string good = "[[tensor]]\nmatch = \"a\"\ncodec = \"int8\"\n";
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"[[tensor]]\nmatch = \"b\"\n", {"job.toml:4", "needs codec"}},
      {"[[tensor]]\ncodec = \"int8\"\n", {"job.toml:4", "needs match"}},
      {"[[tensor]]\nmatch = \"b\"\ncodec = \"int9\"\n", {"job.toml:4", "'int9'", "did you mean int8?"}},
      {"[[tensor]]\nmatch = \"b\"\ncodec = \"int8\"\nblok = 3\n", {"job.toml:4", "no key 'blok'", "mean block?"}},
      {"[[tensor]]\nmatch = \"b;c\"\ncodec = \"int8\"\n", {"job.toml:4", "'b;c'"}},
      {"[[tensor]]\nmatch = [1]\ncodec = \"int8\"\n", {"job.toml:5", "[[tensor]] match is a list"}},
      {"[[tensor]]\nmatch = \"b\"\ncodec = \"int8\"\n[compression]\nrules = \"c=>fp16\"\n",
       {"compression.rules is given twice"}},
  };
  for (const auto& [text, parts] : cases) {
    const std::string error = error_of(file(good + text));
    for (const std::string& part : parts) {
      EXPECT_NE(error.find(part), std::string::npos) << part << " in " << error;
    }
  }
  EXPECT_NE(error_of(file("tensor = [1, 2]\n")).find("[[tensor]]"), std::string::npos);
}

TEST(ConfigLoad, UnknownNamesSuggestTheNearest) {
  EXPECT_EQ(
      error_of(file("[net]\n\nintreface = \"eth1\"\n")),
      "job.toml:3: unknown option net.intreface (did you mean net.interface?); docs/options.md lists all options");
  EXPECT_EQ(error_of(variable("SIRTAKI_NET_INTERFCE", "x")),
            "unknown environment variable SIRTAKI_NET_INTERFCE (did you mean SIRTAKI_NET_INTERFACE?); docs/options.md "
            "lists all options");
  ConfigSources sources;
  sources.program = option_line("log.lvl", "info");
  EXPECT_EQ(error_of(sources),
            "program: unknown option log.lvl (did you mean log.level?); docs/options.md lists all options");
  EXPECT_NE(error_of(file("[qqqqqqqqqq]\nzzzzzzzzzzz = 1\n")).find("unknown option qqqqqqqqqq.zzzzzzzzzzz; docs"),
            std::string::npos);
}

TEST(ConfigLoad, BadValuesNameThePlace) {
  EXPECT_EQ(error_of(file("[net]\neager_bytes = \"64kb\"\n")),
            "job.toml:2: net.eager_bytes: \"64kb\" is not a size; accepted: a size in bytes or with B, KiB, MiB, GiB, "
            "from 0 to 16MiB");
  EXPECT_EQ(error_of(variable("SIRTAKI_LOG_LEVEL", "wran")),
            "SIRTAKI_LOG_LEVEL: log.level: \"wran\" is not a choice (did you mean \"warn\"?); accepted: one of trace, "
            "debug, info, warn, error");
  EXPECT_NE(error_of(file("[control]\nstall_warn = 60\n")).find("job.toml:2: control.stall_warn: \"60\" is not a"),
            std::string::npos);
  ConfigSources sources;
  sources.command_line = option_line("job.rank", "one");
  EXPECT_EQ(error_of(sources).substr(0, 23), "command line: job.rank:");
}

TEST(ConfigLoad, ContradictionsNameBothSources) {
  ConfigSources sources = variable("SIRTAKI_CONTROL_HEARTBEAT_INTERVAL", "6s");
  EXPECT_EQ(error_of(sources),
            "control.heartbeat_timeout = 5s (default) and control.heartbeat_interval = 6s "
            "(SIRTAKI_CONTROL_HEARTBEAT_INTERVAL) contradict each other: the timeout must be longer than the interval");
  EXPECT_NE(error_of(file("[job]\nrank = 4\nsize = 4\n")).find("ranks are 0 to size - 1"), std::string::npos);
  EXPECT_NE(error_of(file("[schedule]\ncredit_bytes = \"1MiB\"\n")).find("at least one partition"), std::string::npos);
  EXPECT_NE(error_of(file("[schedule]\nfusion_bytes = \"32MiB\"\n")).find("one fused partition"), std::string::npos);
  EXPECT_NE(error_of(file("[device]\nnccl_credit_bytes = \"1MiB\"\n")).find("device.nccl_partition_bytes = 32MiB"),
            std::string::npos);
  EXPECT_TRUE(load_config(file("[schedule]\nfusion_bytes = \"128MiB\"\ncredit_bytes = \"128MiB\"\n")))
      << "a job without GPUs need not set the credit of NCCL";
  EXPECT_NE(error_of(file("[control]\nstall_fail = \"1s\"\n")).find("the warning comes first"), std::string::npos);
}

TEST(ConfigLoad, EmptyVariableOfANumberIsAnError) {
  EXPECT_NE(error_of(variable("SIRTAKI_JOB_SIZE", "")).find("\"\" is not a whole number"), std::string::npos);
}

TEST(ConfigLoad, VariablesOfHorovodKeepTheirMeaning) {
  ConfigSources sources;
  sources.environment = {{"HOROVOD_FUSION_THRESHOLD", "1048576"},
                         {"HOROVOD_STALL_CHECK_TIME_SECONDS", "10"},
                         {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "0"},
                         {"HOROVOD_LOG_LEVEL", "WARNING"},
                         {"HOROVOD_LOG_HIDE_TIME", "1"},
                         {"HOROVOD_TIMELINE", "DYNAMIC"},
                         {"HOROVOD_START_TIMEOUT", "45"},
                         {"HOROVOD_GLOO_TIMEOUT_SECONDS", "20"},
                         {"HOROVOD_CYCLE_TIME", "whatever"}};
  const Config config = loaded(sources);
  EXPECT_EQ(config.schedule.fusion_bytes, 1 << 20);
  EXPECT_EQ(config.source("schedule.fusion_bytes"), "HOROVOD_FUSION_THRESHOLD");
  EXPECT_EQ(config.control.stall_warn, 10s);
  EXPECT_EQ(config.control.stall_fail, 8760h);
  EXPECT_EQ(config.log.level, "warn");
  EXPECT_FALSE(config.log.timestamps);
  EXPECT_EQ(config.timeline.path, "");
  EXPECT_EQ(config.source("timeline.path"), "default");
  EXPECT_EQ(config.control.join_timeout, 45s);
  EXPECT_EQ(config.control.connect_timeout, 20s);
  EXPECT_NE(error_of(variable("HOROVOD_FUSION_THRESHOLD", "lots")).find("HOROVOD_FUSION_THRESHOLD: schedule.fusion"),
            std::string::npos);
}

TEST(ConfigLoad, OneVariableOfHorovodStopsTheSearchForStalls) {
  ConfigSources sources;
  sources.environment = {{"HOROVOD_STALL_CHECK_DISABLE", "1"}, {"HOROVOD_STALL_CHECK_TIME_SECONDS", "10"}};
  const Config never = loaded(sources);
  EXPECT_EQ(never.control.stall_warn, 8760h);
  EXPECT_EQ(never.control.stall_fail, 8760h);
  EXPECT_EQ(never.source("control.stall_fail"), "HOROVOD_STALL_CHECK_DISABLE");
  sources.environment["SIRTAKI_CONTROL_STALL_WARN"] = "7s";
  EXPECT_EQ(loaded(sources).control.stall_warn, 7s);
  sources.environment = {{"HOROVOD_STALL_CHECK_DISABLE", "0"}, {"HOROVOD_STALL_CHECK_TIME_SECONDS", "10"}};
  EXPECT_EQ(loaded(sources).control.stall_warn, 10s);
  EXPECT_NE(error_of(variable("HOROVOD_STALL_CHECK_DISABLE", "perhaps")).find("HOROVOD_STALL_CHECK_DISABLE"),
            std::string::npos);
}

// The default threshold of Horovod is far above the partition size; the job must still start.
TEST(ConfigLoad, LargeFusionThresholdOfHorovodIsCutToAPartition) {
  const Config config = loaded(variable("HOROVOD_FUSION_THRESHOLD", "134217728"));
  EXPECT_EQ(config.schedule.fusion_bytes, config.schedule.partition_bytes);
  EXPECT_NE(loaded(variable("HOROVOD_FUSION_THRESHOLD", "1000000000000")).schedule.fusion_bytes, 0);
}

TEST(ConfigLoad, FileIsFoundThroughTheVariableAndMissingOnesAreNamed) {
  std::string path = testing::TempDir() + "sirtaki_config_XXXXXX";
  const int fd = ::mkstemp(path.data());
  ASSERT_GE(fd, 0);
  ::close(fd);
  std::ofstream(path) << "timeline = \"here.json\"\n";
  EXPECT_EQ(loaded(variable("SIRTAKI_CONFIG", path)).timeline.path, "here.json");
  EXPECT_EQ(loaded(variable("SIRTAKI_CONFIG", path)).source("timeline.path"), path + ":1");
  std::ofstream(path, std::ios::trunc).flush();
  EXPECT_EQ(loaded(variable("SIRTAKI_CONFIG", path)).source("timeline.path"), "default");
  ::unlink(path.c_str());
  const auto missing = load_config(variable("SIRTAKI_CONFIG", path));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.status().code(), Code::kUnavailable);
  EXPECT_NE(missing.status().text().find(path + ": No such file"), std::string_view::npos);
  EXPECT_FALSE(load_config(variable("SIRTAKI_CONFIG", testing::TempDir())));
  EXPECT_NE(error_of(variable("SIRTAKI_CONFIG", "/dev/zero")).find("more than 262144 bytes"), std::string::npos);
}

TEST(ConfigLoad, TextFromTheLauncherStandsForTheFile) {
  ConfigSources sources = variable("SIRTAKI_CONFIG", "/not/on/this/host/job.toml");
  sources.environment["SIRTAKI_CONFIG_TEXT"] = "\n[log]\nlevel = \"info\"\n";
  EXPECT_EQ(loaded(sources).log.level, "info");
  EXPECT_EQ(loaded(sources).source("log.level"), "/not/on/this/host/job.toml:3");
}

TEST(ConfigLoad, OptionLinesSurviveAnyValue) {
  std::string value = "a\"b\\c\nd\te=[x]#'\x01\x7F \xC3\xA9";
  ConfigSources sources;
  sources.program = option_line("net.interface", value);
  EXPECT_EQ(loaded(sources).net.interface, value);
}

TEST(ConfigLoad, ProcessEnvironmentIsRead) {
  // The only test that touches the real environment; it uses an unimportant variable.
  ASSERT_EQ(::setenv("SIRTAKI_REPORT_LIVE", "off", 1), 0);
  EXPECT_EQ(process_sources().environment.at("SIRTAKI_REPORT_LIVE"), "off");
  ::unsetenv("SIRTAKI_REPORT_LIVE");
  EXPECT_FALSE(process_environment().contains("SIRTAKI_REPORT_LIVE"));
}

}  // namespace
}  // namespace sirtaki
