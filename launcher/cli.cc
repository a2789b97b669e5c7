#include "launcher/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <string_view>

#include "launcher/agent/host_facts.h"
#include "runtime/base/config/config.h"
#include "runtime/base/config/config_load.h"

namespace sirtaki::launcher {

namespace {

constexpr const char* kExamples = R"(Examples:
  sirtakirun -np 4 python train.py
      four ranks on this machine
  sirtakirun -H node1:2,node2:2 python train.py --epochs 10
      two ranks on each of two machines, over ssh; arguments after the command belong to the command
  sirtakirun -np 8 --hostfile hosts.txt --output-dir logs python train.py
      hosts.txt has lines such as 'node1 slots=4'; the output is also written to logs/rank.N/stdout and stderr
  sirtakirun -np 4 --compression fp16 --timeline trace.json python train.py
      options of the runtime; sirtaki.toml and SIRTAKI_* variables set the same options
  sirtakirun -np 4 --compression 'fc*=>group_topk:rate=1%;*=>twobit' python train.py
      selects the compression by the names of tensors; docs/options.md lists codecs and policies
  sirtakirun -np 4 --horovod python train.py
      an unchanged program that contains 'import horovod.torch as hvd'
  sirtakirun -np 4 --elastic 2:4 python train.py
      the ranks go on without a lost one as long as two are left, and it is started again (docs/elastic.md)
  sirtakirun -np 2 --elastic 1:8 --join-port 41000 --secret-file job.secret python train.py
      other hosts may join the job; each runs: sirtakirun --join HOST:41000 --secret-file job.secret -np 2
  sirtakirun --hub --elastic 2:8 --join-port 41000 --secret-file job.secret python train.py
      the same for a machine that only coordinates: all ranks run on hosts that join
  sirtakirun -H node1:2,node2:2 --check
      checks the hosts, measures the links between them, and prints the settings that pay off on such links

Output: lines of rank 1 begin with '[1] ', those of its standard error with '[1!] '. When a rank fails, the others get
a moment to print their errors, then all processes are ended; in elastic jobs they go on. The exit code is that of the
rank that failed first (128 + signal number if a signal ended it). Full guide: docs/launcher.md.)";

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return "Usage: sirtakirun -np N [-H host:slots,...] [options] command [arguments...]\n";
  }
};

struct RawOptions {
  int np = 0;
  std::string ssh_options;
  std::string elastic;
  std::string most;  // --max-np
  std::string start_timeout;
  std::string failure_grace;
  std::string term_grace;
  std::string discovery_interval;
  std::string reset_limit;
  std::vector<std::string> cooldown;
  bool no_tags = false;
  bool version = false;
  bool help = false;
  std::map<std::string, std::string> runtime;  // text by option name
};

constexpr const char* kRanksGroup = "Ranks and hosts";

void add_job_options(CLI::App& app, RunOptions& run, RawOptions& raw) {
  const char* ranks = kRanksGroup;
  app.add_option("-n,--np,--num-proc", raw.np, "Number of ranks; also written -np N (default: all slots of the hosts)")
      ->type_name("N")
      ->group(ranks);
  app.add_option("-H,--hosts,--host", run.hosts, "Hosts and their slots: node1:4,node2:4; IPv6 as [fd00::2]:4")
      ->type_name("HOST:SLOTS,...")
      ->group(ranks);
  app.add_option("--hostfile", run.hostfile, "File with one 'name slots=N' or 'name:N' per line; '#' begins a comment")
      ->type_name("FILE")
      ->group(ranks);
  app.add_option("--host-discovery-script", run.discovery.script,
                 "Command that prints the present hosts of an elastic job, one 'name' or 'name:slots' per line")
      ->type_name("PATH")
      ->group(ranks);
  app.add_option("--slots-per-host", run.discovery.slots, "Slots of a host that the script names without a number")
      ->check(CLI::Range(1, kMaxSlots))
      ->option_text("N (default 1)")
      ->group(ranks);
  app.add_option("--discovery-interval", raw.discovery_interval, "Time between two runs of the script (default 1s)")
      ->type_name("TIME")
      ->group(ranks);
  app.add_option("--blacklist-cooldown-range", raw.cooldown,
                 "Shortest and longest rest of a host on which a process has failed (elastic.on_failure)")
      ->type_name("MIN MAX")
      ->expected(2)
      ->group(ranks);
  app.add_option("--reset-limit", raw.reset_limit,
                 "The job fails when its ranks change more often (elastic.reset_limit)")
      ->type_name("N")
      ->group(ranks);
  app.add_option("-x,--env", run.env,
                 "Environment variable of the ranks, set (NAME=VALUE) or passed on (NAME); may be repeated")
      ->type_name("NAME[=VALUE]")
      ->allow_extra_args(false)
      ->group(ranks);
  app.add_option("--config-file", run.config_file, "Options of the runtime in TOML; sent to all hosts")
      ->type_name("sirtaki.toml")
      ->group(ranks);
  app.add_flag("--horovod", run.horovod, "Make 'import horovod' in Python programs import Sirtaki (docs/horovod.md)")
      ->group(ranks);
  app.add_option("--elastic,--min-np,--min-num-proc", raw.elastic,
                 "Go on without lost ranks while at least MIN are left; with MAX, let up to so many ranks join later")
      ->type_name("MIN:[MAX]")
      ->group(ranks);
  app.add_option("--max-np,--max-num-proc", raw.most, "The MAX of --elastic MIN:MAX")->type_name("MAX")->group(ranks);
  app.add_option(
         "--spares", run.spares,
         "Processes of an elastic job beyond MAX that wait in init(), and take the places of lost ranks at once")
      ->check(CLI::Range(0, kMaxSlots))
      ->option_text("N (default 0)")
      ->group(ranks);
}

