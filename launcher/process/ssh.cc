#include "launcher/process/ssh.h"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "launcher/process/processes.h"

namespace sirtaki::launcher {

namespace {

std::string shell_quote(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return out + "'";
}

struct Cause {
  std::string_view sign;  // part of a message of ssh
  std::string_view fix;
};

constexpr std::array<Cause, 9> kCauses = {{
    {"Permission denied",
     "log in without a password must work: try 'ssh HOST true', give a key with "
     "--ssh-identity-file, or load one into ssh-agent"},
    {"Too many authentication failures",
     "ssh offered too many keys: name the right one with --ssh-identity-file and --ssh-options '-o "
     "IdentitiesOnly=yes'"},
    {"Host key verification failed",
     "its key is unknown or has changed: run 'ssh HOST true' once and confirm the key, "
     "or pass --ssh-options '-o StrictHostKeyChecking=accept-new'"},
    {"Could not resolve hostname", "the name is unknown here: check -H or the hostfile, DNS and /etc/hosts"},
    {"Connection refused", "no ssh server listens there: start sshd, or give its port with --ssh-port"},
    {"timed out", "the host does not answer: check that it is up and that no firewall drops the connection"},
    {"No route to host", "the host cannot be reached: check that it is up, and the routes and firewalls"},
    {"Network is unreachable", "no network leads there: check the address and the routes"},
    {"Connection closed by", "its ssh server ended the connection: look at the server's log, and at MaxStartups"},
}};

std::string last_lines(const std::string& text, std::size_t count) {
  std::vector<std::string> lines;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    std::erase(line, '\r');
    if (!line.empty()) {
      lines.push_back(std::move(line));
    }
    at = end + 1;
  }
  std::string out;
  for (std::size_t i = lines.size() > count ? lines.size() - count : 0; i < lines.size(); ++i) {
    out += (out.empty() ? "" : " / ") + lines[i];
  }
  return out;
}

std::string with_host(std::string_view fix, const std::string& host) {
  std::string out(fix);
  if (const std::size_t at = out.find("HOST"); at != std::string::npos) {
    out.replace(at, 4, host);
  }
  return out;
}

}  // namespace

std::vector<std::string> ssh_command(const SshOptions& options, const std::string& host,
                                     const std::string& remote_path) {
  std::vector<std::string> argv = {options.program};
  // ssh takes the first value of each option, so the user's options come first.
  argv.insert(argv.end(), options.extra.begin(), options.extra.end());
  argv.insert(argv.end(), {"-T", "-x", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "-o",
                           "ConnectTimeout=" + std::to_string(options.connect_timeout_s), "-o", "ServerAliveInterval=5",
                           "-o", "ServerAliveCountMax=4", "-o", "ControlMaster=no"});
  if (options.port != 0) {
    argv.insert(argv.end(), {"-p", std::to_string(options.port)});
  }
  if (!options.identity_file.empty()) {
    argv.insert(argv.end(), {"-i", options.identity_file});
  }
  argv.insert(argv.end(), {"--", host, shell_quote(remote_path) + " --agent"});
  return argv;
}

Result<std::vector<std::string>> split_words(const std::string& text) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote == 0 && (c == ' ' || c == '\t' || c == '\n')) {
      in_word = false;
      continue;
    }
    if (!in_word) {
      words.emplace_back();
      in_word = true;
    }
    if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == quote) {
      quote = 0;
    } else if (c == '\\' && quote != '\'' && i + 1 < text.size()) {
      words.back() += text[++i];
    } else {
      words.back() += c;
    }
  }
  if (quote != 0) {
    return invalid_argument(std::string("the closing ") + quote + " is missing in: " + text);
  }
  return words;
}

Status explain_ssh_failure(const std::string& host, const std::string& remote_path, int wait_status,
                           const std::string& messages, const std::string& junk) {
  const std::string where = "host " + host + ": ";
  const std::string tail = last_lines(messages, 3);
  const std::string quoted = tail.empty() ? "" : " (ssh: " + tail + ")";
  if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 127) {
    return unavailable(where + "there is no " + remote_path +
                       "; install Sirtaki there at the same path, or say where " + "it is with --remote-path" + quoted);
  }
  if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 126) {
    return unavailable(where + remote_path + " cannot be executed there; check its mode, or name another with " +
                       "--remote-path" + quoted);
  }
  for (const Cause& cause : kCauses) {
    if (messages.find(cause.sign) != std::string::npos) {
      return unavailable(where + with_host(cause.fix, host) + quoted);
    }
  }
  const std::string printed = last_lines(junk, 2);
  return unavailable(where + "ssh ended with " + describe_wait_status(wait_status) + " before the agent answered" +
                     quoted + (printed.empty() ? "" : " (printed: " + printed + ")") + "; try 'ssh " + host + " " +
                     remote_path + " --version'");
}

}  // namespace sirtaki::launcher
