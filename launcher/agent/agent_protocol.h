// Agent protocol: messages between sirtakirun and its agents, one on each host, over the agent's stdin and stdout, or
// over the connection of a host that has joined the job by itself.
//
// A frame is {u32 length of the rest, u8 type, payload}. The agent opens with kPreamble, so that text which a remote
// login shell prints before it is skipped. Output flows only against credit, so that a paused reader (`| less`) slows
// the ranks down and never delays the report of a rank's death.
// Pure encoding and decoding: no I/O, no thread. Environment, command and secret are payload of this protocol and so
// appear on no command line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::launcher {

inline constexpr std::string_view kPreamble = "\x01sirtaki agent\x02";
inline constexpr std::size_t kMaxFrame = std::size_t{16} << 20;  // bytes; a large environment is far below
inline constexpr std::size_t kMaxJunk = std::size_t{64} << 10;   // bytes a login shell may print before the preamble
inline constexpr std::size_t kInitialCredit = std::size_t{1} << 20;  // output bytes an agent may send unasked
inline constexpr std::uint32_t kProtocol = 4;

enum class FrameType : std::uint8_t {
  // agent to launcher
  kHello = 1,
  kProbed = 2,
  kSpawned = 3,
  kSpawnFailed = 4,
  kOutput = 5,
  kExited = 6,  // the rank's process ended; output may follow
  kClosed = 7,  // the output of the rank ended
  kPong = 8,
  kSignalled = 9,  // the answer to kSignal
  kLeave = 10,     // the host wants to leave the job; only hosts that have joined send it
  // launcher to agent
  kProbe = 32,
  kSpawn = 33,  // may come again, for other ranks and for those whose kClosed has been sent
  kKill = 34,
  kCredit = 35,
  kPing = 36,
  kSignal = 37,
  kEndRank = 39,
  kTell = 40,  // only for hosts that have joined
};

struct Frame {
  FrameType type{};
  std::vector<std::byte> payload;
};

std::vector<std::byte> encode_frame(FrameType type, ConstBytes payload);

// Cuts a byte stream into frames. Holds at most one frame and one fed chunk.
class FrameDecoder {
 public:
  // `expect_preamble`: first skip at most kMaxJunk bytes up to and including kPreamble.
  explicit FrameDecoder(bool expect_preamble) : searching_(expect_preamble) {}

  // Appends the frames that are complete to `out`. Returns kCorrupt for a length over kMaxFrame, a length of zero or
  // too much junk; after an error the decoder accepts no more bytes.
  Status feed(ConstBytes bytes, std::vector<Frame>& out);
  // Returns the bytes before the preamble (all bytes so far if the preamble has not come).
  const std::string& junk() const { return junk_; }

 private:
  Status find_preamble();

  bool searching_;
  Status failed_;
  std::string junk_;
  std::vector<std::byte> buffer_;
};

struct NetworkAddress {
  std::string interface;
  std::string address;  // numeric, without prefix length
};

// Introduction of an agent. `protocol` and `version` stay first in every version, so that any two versions can
// recognize each other.
struct Hello {
  std::uint32_t protocol = kProtocol;
  std::string version;
  std::string hostname;
  std::string host_id;           // id that ranks there would have (runtime/base/host_info.h)
  std::int32_t cores = 1;        // cores this process may use
  std::string simd;              // best vector instructions of this CPU
  std::string launcher_address;  // the launcher's, as this host sees it; empty when local
  std::vector<NetworkAddress> addresses;
};

// Asks which of these endpoints the agent can reach.
struct Probe {
  std::vector<std::string> endpoints;  // "10.0.0.1:4242", "[fd00::1]:4242"
  std::int32_t timeout_ms = 3000;      // time for all endpoints together
};

struct Probed {
  std::int32_t reached = -1;        // index into Probe::endpoints
  std::vector<std::string> errors;  // one for each endpoint that failed
};

