#include "launcher/agent/agent_protocol.h"

#include <signal.h>

#include <algorithm>
#include <cstring>

#include "launcher/hosts/environment.h"
#include "runtime/base/wire.h"

namespace sirtaki::launcher {

namespace {

constexpr std::size_t kHeader = sizeof(std::uint32_t);

void put_strings(WireWriter& out, const std::vector<std::string>& strings) {
  out.put(static_cast<std::uint32_t>(strings.size()));
  for (const std::string& text : strings) {
    out.put_string(text);
  }
}

std::vector<std::string> get_strings(WireReader& in) {
  std::vector<std::string> strings(in.get_count(sizeof(std::uint32_t)));
  for (std::string& text : strings) {
    text = in.get_string();
  }
  return strings;
}

void put_variables(WireWriter& out, const Variables& variables) {
  out.put(static_cast<std::uint32_t>(variables.size()));
  for (const auto& [name, value] : variables) {
    out.put_string(name);
    out.put_string(value);
  }
}

Variables get_variables(WireReader& in) {
  Variables variables(in.get_count(2 * sizeof(std::uint32_t)));
  for (auto& [name, value] : variables) {
    name = in.get_string();
    value = in.get_string();
  }
  return variables;
}

void put_ranks(WireWriter& out, const std::vector<Rank>& ranks) {
  out.put(static_cast<std::uint32_t>(ranks.size()));
  for (const Rank rank : ranks) {
    out.put(static_cast<std::int32_t>(rank));
  }
}

std::vector<Rank> get_ranks(WireReader& in) {
  std::vector<Rank> ranks(in.get_count(sizeof(std::int32_t)));
  for (Rank& rank : ranks) {
    rank = in.get<std::int32_t>();
  }
  return ranks;
}

std::int32_t get_end_signal(WireReader& in) {
  const auto signal = in.get<std::int32_t>();
  if (signal != SIGTERM && signal != SIGKILL) {
    in.fail();
  }
  return signal;
}

template <class T>
Result<T> finished(const WireReader& in, std::string_view what, T message) {
  SRT_TRY(in.finish(what));
  return message;
}

}  // namespace

std::vector<std::byte> encode_frame(FrameType type, ConstBytes payload) {
  WireWriter out;
  out.put(static_cast<std::uint32_t>(payload.size() + 1));
  out.put(type);
  out.put_raw(payload);
  return std::move(out).take();
}

Status FrameDecoder::find_preamble() {
  const auto* text = reinterpret_cast<const char*>(buffer_.data());
  const std::string_view view(text, buffer_.size());
  const std::size_t at = view.find(kPreamble);
  if (at != std::string_view::npos) {
    junk_ = view.substr(0, at);
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(at + kPreamble.size()));
    searching_ = false;
    return Status();
  }
  junk_ = view.substr(0, kMaxJunk);
  if (view.size() > kMaxJunk + kPreamble.size()) {
    return corrupt("no agent behind the first " + std::to_string(kMaxJunk) + " bytes");
  }
  return Status();
}

Status FrameDecoder::feed(ConstBytes bytes, std::vector<Frame>& out) {
  SRT_TRY(failed_);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  if (searching_) {
    failed_ = find_preamble();
    if (!failed_.ok() || searching_) {
      return failed_;
    }
  }
  std::size_t used = 0;
  while (buffer_.size() - used >= kHeader) {
    std::uint32_t length = 0;
    std::memcpy(&length, buffer_.data() + used, kHeader);
    if (length == 0 || length > kMaxFrame) {
      failed_ = corrupt("a frame of " + std::to_string(length) + " bytes");
      return failed_;
    }
    if (buffer_.size() - used - kHeader < length) {
      break;
    }
    const std::byte* body = buffer_.data() + used + kHeader;
    out.push_back({static_cast<FrameType>(body[0]), std::vector<std::byte>(body + 1, body + length)});
    used += kHeader + length;
  }
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(used));
  return Status();
}

std::vector<std::byte> encode(const Hello& message) {
  WireWriter out;
  out.put(message.protocol);
  out.put_string(message.version);
  out.put_string(message.hostname);
  out.put_string(message.host_id);
  out.put(message.cores);
  out.put_string(message.simd);
  out.put_string(message.launcher_address);
  out.put(static_cast<std::uint32_t>(message.addresses.size()));
  for (const NetworkAddress& entry : message.addresses) {
    out.put_string(entry.interface);
    out.put_string(entry.address);
  }
  return std::move(out).take();
}

