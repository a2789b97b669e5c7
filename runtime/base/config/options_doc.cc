#include "runtime/base/config/compression_methods.h"
#include "runtime/base/config/config.h"
#include "runtime/base/config/config_load.h"

namespace sirtaki {
namespace {

constexpr std::string_view kIntro =
    "# Options\n\n"
    "Generated from `runtime/base/config/options.inc`; `tests/arch/check_options.py` says how to refresh it.\n\n"
    "An option can be set in five places; later ones override earlier ones:\n\n"
    "1. its default,\n"
    "2. a TOML file named by `SIRTAKI_CONFIG` or `sirtakirun --config-file`: `key = value` under `[section]`,\n"
    "3. the environment: `SIRTAKI_SECTION_KEY`, which overrides the Horovod variable with the same meaning,\n"
    "4. the command line of `sirtakirun`: `--section-key value`,\n"
    "5. the program: `init(options={\"section.key\": value})`.\n\n"
    "An unknown key or `SIRTAKI_` variable, or a bad value, is an error. Sizes are bytes or carry `B`, `KiB`, `MiB`, "
    "`GiB`; "
    "durations carry `ns`, `us`, `ms`, `s`, `min` or `h`.\n"
    "*Agreed* options must be equal on all ranks; they are compared when the ranks meet.\n";

std::string code(std::string_view text) {
  return text.empty() ? "empty" : "`" + std::string(text) + "`";
}

std::string paragraph(const OptionInfo& option) {
  std::string text = "\n### " + option.name + "\n" + std::string(option.help) + "\n\n";
  text += "- default: " + code(option.default_text) + "; accepted: " + accepted_form(option) + "\n";
  const bool own = set_by_launcher(option.name);
  text += "- environment: " + code(option.env) +
          (own ? "; set by `sirtakirun`, which has no flag for it" : "; command line: " + code(option.flag)) + "\n";
  if (!option.alias.empty()) {
    text += "- short: " + code(option.alias) + " at the top of the TOML file, " + code(option.alias_env) +
            (own ? "" : ", " + code(option.alias_flag)) + "\n";
  }
  if (!option.horovod.empty()) {
    text += "- Horovod variable: " + code(option.horovod) + "\n";
  }
  if (option.scope == OptionScope::kAgreed) {
    text += "- agreed: equal on all ranks\n";
  }
  return text;
}

std::string methods_chapter() {
  std::string text =
      "\n## Codecs and policies\n`compression.codec`, its rules and the `compression=` of a program accept these "
      "names. `ef` is error feedback, `wire` the collective that exchanges payloads, `min` the size and `ndim` the "
      "number of dimensions from which a tensor is compressed; vectors, small tensors and all types except float32 are "
      "sent dense. [compression.md](compression.md) says how to choose one.\n";
  for (const MethodInfo& method : methods()) {
    text += "\n### " + std::string(method.name) + "\n" + std::string(method.help) + "\n";
    for (const KeyInfo& key : method.keys) {
      text += std::string(&key == &method.keys.front() ? "\n" : "") + "- `" + std::string(key.name) +
              "`: " + accepted_values(key) + "; default `" + value_text(key, key.initial) + "`\n";
    }
  }
  return text;
}

}  // namespace

std::string options_markdown() {
  std::string page(kIntro);
  std::string section;
  for (const OptionInfo& option : option_table()) {
    const std::string own = option.name.substr(0, option.name.find('.'));
    if (own != section) {
      section = own;
      page += "\n## " + section + "\n";
    }
    page += paragraph(option);
  }
  return page + methods_chapter();
}

}  // namespace sirtaki