struct Spawn {
  std::vector<Rank> ranks;
  std::int32_t most_ranks = 0;  // that run here at one time; they share the cores
  std::string rendezvous;
  std::string secret_hex;
  std::string cwd;
  std::vector<std::string> argv;
  std::vector<std::pair<std::string, std::string>> env;  // set on top of the environment of the agent
  std::vector<std::vector<std::pair<std::string, std::string>>>
      rank_env;  // one entry for each of `ranks`, on top of it
  // from SIGTERM to SIGKILL for ranks that handle SIGTERM, whatever the cause of their end
  std::int32_t term_grace_ms = 0;
};

struct Spawned {
  std::int32_t rank = -1;
  std::int64_t pid = 0;
};

struct SpawnFailed {
  std::int32_t rank = -1;
  std::int32_t exit_code = 1;  // exit code of a shell in this case: 126, 127
  std::string error;
};

enum class OutputStream : std::uint8_t { kStdout = 0, kStderr = 1 };

struct Output {
  std::int32_t rank = -1;
  OutputStream stream = OutputStream::kStdout;
  std::vector<std::byte> data;
};

struct Exited {
  std::int32_t rank = -1;
  std::int32_t wait_status = 0;  // status in the format of waitpid()
};

// Asks for the end of all ranks: SIGTERM, then SIGKILL after the grace; or SIGKILL at once.
struct Kill {
  std::int32_t signal = 15;
};

// Asks for the end of one rank: SIGTERM is a notice to its program, which has to leave; SIGKILL ends all its processes.
struct EndRank {
  std::int32_t rank = -1;
  std::int32_t signal = 9;
};

// Asks to pass a signal on: SIGUSR1 or SIGUSR2 to ranks that handle it, SIGSTOP or SIGCONT to all processes.
struct Signal {
  std::int32_t signal = 0;
};

// A line for the user of a host that has joined.
struct Tell {
  std::string text;
  std::int32_t exit_code = -1;  // not negative: the host is not used any more, and its process ends with this code
};

struct Signalled {
  std::int32_t signal = 0;
  std::vector<Rank> unhandled;  // ranks that were left out because the signal would have ended them
};

std::vector<std::byte> encode(const Hello& message);
std::vector<std::byte> encode(const Probe& message);
std::vector<std::byte> encode(const Probed& message);
std::vector<std::byte> encode(const Spawn& message);
std::vector<std::byte> encode(const Spawned& message);
std::vector<std::byte> encode(const SpawnFailed& message);
std::vector<std::byte> encode(const Output& message);
std::vector<std::byte> encode(const Exited& message);
std::vector<std::byte> encode(const Kill& message);
std::vector<std::byte> encode(const EndRank& message);
std::vector<std::byte> encode(const Signal& message);
std::vector<std::byte> encode(const Signalled& message);
std::vector<std::byte> encode(const Tell& message);
std::vector<std::byte> encode_rank(Rank rank);              // kClosed
std::vector<std::byte> encode_credit(std::uint64_t bytes);  // kCredit

// Return kCorrupt when the bytes are not exactly one such message. decode_hello() leaves all fields after `version`
// empty if the protocol number is another.
Result<Hello> decode_hello(ConstBytes bytes);
Result<Probe> decode_probe(ConstBytes bytes);
Result<Probed> decode_probed(ConstBytes bytes);
Result<Spawn> decode_spawn(ConstBytes bytes);
Result<Spawned> decode_spawned(ConstBytes bytes);
Result<SpawnFailed> decode_spawn_failed(ConstBytes bytes);
Result<Output> decode_output(ConstBytes bytes);
Result<Exited> decode_exited(ConstBytes bytes);
Result<Kill> decode_kill(ConstBytes bytes);
Result<EndRank> decode_end_rank(ConstBytes bytes);
Result<Signal> decode_signal(ConstBytes bytes);
Result<Signalled> decode_signalled(ConstBytes bytes);
Result<Tell> decode_tell(ConstBytes bytes);
Result<Rank> decode_rank(ConstBytes bytes);
Result<std::uint64_t> decode_credit(ConstBytes bytes);

}  // namespace sirtaki::launcher