Result<Hello> decode_hello(ConstBytes bytes) {
  WireReader in(bytes);
  Hello message;
  message.protocol = in.get<std::uint32_t>();
  message.version = in.get_string();
  if (in.ok() && message.protocol != kProtocol) {
    return message;
  }
  message.hostname = in.get_string();
  message.host_id = in.get_string();
  message.cores = in.get<std::int32_t>();
  message.simd = in.get_string();
  message.launcher_address = in.get_string();
  message.addresses.resize(in.get_count(2 * sizeof(std::uint32_t)));
  for (NetworkAddress& entry : message.addresses) {
    entry.interface = in.get_string();
    entry.address = in.get_string();
  }
  return finished(in, "agent hello", std::move(message));
}

std::vector<std::byte> encode(const Probe& message) {
  WireWriter out;
  put_strings(out, message.endpoints);
  out.put(message.timeout_ms);
  return std::move(out).take();
}

Result<Probe> decode_probe(ConstBytes bytes) {
  WireReader in(bytes);
  Probe message;
  message.endpoints = get_strings(in);
  message.timeout_ms = in.get<std::int32_t>();
  return finished(in, "agent probe", std::move(message));
}

std::vector<std::byte> encode(const Probed& message) {
  WireWriter out;
  out.put(message.reached);
  put_strings(out, message.errors);
  return std::move(out).take();
}

Result<Probed> decode_probed(ConstBytes bytes) {
  WireReader in(bytes);
  Probed message;
  message.reached = in.get<std::int32_t>();
  message.errors = get_strings(in);
  return finished(in, "agent probe result", std::move(message));
}

std::vector<std::byte> encode(const Spawn& message) {
  WireWriter out;
  put_ranks(out, message.ranks);
  out.put(message.most_ranks);
  out.put_string(message.rendezvous);
  out.put_string(message.secret_hex);
  out.put_string(message.cwd);
  put_strings(out, message.argv);
  put_variables(out, message.env);
  out.put(static_cast<std::uint32_t>(message.rank_env.size()));
  for (const Variables& variables : message.rank_env) {
    put_variables(out, variables);
  }
  out.put(message.term_grace_ms);
  return std::move(out).take();
}

Result<Spawn> decode_spawn(ConstBytes bytes) {
  WireReader in(bytes);
  Spawn message;
  message.ranks = get_ranks(in);
  message.most_ranks = in.get<std::int32_t>();
  message.rendezvous = in.get_string();
  message.secret_hex = in.get_string();
  message.cwd = in.get_string();
  message.argv = get_strings(in);
  message.env = get_variables(in);
  message.rank_env.resize(in.get_count(sizeof(std::uint32_t)));
  for (Variables& variables : message.rank_env) {
    variables = get_variables(in);
  }
  message.term_grace_ms = in.get<std::int32_t>();
  const bool sane = !message.ranks.empty() && std::ranges::all_of(message.ranks, [](Rank rank) { return rank >= 0; }) &&
                    message.most_ranks >= 1 && !message.argv.empty() &&
                    message.rank_env.size() == message.ranks.size() && message.term_grace_ms >= 0;
  if (!sane) {
    in.fail();
  }
  return finished(in, "agent spawn", std::move(message));
}

std::vector<std::byte> encode(const Spawned& message) {
  WireWriter out;
  out.put(message.rank);
  out.put(message.pid);
  return std::move(out).take();
}

Result<Spawned> decode_spawned(ConstBytes bytes) {
  WireReader in(bytes);
  Spawned message;
  message.rank = in.get<std::int32_t>();
  message.pid = in.get<std::int64_t>();
  return finished(in, "agent spawned", message);
}

std::vector<std::byte> encode(const SpawnFailed& message) {
  WireWriter out;
  out.put(message.rank);
  out.put(message.exit_code);
  out.put_string(message.error);
  return std::move(out).take();
}

