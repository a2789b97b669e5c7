#include "runtime/base/config/config_load.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "runtime/base/config/compression_spec.h"
#include "runtime/base/config/config_toml.h"

namespace sirtaki {
namespace {

constexpr std::string_view kPrefix = "SIRTAKI_";

std::string variable_text(const Environment& environment, std::string_view name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

Status read_error(const std::string& path) {
  return unavailable("cannot read the configuration file " + path + ": " + std::strerror(errno) + "; it is named by " +
                     std::string(kConfigVariable) + " or --config-file");
}

// Reads at most the size that parse_toml() accepts, so that a device or a huge file cannot fill the memory.
Result<std::string> read_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return read_error(path);
  }
  std::string text;
  std::array<char, 4096> block{};
  ssize_t got = 1;
  while (got > 0 && text.size() <= kMaxTomlBytes) {
    got = ::read(fd, block.data(), block.size());
    if (got < 0 && errno == EINTR) {
      got = 1;
      continue;
    }
    text.append(block.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  }
  Result<std::string> result = got < 0 ? Result<std::string>(read_error(path)) : Result<std::string>(std::move(text));
  ::close(fd);
  return result;
}

// Layers of option values with their origins; a later layer replaces the values of earlier ones.
class Layers {
 public:
  // Sets the option `row` to a value that stands at `place` ("sirtaki.toml:12"); `source` is its origin in Config.
  Status set(const OptionInfo& row, std::string_view text, const std::string& source, const std::string& place) {
    const auto index = static_cast<std::size_t>(&row - option_table().data());
    if (assigned_.at(index) && get_option(row, config_) != canonical(row, text)) {
      return invalid_argument(place + ": " + row.name + " is given twice in the same place, by its name and by its " +
                              "short name, with different values; keep one");
    }
    SRT_TRY(set_option(row, text, config_).with_context(place));
    config_.sources.at(index) = source;
    assigned_.at(index) = true;
    return {};
  }

  void next_layer() { assigned_.assign(option_table().size(), false); }

  Status set_unknown(std::string_view name, const std::string& place) const {
    std::vector<std::string_view> names;
    for (const OptionInfo& row : option_table()) {
      names.push_back(row.name);
      if (!row.alias.empty()) {
        names.push_back(row.alias);
      }
    }
    return unknown(place + ": unknown option " + std::string(name), nearest(name, names));
  }

  static Status unknown(std::string text, std::string_view near) {
    if (!near.empty()) {
      text += " (did you mean " + std::string(near) + "?)";
    }
    return invalid_argument(text + "; docs/options.md lists all options");
  }

  // The usual threshold of Horovod is far above the useful range here and means "as much as possible".
  void fit_horovod_fusion() {
    auto& schedule = config_.schedule;
    if (config_.source("schedule.fusion_bytes") == "HOROVOD_FUSION_THRESHOLD") {
      schedule.fusion_bytes = std::min(schedule.fusion_bytes, schedule.partition_bytes);
    }
  }

  Config take() && { return std::move(config_); }
  const Config& config() const { return config_; }

 private:
  static std::string canonical(const OptionInfo& row, std::string_view text) {
    Config scratch;
    return set_option(row, text, scratch).ok() ? get_option(row, scratch) : std::string(text);
  }

  Config config_;
  std::vector<bool> assigned_ = std::vector<bool>(option_table().size(), false);
};

// The [[tensor]] tables of one text, collected as the option compression.rules.
class TensorRules {
 public:
  // Adds the rule of a table that begins at `place`, line `line`.
  Status add(const std::string& rule, const std::string& place, int line) {
    SRT_TRY(parse_spec(rule).status().with_context(place));
    text_ += (text_.empty() ? "" : ";") + rule;
    if (place_.empty()) {
      place_ = place;
    } else {
      lines_ += ", " + std::to_string(line);
    }
    return {};
  }

  Status finish(Layers& layers, const std::string& source) const {
    if (text_.empty()) {
      return {};
    }
    return layers.set(*find_option("compression.rules"), text_, source.empty() ? place_ + lines_ : source, place_);
  }

