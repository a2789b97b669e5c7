#include "runtime/base/config/config.h"

#include <algorithm>
#include <cctype>

#include "runtime/base/check.h"
#include "runtime/base/config/compression_spec.h"
#include "runtime/base/json.h"

namespace sirtaki {
namespace {

std::string env_name(std::string_view name) {
  std::string env = "SIRTAKI_";
  for (const char c : name) {
    env += c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return env;
}

std::string flag_name(std::string_view name) {
  std::string flag = "--" + std::string(name);
  std::replace_if(
      flag.begin(), flag.end(), [](char c) { return c == '.' || c == '_'; }, '-');
  return flag;
}

OptionInfo make_row(OptionInfo row) {
  row.env = env_name(row.name);
  row.flag = flag_name(row.name);
  return row;
}

void add_alias(std::vector<OptionInfo>& table, std::string_view alias, std::string_view name) {
  const auto row = std::find_if(table.begin(), table.end(), [&](const OptionInfo& o) { return o.name == name; });
  SRT_CHECK(row != table.end());
  row->alias = alias;
  row->alias_env = env_name(alias);
  row->alias_flag = flag_name(alias);
}

std::vector<OptionInfo> make_table() {
  std::vector<OptionInfo> table;
#define SRT_SECTION(section, Type)
#define SRT_OPTION(section, key, type, text, accept, scope, horovod, help)                                           \
  table.push_back(make_row({#section "." #key, "", "", "", "", "", horovod, OptionType::k##type, OptionScope::scope, \
                            text, accept, help, [](Config& config) -> OptionField { return &config.section.key; }}));
#define SRT_SECTION_END(section)
#define SRT_ALIAS(alias, section, key) add_alias(table, #alias, #section "." #key);
#include "runtime/base/config/options.inc"
#undef SRT_SECTION
#undef SRT_OPTION
#undef SRT_SECTION_END
#undef SRT_ALIAS
  return table;
}

std::string_view type_name(OptionType type) {
  switch (type) {
    case OptionType::kInt:
      return "int";
    case OptionType::kBool:
      return "bool";
    case OptionType::kBytes:
      return "bytes";
    case OptionType::kTime:
      return "duration";
    case OptionType::kString:
      return "string";
    case OptionType::kChoice:
      return "choice";
    case OptionType::kPortRange:
      return "ports";
    case OptionType::kCompression:
      return "compression";
  }
  return "unknown";
}

struct Range {
  std::string_view low;
  std::string_view high;
};

Range range_of(const OptionInfo& option) {
  const std::size_t dots = option.accepted.find("..");
  SRT_CHECK(dots != std::string_view::npos);
  return {option.accepted.substr(0, dots), option.accepted.substr(dots + 2)};
}

template <class T, class Parse>
Status set_ranged(const OptionInfo& option, std::string_view text, Parse parse, T* field) {
  SRT_ASSIGN(const auto value, parse(text));
  const Range range = range_of(option);
  if (value < *parse(range.low) || *parse(range.high) < value) {
    return invalid_argument("\"" + std::string(text) + "\" is out of range");
  }
  *field = static_cast<T>(value);
  return {};
}

template <class T>
Status set_plain(Result<T> parsed, T* field) {
  if (!parsed) {
    return parsed.status();
  }
  *field = std::move(parsed).value();
  return {};
}

Status set_choice(const OptionInfo& option, std::string_view text, std::string* field) {
  const auto names = split(option.accepted, '|');
  if (std::find(names.begin(), names.end(), text) != names.end()) {
    *field = text;
    return {};
  }
  std::string message = "\"" + std::string(text) + "\" is not a choice";
  if (const auto near = nearest(text, names); !near.empty()) {
    message += " (did you mean \"" + std::string(near) + "\"?)";
  }
  return invalid_argument(message);
}

Status set_compression(const OptionInfo& option, std::string_view text, std::string* field) {
  const bool rules = option.accepted == "rules";
  if (!rules || !text.empty()) {
    SRT_ASSIGN(const Spec spec, parse_spec(text));
    if (rules && spec.for_all) {
      return invalid_argument("\"" + std::string(text) + "\" has no GLOB=>");
    }
  }
  *field = text;
  return {};
}

Status set_field(const OptionInfo& option, std::string_view text, Config& config) {
  const OptionField field = option.field(config);
  switch (option.type) {
    case OptionType::kInt:
      return set_ranged(option, text, parse_int, std::get<int*>(field));
    case OptionType::kBool:
      return set_plain(parse_bool(text), std::get<bool*>(field));
    case OptionType::kBytes:
      return set_ranged(option, text, parse_bytes, std::get<std::int64_t*>(field));
    case OptionType::kTime:
      return set_ranged(option, text, parse_duration, std::get<Duration*>(field));
    case OptionType::kString:
      *std::get<std::string*>(field) = text;
      return {};
    case OptionType::kChoice:
      return set_choice(option, text, std::get<std::string*>(field));
    case OptionType::kPortRange:
      return set_plain(parse_port_range(text), std::get<PortRange*>(field));
    case OptionType::kCompression:
      return set_compression(option, text, std::get<std::string*>(field));
  }
  return bug("option " + option.name + " has no type");
}

// Returns "net.interface = eth1 (SIRTAKI_NET_INTERFACE)".
std::string shown(std::string_view name, const Config& config) {
  return std::string(name) + " = " + get_option(*find_option(name), config) + " (" + std::string(config.source(name)) +
         ")";
}

}  // namespace

const std::vector<OptionInfo>& option_table() {
  static const std::vector<OptionInfo> kTable = make_table();
  return kTable;
}

const OptionInfo* find_option(std::string_view name) {
  const auto& table = option_table();
  const auto row = std::find_if(table.begin(), table.end(), [&](const OptionInfo& option) {
    return option.name == name || (!option.alias.empty() && option.alias == name);
  });
  return row == table.end() ? nullptr : &*row;
}

Config::Config() : sources(option_table().size(), "default") {
  for (const OptionInfo& option : option_table()) {
    SRT_CHECK(set_option(option, option.default_text, *this).ok());
  }
}

const Config& default_config() {
  static const Config kDefaults;
  return kDefaults;
}

std::string_view Config::source(std::string_view name) const {
  const OptionInfo* option = find_option(name);
  return option == nullptr ? ""
                           : std::string_view(sources.at(static_cast<std::size_t>(option - option_table().data())));
}

std::string accepted_form(const OptionInfo& option) {
  const auto ranged = [&](std::string_view what) {
    const Range range = range_of(option);
    return std::string(what) + ", from " + std::string(range.low) + " to " + std::string(range.high);
  };
  switch (option.type) {
    case OptionType::kInt:
      return ranged("a whole number");
    case OptionType::kBool:
      return "true or false";
    case OptionType::kBytes:
      return ranged("a size in bytes or with B, KiB, MiB, GiB");
    case OptionType::kTime:
      return ranged("a duration with its unit (ns, us, ms, s, min, h)");
    case OptionType::kString:
      return "a text";
    case OptionType::kChoice: {
      std::string names;
      for (const std::string_view name : split(option.accepted, '|')) {
        names += (names.empty() ? "" : ", ") + std::string(name);
      }
      return "one of " + names;
    }
    case OptionType::kPortRange:
      return "a range of ports such as 41000-41100";
    case OptionType::kCompression:
      return option.accepted == "rules" ? "rules GLOB=>CODEC;GLOB=>CODEC"
                                        : "CODEC[:key=value,key=value] or rules GLOB=>CODEC;GLOB=>CODEC";
  }
  return "";
}

Status set_option(const OptionInfo& option, std::string_view text, Config& config) {
  Status status = set_field(option, text, config);
  if (!status.ok() && status.code() == Code::kInvalidArgument) {
    return invalid_argument(option.name + ": " + std::string(status.text()) + "; accepted: " + accepted_form(option));
  }
  return status;
}

std::string get_option(const OptionInfo& option, const Config& config) {
  // The table has one accessor for reading and writing; the field is only read here.
  const OptionField field = option.field(const_cast<Config&>(config));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  switch (option.type) {
    case OptionType::kInt:
      return std::to_string(*std::get<int*>(field));
    case OptionType::kBool:
      return *std::get<bool*>(field) ? "true" : "false";
    case OptionType::kBytes:
      return format_bytes(*std::get<std::int64_t*>(field));
    case OptionType::kTime:
      return format_duration(*std::get<Duration*>(field));
    case OptionType::kString:
    case OptionType::kChoice:
    case OptionType::kCompression:
      return *std::get<std::string*>(field);
    case OptionType::kPortRange:
      return format_port_range(*std::get<PortRange*>(field));
  }
  return "";
}

Status validate(const Config& config) {
  const auto contradiction = [&](std::string_view a, std::string_view b, std::string_view rule) {
    return invalid_argument(shown(a, config) + " and " + shown(b, config) +
                            " contradict each other: " + std::string(rule));
  };
  if (config.job.size > 0 && config.job.rank >= config.job.size) {
    return contradiction("job.rank", "job.size", "ranks are 0 to size - 1");
  }
  if (config.control.heartbeat_timeout <= config.control.heartbeat_interval) {
    return contradiction("control.heartbeat_timeout", "control.heartbeat_interval",
                         "the timeout must be longer than the interval");
  }
  if (config.control.stall_fail < config.control.stall_warn) {
    return contradiction("control.stall_fail", "control.stall_warn", "the warning comes first");
  }
  if (config.schedule.credit_bytes < config.schedule.partition_bytes) {
    return contradiction("schedule.credit_bytes", "schedule.partition_bytes",
                         "the credit must hold at least one partition");
  }
  if (config.schedule.credit_bytes < config.schedule.fusion_bytes) {
    return contradiction("schedule.credit_bytes", "schedule.fusion_bytes",
                         "the credit must hold at least one fused partition");
  }
  if (config.device.nccl_credit_bytes < config.device.nccl_partition_bytes) {
    return contradiction("device.nccl_credit_bytes", "device.nccl_partition_bytes",
                         "the credit must hold at least one partition");
  }
  return {};
}

Heartbeats heartbeats_of(const Config& config) {
  if (config.elastic.min > 0) {
    return {config.elastic.silence / 6, config.elastic.silence};
  }
  return {config.control.heartbeat_interval, config.control.heartbeat_timeout};
}

std::vector<std::pair<std::string, std::string>> agreed_options(const Config& config) {
  std::vector<std::pair<std::string, std::string>> agreed;
  for (const OptionInfo& option : option_table()) {
    if (option.scope == OptionScope::kAgreed) {
      agreed.emplace_back(option.name, get_option(option, config));
    }
  }
  return agreed;
}

std::string options_json(const Config& config) {
  JsonWriter json;
  json.begin_array();
  for (const OptionInfo& option : option_table()) {
    json.begin_object();
    json.key("name").value(option.name).key("value").value(get_option(option, config));
    json.key("source").value(config.source(option.name)).key("default").value(option.default_text);
    json.key("type").value(type_name(option.type)).key("accepted").value(accepted_form(option));
    json.key("help").value(option.help).key("env").value(option.env).key("cli").value(option.flag);
    json.key("alias").value(option.alias).key("agreed").value(option.scope == OptionScope::kAgreed);
    json.key("horovod").value(option.horovod);
    json.end_object();
  }
  json.end_array();
  return std::move(json).take();
}

}  // namespace sirtaki
