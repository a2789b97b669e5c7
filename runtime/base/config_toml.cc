#include "runtime/base/config_toml.h"

#include <algorithm>
#include <sstream>

#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

namespace sirtaki {
namespace {

constexpr std::size_t kMaxLine = 8 * 1024;

std::string at(std::string_view what, int line) {
  return std::string(what) + ":" + std::to_string(line);
}

// The parser recurses with the nesting of keys, so the text is bounded first.
Status check_size(std::string_view text, std::string_view what) {
  if (text.size() > kMaxTomlBytes) {
    return invalid_argument(std::string(what) + " has more than " + std::to_string(kMaxTomlBytes) + " bytes");
  }
  int line = 1;
  while (!text.empty()) {
    const std::size_t length = std::min(text.find('\n'), text.size());
    if (length > kMaxLine) {
      return invalid_argument(at(what, line) + " has more than " + std::to_string(kMaxLine) + " characters");
    }
    text.remove_prefix(std::min(length + 1, text.size()));
    ++line;
  }
  return {};
}

class Flattener {
 public:
  explicit Flattener(std::string_view what) : what_(what) {}

  Status add_table(const toml::table& table, const std::string& prefix) {
    for (const auto& [key, node] : table) {
      const std::string name = prefix + std::string(key.str());
      const toml::table* inner = node.as_table();
      if (inner == nullptr) {
        SRT_TRY(add_value(name, node));
      } else if (!prefix.empty()) {
        return invalid_argument(at(what_, line_of(node)) + ": " + name + " is a table inside a section; options are " +
                                "section.key = value");
      } else {
        SRT_TRY(add_table(*inner, name + "."));
      }
    }
    return {};
  }

  std::vector<TomlEntry> take() && {
    std::stable_sort(entries_.begin(), entries_.end(),
                     [](const TomlEntry& a, const TomlEntry& b) { return a.line < b.line; });
    return std::move(entries_);
  }

 private:
  static int line_of(const toml::node& node) { return static_cast<int>(node.source().begin.line); }

  Status add_value(const std::string& name, const toml::node& node) {
    std::string text;
    if (const auto* string = node.as_string()) {
      text = string->get();
    } else if (const auto* integer = node.as_integer()) {
      text = std::to_string(integer->get());
    } else if (const auto* flag = node.as_boolean()) {
      text = flag->get() ? "true" : "false";
    } else if (const auto* number = node.as_floating_point()) {
      std::ostringstream out;
      out << number->get();
      text = out.str();
    } else {
      return invalid_argument(at(what_, line_of(node)) + ": " + name + " is a list or a date; a text, a number, true " +
                              "or false is accepted");
    }
    entries_.push_back({name, std::move(text), line_of(node)});
    return {};
  }

  const std::string_view what_;
  std::vector<TomlEntry> entries_;
};

}  // namespace

Result<std::vector<TomlEntry>> parse_toml(std::string_view text, std::string_view what) {
  SRT_TRY(check_size(text, what));
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return invalid_argument(at(what, static_cast<int>(error.source().begin.line)) +
                            ": not valid TOML: " + std::string(error.description()));
  }
  Flattener flattener(what);
  SRT_TRY(flattener.add_table(parsed.table(), ""));
  return std::move(flattener).take();
}

}  // namespace sirtaki