 private:
  std::string text_;
  std::string place_;  // place of the first table
  std::string lines_;  // lines of further tables
};

// Sets the options of a TOML text. An empty `source` means "what:line" of each entry.
Status add_toml(Layers& layers, std::string_view text, const std::string& what, const std::string& source) {
  SRT_ASSIGN(const std::vector<TomlEntry> entries, parse_toml(text, what));
  layers.next_layer();
  TensorRules rules;
  for (const TomlEntry& entry : entries) {
    const std::string place = source.empty() ? what + ":" + std::to_string(entry.line) : what;
    if (entry.key == kTensorRule) {
      SRT_TRY(rules.add(entry.value, place, entry.line));
      continue;
    }
    const OptionInfo* row = find_option(entry.key);
    if (row == nullptr) {
      return layers.set_unknown(entry.key, place);
    }
    SRT_TRY(layers.set(*row, entry.value, source.empty() ? place : source, place));
  }
  return rules.finish(layers, source);
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789.") == std::string_view::npos;
}

constexpr std::string_view kStallCheckDisable = "HOROVOD_STALL_CHECK_DISABLE";
constexpr std::string_view kNever = "8760h";  // a year, longer than any job

}  // namespace

std::optional<std::string> from_horovod(const OptionInfo& row, const std::string& text) {
  if (row.horovod == "HOROVOD_TIMELINE" && text == "DYNAMIC") {
    return std::nullopt;  // a timeline can always be started later
  }
  if (row.horovod == "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS" && text == "0") {
    return std::string(kNever);
  }
  if (row.horovod == "HOROVOD_LOG_HIDE_TIME") {
    const auto hide = parse_bool(text);
    return hide ? (*hide ? "false" : "true") : text;
  }
  if (row.type == OptionType::kTime && is_number(text)) {
    return text + "s";
  }
  if (row.type == OptionType::kBytes && parse_bytes(text)) {
    return format_bytes(std::min(*parse_bytes(text), std::int64_t{1} << 30));
  }
  if (row.horovod == "HOROVOD_LOG_LEVEL") {
    std::string level = text;
    std::transform(level.begin(), level.end(), level.begin(), [](unsigned char c) { return std::tolower(c); });
    return level == "warning" ? "warn" : level == "fatal" ? "error" : level;
  }
  return text;
}

namespace {

// Returns whether the variable of Horovod that disables the search for stuck jobs is set; it sets two options here.
Result<bool> disables_stall_check(const Environment& environment) {
  const auto found = environment.find(kStallCheckDisable);
  if (found == environment.end() || found->second.empty()) {
    return false;
  }
  auto disables = parse_bool(found->second);
  return disables ? disables : Result<bool>(disables.status().with_context(std::string(kStallCheckDisable)));
}

Status add_horovod(Layers& layers, const Environment& environment) {
  layers.next_layer();
  SRT_ASSIGN(const bool no_stalls, disables_stall_check(environment));
  for (const OptionInfo& row : option_table()) {
    if (no_stalls && (row.name == "control.stall_warn" || row.name == "control.stall_fail")) {
      SRT_TRY(layers.set(row, kNever, std::string(kStallCheckDisable), std::string(kStallCheckDisable)));
      continue;
    }
    const auto found = row.horovod.empty() ? environment.end() : environment.find(row.horovod);
    if (found == environment.end() || found->second.empty()) {
      continue;
    }
    if (const auto text = from_horovod(row, found->second)) {
      SRT_TRY(layers.set(row, *text, row.horovod, row.horovod));
    }
  }
  return {};
}

Status check_variable(const std::string& name) {
  static constexpr std::array<std::string_view, 7> kOthers = {
      kConfigVariable,    kConfigTextVariable, kCommandLineVariable, kLocalRankVariable,
      kLocalSizeVariable, kTerminalVariable,   kJoinSecretVariable};
  std::vector<std::string_view> known(kOthers.begin(), kOthers.end());
  for (const OptionInfo& row : option_table()) {
    known.push_back(row.env);
    if (!row.alias.empty()) {
      known.push_back(row.alias_env);
    }
  }
  if (!name.starts_with(kPrefix) || std::find(known.begin(), known.end(), name) != known.end()) {
    return {};
  }
  return Layers::unknown("unknown environment variable " + name, nearest(name, known));
}

Status add_environment(Layers& layers, const Environment& environment) {
  SRT_TRY(add_horovod(layers, environment));
  layers.next_layer();
  for (const auto& [name, text] : environment) {
    SRT_TRY(check_variable(name));
    for (const OptionInfo& row : option_table()) {
      if (name == row.env || (!row.alias.empty() && name == row.alias_env)) {
        SRT_TRY(layers.set(row, text, name, name));
      }
    }
  }
  return {};
}

Status add_file(Layers& layers, const ConfigSources& sources) {
  const std::string path =
      sources.file_path.empty() ? variable_text(sources.environment, kConfigVariable) : sources.file_path;
  std::optional<std::string> text = sources.file_text;
  if (const auto given = sources.environment.find(kConfigTextVariable); !text && given != sources.environment.end()) {
    text = given->second;
  }
  if (!text && !path.empty()) {
    SRT_ASSIGN(text, read_file(path));
  }
  if (!text) {
    return {};
  }
  return add_toml(layers, *text, path.empty() ? "sirtaki.toml" : path, "");
}

}  // namespace

bool set_by_launcher(std::string_view name) {
  return name == "job.rank" || name == "job.size" || name == "job.rendezvous" || name == "job.secret_file" ||
         name == "job.secret_fd";
}

Environment process_environment() {
  Environment variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos) {
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return variables;
}

ConfigSources process_sources() {
  ConfigSources sources;
  sources.environment = process_environment();
  return sources;
}

Result<std::shared_ptr<const Config>> load_config(const ConfigSources& sources) {
  Layers layers;
  SRT_TRY(add_file(layers, sources));
  SRT_TRY(add_environment(layers, sources.environment));
  SRT_TRY(add_toml(layers, variable_text(sources.environment, kCommandLineVariable), "command line", "command line"));
  SRT_TRY(add_toml(layers, sources.command_line, "command line", "command line"));
  SRT_TRY(add_toml(layers, sources.program, "program", "program"));
  layers.fit_horovod_fusion();
  SRT_TRY(validate(layers.config()));
  return std::make_shared<const Config>(std::move(layers).take());
}

std::string option_line(std::string_view name, std::string_view value) {
  static constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string line(name);
  line += " = \"";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      line += "\\u00";
      line += kHex[byte >> 4U];
      line += kHex[byte & 15U];
      continue;
    }
    if (c == '"' || c == '\\') {
      line += '\\';
    }
    line += c;
  }
  return line + "\"\n";
}

}  // namespace sirtaki
