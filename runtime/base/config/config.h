// Config: every option of the runtime as a typed, constant value, and the table behind it (options.inc).
//
// Made by config_load.h and shared as shared_ptr<const Config>. Threads: immutable once loaded.
// Not for: reading files or the environment (config_load.h), options of single tensors.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/config/option_value.h"
#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki {

enum class OptionType : std::uint8_t { kInt, kBool, kBytes, kTime, kString, kChoice, kPortRange, kCompression };

namespace option_field {
using Int = int;
using Bool = bool;
using Bytes = std::int64_t;
using Time = Duration;
using String = std::string;
using Choice = std::string;       // one of the accepted names
using Compression = std::string;  // compression_spec.h
using PortRange = ::sirtaki::PortRange;
}  // namespace option_field

struct Config {
  // Sets all options to their defaults.
  Config();

  // Returns the origin of the value of `name` ("net.interface"): "default", "sirtaki.toml:12", "SIRTAKI_NET_INTERFACE",
  // "command line" or "program"; empty for an unknown name.
  std::string_view source(std::string_view name) const;

#define SRT_SECTION(section, Type) struct Type {
#define SRT_OPTION(section, key, type, text, accepted, scope, horovod, help) option_field::type key{};
#define SRT_SECTION_END(section) \
  }                              \
  section;
#define SRT_ALIAS(alias, section, key)
#include "runtime/base/config/options.inc"
#undef SRT_SECTION
#undef SRT_OPTION
#undef SRT_SECTION_END
#undef SRT_ALIAS

  std::vector<std::string> sources;  // index: row of option_table()
};

// Returns a Config with all options at their defaults, for settings that begin with the default of an option.
const Config& default_config();

enum class OptionScope : std::uint8_t {
  kLocal,   // may differ between ranks
  kAgreed,  // equal on all ranks
};

using OptionField = std::variant<int*, bool*, std::int64_t*, Duration*, std::string*, PortRange*>;

// One row of the table. Texts live as long as the program.
struct OptionInfo {
  std::string name;        // "net.interface": the key in TOML
  std::string env;         // "SIRTAKI_NET_INTERFACE"
  std::string flag;        // "--net-interface"
  std::string alias;       // short name at the top level ("compression"), or ""
  std::string alias_env;   // "SIRTAKI_COMPRESSION", or ""
  std::string alias_flag;  // "--compression", or ""
  std::string horovod;     // variable of Horovod that means the same, or ""
  OptionType type;         // form of the text
  OptionScope scope;       // kAgreed: compared when the ranks meet
  std::string_view default_text;
  std::string_view accepted;  // form described in options.inc
  std::string_view help;      // one or two sentences
  OptionField (*field)(Config&);
};

// Returns the rows in the order of options.inc.
const std::vector<OptionInfo>& option_table();
// Finds an option by name or top-level alias; nullptr if there is none.
const OptionInfo* find_option(std::string_view name);
// Returns the accepted values for messages and help: "a size such as 64KiB, from 0 to 16MiB".
std::string accepted_form(const OptionInfo& option);

// Reads `text` into the field of the option. Returns kInvalidArgument with the accepted values, and leaves the field
// unchanged then.
Status set_option(const OptionInfo& option, std::string_view text, Config& config);
// Returns the canonical text of the value, which set_option() accepts.
std::string get_option(const OptionInfo& option, const Config& config);

// Returns an error for options that contradict each other, with their sources.
Status validate(const Config& config);

// Returns the rhythm of heartbeats on control connections, which elastic jobs set with elastic.silence.
struct Heartbeats {
  Duration interval{};
  Duration timeout{};
};
Heartbeats heartbeats_of(const Config& config);

// Returns name and canonical value of every kAgreed option, in table order.
std::vector<std::pair<std::string, std::string>> agreed_options(const Config& config);
// Returns [{"name", "value", "source", "default", "type", "accepted", "help", "env", "cli", "alias", "agreed",
// "horovod"}, ...]
std::string options_json(const Config& config);
// Returns the page docs/options.md.
std::string options_markdown();

}  // namespace sirtaki