void add_time_limits(CLI::App& app, RawOptions& raw) {
  const char* ranks = kRanksGroup;
  app.add_option("--start-timeout", raw.start_timeout, "Time within which all hosts must answer (default 30s)")
      ->type_name("TIME")
      ->group(ranks);
  app.add_option("--failure-grace", raw.failure_grace,
                 "Time that the other ranks have to exit after one has failed (default 2s, at most 3s)")
      ->type_name("TIME")
      ->group(ranks);
  app.add_option("--term-grace", raw.term_grace,
                 "Time that ranks that handle SIGTERM have to exit after it, whatever its cause (default 30s)")
      ->type_name("TIME")
      ->group(ranks);
}

void add_remote_options(CLI::App& app, RunOptions& run, RawOptions& raw) {
  const char* remote = "Remote hosts";
  app.add_option("-p,--ssh-port", run.ssh.port, "Port of the ssh servers")
      ->check(CLI::Range(1, 65535))
      ->option_text("PORT")
      ->group(remote);
  app.add_option("-i,--ssh-identity-file", run.ssh.identity_file, "Private key for ssh")
      ->type_name("FILE")
      ->group(remote);
  app.add_option("--ssh-options", raw.ssh_options,
                 "Additional arguments for ssh, as one text: '-o StrictHostKeyChecking=no'")
      ->type_name("TEXT")
      ->group(remote);
  app.add_option("--remote-path", run.remote_path, "Path of sirtakirun on the other hosts (default: the same as here)")
      ->type_name("PATH")
      ->group(remote);
  app.add_option("--rendezvous-address", run.rendezvous_address,
                 "Address at which all hosts reach this machine (default: found by trying)")
      ->type_name("ADDRESS")
      ->group(remote);
}

void add_join_options(CLI::App& app, RunOptions& run) {
  const char* join = "Hosts that join an elastic job by themselves (docs/elastic/hosts.md)";
  app.add_option("--join-port", run.join.port, "Port at which hosts may join this job; 0: any free one")
      ->check(CLI::Range(0, 65535))
      ->option_text("PORT")
      ->group(join);
  app.add_flag(
         "--hub", run.join.hub,
         "Runs no ranks here: the job starts when hosts with -np slots have joined (default: the MIN of --elastic)")
      ->group(join);
  app.add_option("--join", run.join.address,
                 "Runs ranks of the job at this address here, -np of them at most (default 1); takes no command")
      ->type_name("HOST:PORT")
      ->group(join);
  app.add_option("--secret-file", run.join.secret_file,
                 "File with the secret that both need; the job writes it if it does not exist (or set "
                 "SIRTAKI_JOIN_SECRET)")
      ->type_name("FILE")
      ->group(join);
}

void add_output_options(CLI::App& app, RunOptions& run, RawOptions& raw) {
  const char* output = "Output";
  app.add_option("--output-dir", run.output_dir, "Also write DIR/rank.N/stdout and DIR/rank.N/stderr, untagged")
      ->type_name("DIR")
      ->group(output);
  app.add_flag("--no-tag-output", raw.no_tags, "Omit '[rank] ' in front of lines")->group(output);
  app.add_flag("--timestamps", run.timestamps, "Add the time in front of each line")->group(output);
  app.add_option("--color", run.colour, "Color of tags: auto (on a terminal), always, never")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->option_text("WHEN")
      ->group(output);
  app.add_flag("-v,--verbose", run.verbose, "Report each start with its host, and how it ended")->group(output);
  const char* info = "Information";
  app.add_flag("--check", run.check,
               "Check hosts, versions, addresses and options, measure the links between the hosts; runs no command")
      ->group(info);
  app.add_flag("--version", raw.version, "Print the version")->group(info);
  app.add_flag("-h,--help", raw.help, "Print this help")->group(info);
}

