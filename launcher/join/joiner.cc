#include "launcher/join/joiner.h"

#include <cstdio>
#include <utility>

#include "launcher/agent/agent.h"
#include "launcher/join/host_offer.h"
#include "launcher/join/join_secret.h"
#include "runtime/base/config/option_value.h"
#include "runtime/base/host_info.h"
#include "runtime/rendezvous/link/dial.h"

namespace sirtaki::launcher {

using rendezvous::StreamCipher;

namespace {

constexpr int kUsageError = 2;
constexpr Duration kHandshakeTime = std::chrono::seconds(5);
constexpr Duration kSilence = std::chrono::seconds(30);
constexpr Duration kQuietTime = std::chrono::seconds(1);  // before the user learns of the wait

int say(const std::string& text, int exit_code) {
  std::fprintf(stderr, "sirtakirun: %s\n", text.c_str());
  return exit_code;
}

Result<rendezvous::Dialed> reach(const JoinerOptions& options, const rendezvous::Secret& secret) {
  rendezvous::DialOptions dial;
  dial.addresses = {options.address};
  dial.who = "a job";
  dial.fix =
      "check that the job runs with --join-port, its address and port, and firewalls between; "
      "--start-timeout waits longer";
  dial.purpose = rendezvous::Purpose::kAgent;
  dial.hello = encode(HostOffer{host_info().hostname, options.slots});
  dial.secret = secret;
  dial.connect_timeout = options.patience;
  dial.handshake_timeout = kHandshakeTime;
  dial.silence_timeout = kSilence;
  const auto begin = std::chrono::steady_clock::now();
  bool told = false;
  MoveFunction<bool()> tell_if_slow = [&] {
    if (!told && std::chrono::steady_clock::now() - begin > kQuietTime) {
      told = true;
      say("waiting for the job at " + options.address + ", for " + format_duration(options.patience) + " at most", 0);
    }
    return false;
  };
  rendezvous::AsioLoop loop("srt-join");
  return rendezvous::dial(loop, dial, tell_if_slow);
}

}  // namespace

int join_job(const JoinerOptions& options, const Environment& environment) {
  if (const auto where = rendezvous::parse_host_port(options.address); !where) {
    return say("--join " + options.address + ": " + std::string(where.status().text()), kUsageError);
  }
  const auto secret = join_secret(options.secret_file, environment, false);
  if (!secret) {
    return say(std::string(secret.status().text()), kUsageError);
  }
  Result<rendezvous::Dialed> dialed = reach(options, *secret);
  if (!dialed) {
    return say(std::string(dialed.status().text()), 1);
  }
  Result<ChannelEnds> ends =
      socket_ends(FileDescriptor(dialed->fd.release()), StreamCipher(dialed->session, StreamCipher::Side::kInitiator),
                  std::move(dialed->following));
  if (!ends) {
    return say(std::string(ends.status().text()), 1);
  }
  return run_joined_agent(std::move(*ends), options.address);
}

}  // namespace sirtaki::launcher