Result<SpawnFailed> decode_spawn_failed(ConstBytes bytes) {
  WireReader in(bytes);
  SpawnFailed message;
  message.rank = in.get<std::int32_t>();
  message.exit_code = in.get<std::int32_t>();
  message.error = in.get_string();
  return finished(in, "agent spawn failure", std::move(message));
}

std::vector<std::byte> encode(const Output& message) {
  WireWriter out;
  out.put(message.rank);
  out.put(message.stream);
  out.put_bytes(message.data);
  return std::move(out).take();
}

Result<Output> decode_output(ConstBytes bytes) {
  WireReader in(bytes);
  Output message;
  message.rank = in.get<std::int32_t>();
  const auto stream = in.get<std::uint8_t>();
  if (stream > 1) {
    in.fail();
  }
  message.stream = static_cast<OutputStream>(stream);
  const ConstBytes data = in.get_bytes();
  message.data.assign(data.begin(), data.end());
  return finished(in, "agent output", std::move(message));
}

std::vector<std::byte> encode(const Exited& message) {
  WireWriter out;
  out.put(message.rank);
  out.put(message.wait_status);
  return std::move(out).take();
}

Result<Exited> decode_exited(ConstBytes bytes) {
  WireReader in(bytes);
  Exited message;
  message.rank = in.get<std::int32_t>();
  message.wait_status = in.get<std::int32_t>();
  return finished(in, "agent exit report", message);
}

std::vector<std::byte> encode(const Kill& message) {
  WireWriter out;
  out.put(message.signal);
  return std::move(out).take();
}

Result<Kill> decode_kill(ConstBytes bytes) {
  WireReader in(bytes);
  Kill message;
  message.signal = get_end_signal(in);
  return finished(in, "agent kill", message);
}

std::vector<std::byte> encode(const EndRank& message) {
  WireWriter out;
  out.put(message.rank);
  out.put(message.signal);
  return std::move(out).take();
}

Result<EndRank> decode_end_rank(ConstBytes bytes) {
  WireReader in(bytes);
  EndRank message;
  message.rank = in.get<std::int32_t>();
  message.signal = get_end_signal(in);
  return finished(in, "agent end of a rank", message);
}

std::vector<std::byte> encode(const Signal& message) {
  WireWriter out;
  out.put(message.signal);
  return std::move(out).take();
}

Result<Signal> decode_signal(ConstBytes bytes) {
  WireReader in(bytes);
  Signal message;
  message.signal = in.get<std::int32_t>();
  if (message.signal < 1 || message.signal > 64) {
    in.fail();
  }
  return finished(in, "agent signal", message);
}

std::vector<std::byte> encode(const Signalled& message) {
  WireWriter out;
  out.put(message.signal);
  put_ranks(out, message.unhandled);
  return std::move(out).take();
}

Result<Signalled> decode_signalled(ConstBytes bytes) {
  WireReader in(bytes);
  Signalled message;
  message.signal = in.get<std::int32_t>();
  if (message.signal < 1 || message.signal > 64) {
    in.fail();
  }
  message.unhandled = get_ranks(in);
  return finished(in, "agent answer to a signal", std::move(message));
}

std::vector<std::byte> encode(const Tell& message) {
  WireWriter out;
  out.put_string(message.text);
  out.put(message.exit_code);
  return std::move(out).take();
}

Result<Tell> decode_tell(ConstBytes bytes) {
  WireReader in(bytes);
  Tell message;
  message.text = in.get_string();
  message.exit_code = in.get<std::int32_t>();
  return finished(in, "text of the launcher", std::move(message));
}

std::vector<std::byte> encode_rank(Rank rank) {
  WireWriter out;
  out.put(static_cast<std::int32_t>(rank));
  return std::move(out).take();
}

Result<Rank> decode_rank(ConstBytes bytes) {
  WireReader in(bytes);
  const Rank rank = in.get<std::int32_t>();
  return finished(in, "agent rank", rank);
}

std::vector<std::byte> encode_credit(std::uint64_t bytes) {
  WireWriter out;
  out.put(bytes);
  return std::move(out).take();
}

Result<std::uint64_t> decode_credit(ConstBytes bytes) {
  WireReader in(bytes);
  const auto credit = in.get<std::uint64_t>();
  return finished(in, "agent credit", credit);
}

}  // namespace sirtaki::launcher