void add_runtime_options(CLI::App& app, RawOptions& raw) {
  for (const OptionInfo& option : option_table()) {
    if (set_by_launcher(option.name)) {
      continue;
    }
    std::string names = option.alias_flag.empty() ? "" : option.alias_flag + ",";
    names += option.flag;
    const std::string default_text =
        option.default_text.empty() ? "" : " (default " + std::string(option.default_text) + ")";
    app.add_option_function<std::string>(
           names, [&raw, name = option.name](const std::string& text) { raw.runtime[name] = text; },
           std::string(option.help) + default_text)
        ->type_name(option.accepted.empty() ? "TEXT" : std::string(option.accepted))
        ->group("Options of the runtime (docs/options.md)");
  }
}

// Rewrites -np to --np: -np is older than the rule that long names take two dashes.
std::string modern(const std::string& argument) {
  for (const std::string_view old : {"-np", "-hostfile"}) {
    if (argument == old || argument.starts_with(std::string(old) + "=")) {
      return "-" + argument;
    }
  }
  return argument;
}

// Returns the index of the user's command: the first word that is neither an option nor the value of an option.
std::size_t command_start(const CLI::App& app, const std::vector<std::string>& arguments) {
  std::size_t i = 0;
  while (i < arguments.size() && arguments[i].size() > 1 && arguments[i].front() == '-') {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      return i;
    }
    const bool is_long = argument.starts_with("--");
    const std::size_t equals = argument.find('=');
    const std::string name = is_long ? argument.substr(0, equals) : argument.substr(0, 2);
    const CLI::Option* option = app.get_option_no_throw(name);
    const bool value_inside = is_long ? equals != std::string::npos : argument.size() > 2;
    const int values = option == nullptr ? 0 : option->get_items_expected_min() - (value_inside ? 1 : 0);
    i += 1 + static_cast<std::size_t>(std::max(0, values));
  }
  return std::min(i, arguments.size());
}

// Options of torchrun, and what to write for them.
constexpr std::pair<std::string_view, std::string_view> kOfTorchrun[] = {
    {"--nproc-per-node", "write -np with the number of all ranks, and -H HOST:RANKS,... for several hosts"},
    {"--nnodes", "name the hosts with -H HOST:RANKS,... or --hostfile"},
    {"--node-rank", "leave it out: one launcher starts the ranks of all hosts"},
    {"--standalone", "leave it out: ranks on one host need no address"},
    {"--rdzv-backend", "leave it out: the launcher serves the rendezvous"},
    {"--rdzv-endpoint", "leave it out: the launcher serves the rendezvous"},
    {"--rdzv-id", "leave it out: the launcher serves the rendezvous"},
    {"--master-addr", "leave it out: the launcher serves the rendezvous"},
    {"--master-port", "leave it out: the launcher serves the rendezvous"},
    {"--max-restarts", "write --elastic MIN:MAX, which starts lost ranks again"}};

Status unknown_option(const CLI::App& app, const std::string& argument) {
  std::string asked = argument.substr(0, argument.find('='));
  std::ranges::replace(asked, '_', '-');
  for (const auto& [name, advice] : kOfTorchrun) {
    if (asked == name) {
      return invalid_argument(argument + " is an option of torchrun; " + std::string(advice));
    }
  }
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string_view near = nearest(asked, views);
  return invalid_argument("unknown option " + argument +
                          (near.empty() ? "" : "; did you mean " + std::string(near) + "?") +
                          " (sirtakirun --help lists all; options of your program go behind its name)");
}

Status parse_own_options(CLI::App& app, const std::vector<std::string>& arguments) {
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // CLI11 takes the last word first
  try {
    app.parse(reversed);
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> left = app.remaining();
    return unknown_option(app, left.empty() ? "" : left.front());
  } catch (const CLI::ParseError& error) {
    return invalid_argument(std::string(error.what()) + " (sirtakirun --help explains the options)");
  }
  return Status();
}

