#include "launcher/join/joiner.h"

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <utility>

#include "launcher/agent/agent.h"
#include "launcher/join/host_offer.h"
#include "launcher/join/join_secret.h"
#include "launcher/process/processes.h"
#include "runtime/base/config/option_value.h"
#include "runtime/base/host_info.h"
#include "runtime/rendezvous/link/dial.h"

namespace sirtaki::launcher {

using rendezvous::StreamCipher;

namespace {

constexpr int kUsageError = 2;
constexpr Duration kHandshakeTime = std::chrono::seconds(5);
constexpr Duration kSilence = std::chrono::seconds(30);
constexpr auto kSecretPause = std::chrono::milliseconds(50);
constexpr Duration kQuietTime = std::chrono::seconds(1);  // before the user learns of the wait

int say(const std::string& text, int exit_code) {
  std::fprintf(stderr, "sirtakirun: %s\n", text.c_str());
  return exit_code;
}

// Takes the signals that end the wait for the job: as process 1 of a container, this one would ignore them.
class EndSignals {
 public:
  EndSignals() {
    sigemptyset(&set_);
    for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
      if (!is_ignored(number)) {
        sigaddset(&set_, number);
      }
    }
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

  // Returns the first signal that has come, or comes within this time; 0 if there is none.
  int wait(std::chrono::milliseconds time = {}) {
    const timespec pause{time.count() / 1000, time.count() % 1000 * 1000000};
    const int number = taken_ != 0 ? taken_ : sigtimedwait(&set_, nullptr, &pause);
    taken_ = std::max(number, 0);
    return taken_;
  }

 private:
  sigset_t set_{};
  int taken_ = 0;
};

// The launcher may be about to write the file.
Result<rendezvous::Secret> await_secret(const JoinerOptions& options, const Environment& environment,
                                        TimePoint deadline, EndSignals& signals) {
  for (bool told = false;; told = true) {
    std::error_code error;
    const bool missing = !options.secret_file.empty() && !std::filesystem::exists(options.secret_file, error);
    auto secret = join_secret(options.secret_file, environment, false);
    if (secret || !missing || std::chrono::steady_clock::now() >= deadline || signals.wait(kSecretPause) != 0) {
      return secret;
    }
    if (!told) {
      say("waiting for " + options.secret_file + ", for " + format_duration(options.patience) + " at most", 0);
    }
  }
}

// Connects to the job, at first or `again` after its launcher was lost.
Result<ChannelEnds> reach(const JoinerOptions& options, const rendezvous::Secret& secret, Duration time, bool again,
                          EndSignals& signals) {
  rendezvous::DialOptions dial;
  dial.addresses = {options.address};
  dial.who = again ? "the job again" : "a job";
  dial.fix = again ? "start its launcher again at this address; elastic.hub_wait waits longer"
                   : "check that the job runs with --join-port, its address and port, and firewalls between; "
                     "--start-timeout waits longer";
  dial.purpose = rendezvous::Purpose::kAgent;
  dial.hello = encode(HostOffer{host_info().hostname, options.slots});
  dial.secret = secret;
  dial.connect_timeout = std::max<Duration>(time, std::chrono::milliseconds(1));
  dial.handshake_timeout = kHandshakeTime;
  dial.silence_timeout = kSilence;
  const auto begin = std::chrono::steady_clock::now();
  bool told = again;
  MoveFunction<bool()> tell_if_slow = [&] {
    if (!told && std::chrono::steady_clock::now() - begin > kQuietTime) {
      told = true;
      say("waiting for the job at " + options.address + ", for " + format_duration(options.patience) + " at most", 0);
    }
    return signals.wait() != 0;
  };
  rendezvous::AsioLoop loop("srt-join");
  SRT_ASSIGN(rendezvous::Dialed dialed, rendezvous::dial(loop, dial, tell_if_slow));
  return socket_ends(FileDescriptor(dialed.fd.release()), StreamCipher(dialed.session, StreamCipher::Side::kInitiator),
                     std::move(dialed.following));
}

Result<Duration> hub_wait(const JoinerOptions& options, const Environment& environment) {
  ConfigSources sources;
  sources.environment = environment;
  sources.command_line = options.option_lines;
  SRT_ASSIGN(const auto config, load_config(sources));
  return config->elastic.hub_wait;
}

// Returns the local date and time after this time.
std::string time_after(Duration time) {
  const auto then = std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::seconds>(time);
  const std::time_t clock = std::chrono::system_clock::to_time_t(then);
  std::tm local{};
  localtime_r(&clock, &local);
  char text[32];
  return std::string(text, std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &local));
}

}  // namespace

int join_job(const JoinerOptions& options, const Environment& environment) {
  if (const auto where = rendezvous::parse_host_port(options.address); !where) {
    return say("--join " + options.address + ": " + std::string(where.status().text()), kUsageError);
  }
  const auto wait = hub_wait(options, environment);
  if (!wait) {
    return say(std::string(wait.status().text()), kUsageError);
  }
  // The agent of this host is in the background of its terminal, where output may stop a process ("stty tostop").
  signal(SIGTTOU, SIG_IGN);
  const TimePoint deadline = std::chrono::steady_clock::now() + options.patience;
  EndSignals signals;
  const auto secret = await_secret(options, environment, deadline, signals);
  if (!secret) {
    const int by = signals.wait();
    return by != 0 ? 128 + by : say(std::string(secret.status().text()), kUsageError);
  }
  Duration time = deadline - std::chrono::steady_clock::now();
  for (bool again = false;; again = true) {
    Result<ChannelEnds> ends = reach(options, *secret, time, again, signals);
    if (const int by = signals.wait(); by != 0) {
      return 128 + by;
    }
    if (!ends) {
      return say(std::string(ends.status().text()), 1);
    }
    const AgentEnd end = run_joined_agent(std::move(*ends));
    if (!end.lost) {
      return end.exit_code;
    }
    const std::string lost =
        "the connection to the launcher at " + options.address + " has ended, and the ranks here with it";
    if (end.asked || *wait <= Duration::zero()) {
      return say(lost, end.exit_code);
    }
    say(lost + "; start it again there with the same secret: this host waits for it until " + time_after(*wait) +
            " (elastic.hub_wait; Ctrl-C ends the wait)",
        0);
    time = *wait;
  }
}

}  // namespace sirtaki::launcher