// Converts MIN, "MIN:" or "MIN:MAX" to the options elastic.min and elastic.max.
Status convert_elastic(const std::string& text, const std::string& max_np, RunOptions& run) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::string least = text.substr(0, colon);
  const std::string named = colon < text.size() ? text.substr(colon + 1) : "";
  const std::string most = max_np.empty() ? named : max_np;
  const auto is_number = [](const std::string& word) {
    return !word.empty() && word.size() <= 5 && word.find_first_not_of("0123456789") == std::string::npos;
  };
  if (!max_np.empty() && !named.empty() && named != max_np) {
    return invalid_argument("--elastic " + text + " and --max-np " + max_np +
                            " both name the most ranks; give one of them");
  }
  if (!is_number(least) || std::stoi(least) == 0 || (!most.empty() && !is_number(most))) {
    return invalid_argument("--elastic " + text + (max_np.empty() ? "" : " --max-np " + max_np) +
                            ": write the fewest ranks that go on, as --elastic 2:, and the most, as --elastic 2:4");
  }
  run.option_lines += option_line("elastic.min", least);
  run.option_lines += most.empty() ? "" : option_line("elastic.max", most);
  return Status();
}

// Returns the time with its unit: a number alone is one of seconds, as in command lines of horovodrun.
std::string with_unit(const std::string& time) {
  return time + (time.find_first_not_of("0123456789") == std::string::npos ? "s" : "");
}

// Converts MIN and MAX, where a number is one of seconds, to the options elastic.cooldown and elastic.cooldown_limit.
Status convert_cooldown(const std::vector<std::string>& range, RunOptions& run) {
  if (range.empty()) {
    return Status();
  }
  std::vector<std::string> texts;
  std::vector<Duration> times;
  for (const std::string& word : range) {
    texts.push_back(with_unit(word));
    const Result<Duration> time = parse_duration(texts.back());
    times.push_back(time ? *time : Duration::zero());
  }
  if (times[0] <= Duration::zero() || times[1] < times[0]) {
    return invalid_argument("--blacklist-cooldown-range " + range[0] + " " + range[1] +
                            ": write the shortest and the longest rest of a host, as 60 300 or 1min 5min");
  }
  run.option_lines += option_line("elastic.cooldown", texts[0]) + option_line("elastic.cooldown_limit", texts[1]);
  return Status();
}

// Gives a job without ranks on this host a port, unless it has other hosts.
Status complete_hub(RunOptions& run) {
  if (!run.join.hub) {
    return Status();
  }
  const bool named = !run.hosts.empty() || !run.hostfile.empty() || !run.discovery.script.empty();
  if (named || run.check || !run.join.address.empty()) {
    return invalid_argument(
        "--hub: leave out -H, --hostfile, --host-discovery-script, --check and --join; all ranks run on hosts that "
        "join");
  }
  run.join.port = run.join.port.value_or(0);
  return Status();
}

// Checks the options of a job that hosts may join, and of a host that joins one.
Status check_join(const CLI::App& app, const RunOptions& run) {
  if (!run.join.port && run.join.address.empty()) {
    return run.join.secret_file.empty()
               ? Status()
               : invalid_argument("--secret-file is for --join-port or --join; other jobs make a secret by themselves");
  }
  if (run.join.port) {
    if (app.count("--elastic-hub-wait") > 0) {
      return invalid_argument(
          "--elastic-hub-wait: give it to sirtakirun --join; it is the time for which that host waits");
    }
    const bool others = !run.discovery.script.empty() || run.check || !run.join.address.empty();
    return others ? invalid_argument("--join-port: leave out --join, --host-discovery-script and --check") : Status();
  }
  constexpr std::string_view kOfAJoiner[] = {"--join", "--secret-file", "--np", "--start-timeout",
                                             "--elastic-hub-wait"};
  for (const CLI::Option* option : app.get_options()) {
    const auto is_same = [option](std::string_view name) { return option->check_name(std::string(name)); };
    if (option->count() > 0 && std::ranges::none_of(kOfAJoiner, is_same)) {
      return invalid_argument("--join: leave out --" + option->get_lnames().front() +
                              "; give it to the launcher of the job, which tells this host");
    }
  }
  if (!run.command.empty()) {
    return invalid_argument("--join: leave out the command; it is that of the job");
  }
  if (run.np && (*run.np < 1 || *run.np > kMaxSlots)) {
    return invalid_argument("-np " + std::to_string(*run.np) + ": the slots of this host are at least 1");
  }
  return Status();
}

// Converts values that CLI11 cannot check.
Status convert(const RawOptions& raw, const CLI::App& app, RunOptions& run) {
  if (app.count("--np") > 0) {
    run.np = raw.np;
  }
  if (!run.hosts.empty() && !run.hostfile.empty()) {
    return invalid_argument("-H and --hostfile both name the hosts; give one of them");
  }
  if (!run.discovery.script.empty() && (!run.hosts.empty() || !run.hostfile.empty() || run.check)) {
    return invalid_argument("--host-discovery-script names the hosts; leave out -H, --hostfile and --check");
  }
  SRT_TRY(complete_hub(run));
  SRT_TRY(check_join(app, run));
  run.tag_output = !raw.no_tags;
  constexpr Duration kLongest = std::chrono::hours(24 * 7);
  constexpr Duration kShortestInterval = std::chrono::milliseconds(10);  // a script in a tight loop takes a core
  for (const auto& [text, target] :
       {std::pair{&raw.start_timeout, &run.start_timeout}, std::pair{&raw.failure_grace, &run.failure_grace},
        std::pair{&raw.term_grace, &run.term_grace}, std::pair{&raw.discovery_interval, &run.discovery.interval}}) {
    if (!text->empty()) {
      Result<Duration> value = parse_duration(run.horovod ? with_unit(*text) : *text);
      if (!value || *value < Duration::zero() || *value > kLongest) {
        return invalid_argument("'" + *text + "' is not a time of at most a week; write for example 30s or 500ms");
      }
      *target = *value;
    }
  }
  if (run.discovery.interval < kShortestInterval) {
    return invalid_argument("--discovery-interval " + raw.discovery_interval + ": write at least 10ms");
  }
  // A run must be over within 5 s of a failure, and the ranks get one of these seconds to end by themselves.
  run.failure_grace = std::min<Duration>(run.failure_grace, std::chrono::seconds(3));
  Result<std::vector<std::string>> extra = split_words(raw.ssh_options);
  if (!extra) {
    return extra.status().with_context("--ssh-options");
  }
  run.ssh.extra = std::move(*extra);
  for (const auto& [name, text] : raw.runtime) {
    const OptionInfo& row = *find_option(name);
    const bool theirs = run.horovod && !row.horovod.empty();  // the command line may be that of horovodrun
    const std::optional<std::string> value = theirs ? from_horovod(row, text) : text;
    run.option_lines += value ? option_line(name, *value) : "";
  }
  SRT_TRY(convert_cooldown(raw.cooldown, run));
  run.option_lines += raw.reset_limit.empty() ? "" : option_line("elastic.reset_limit", raw.reset_limit);
  if (app.count("--elastic") > 0) {
    return convert_elastic(raw.elastic, raw.most, run);
  }
  if (!raw.most.empty() && !run.discovery.script.empty() && run.np) {
    return convert_elastic(std::to_string(*run.np), raw.most, run);
  }
  return raw.most.empty() ? Status() : invalid_argument("--max-np needs --min-np: the fewest ranks that go on");
}

}  // namespace

Result<CommandLine> parse_command_line(const std::vector<std::string>& given) {
  CommandLine line;
  RawOptions raw;
  CLI::App app("Runs a command as several ranks of one training job, here and on other hosts.", "sirtakirun");
  app.set_help_flag();
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(kExamples);
  app.get_formatter()->column_width(38);
  add_job_options(app, line.run, raw);
  add_time_limits(app, raw);
  add_remote_options(app, line.run, raw);
  add_join_options(app, line.run);
  add_output_options(app, line.run, raw);
  add_runtime_options(app, raw);

  std::vector<std::string> arguments = given;
  std::size_t start = 0;
  // Only words before the command may be rewritten, and the beginning of the command depends on the rewriting.
  for (std::size_t seen = 0; seen <= start && seen < arguments.size(); ++seen) {
    arguments[seen] = modern(arguments[seen]);
    start = command_start(app, arguments);
  }
  const auto split = arguments.begin() + static_cast<std::ptrdiff_t>(start);
  line.run.command.assign(split, arguments.end());
  if (!line.run.command.empty() && line.run.command.front() == "--") {
    line.run.command.erase(line.run.command.begin());
  }
  SRT_TRY(parse_own_options(app, {arguments.begin(), split}));
  if (raw.help) {
    line.print = app.help();
    return line;
  }
  if (raw.version) {
    line.print = "sirtakirun " + library_version() + "\n";
    return line;
  }
  SRT_TRY(convert(raw, app, line.run));
  if (line.run.command.empty() && !line.run.check && line.run.join.address.empty()) {
    return invalid_argument("no command to run; for example: sirtakirun -np 4 python train.py (sirtakirun --help)");
  }
  return line;
}

}  // namespace sirtaki::launcher
