#include "runtime/rendezvous/auth/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/wire.h"

namespace sirtaki::rendezvous {

namespace {

constexpr std::string_view kMagic = "SIRTAKI\n";
constexpr std::uint16_t kProtocol = 4;
constexpr std::size_t kNonce = 32;
constexpr std::size_t kMac = 32;
constexpr std::size_t kPrefix = 8 + sizeof(kProtocol);
// Bytes of prefix, purpose, nonce and length of hello.
constexpr std::size_t kGreeting = kPrefix + 1 + kNonce + sizeof(std::uint16_t);
// Bytes of prefix, nonce and proof.
constexpr std::size_t kAnswer = kPrefix + kNonce + kMac;
static_assert(kGreeting + Handshake::kMaxHello <= Handshake::kMaxBytes && kAnswer <= Handshake::kMaxBytes);

using Mac = std::array<std::byte, kMac>;

// Returns one text for all failures, so that a stranger does not learn which check failed.
Status refused_for(Purpose purpose) {
  const char* fix = purpose == Purpose::kAgent
                        ? "give the host the secret of the launcher (--secret-file, SIRTAKI_JOIN_SECRET) and the "
                          "address that it prints"
                        : "give all ranks the same secret (SIRTAKI_JOB_SECRET_FILE) and the address of this job's "
                          "server (SIRTAKI_JOB_RENDEZVOUS)";
  return {Code::kUnavailable, "rejected: wrong job secret or not a Sirtaki peer of this job; fix: " + std::string(fix)};
}

Status no_secret() {
  return invalid_argument("no job secret is set; connections are refused without one");
}

}  // namespace

struct Handshake::State {
  enum class Step { kGreeting, kAnswer, kProof, kDone, kFailed };

  Status on_bytes();
  Status on_greeting();
  Status on_answer();
  Status on_proof();
  std::size_t wanted() const;
  Status check_prefix() const;
  Status fresh_nonce(WireWriter& out);
  Mac mac(std::string_view label) const;
  Status refused() const { return refused_for(purpose); }
  void append_output(ConstBytes bytes) { output.insert(output.end(), bytes.begin(), bytes.end()); }

  Secret secret;
  Purpose purpose = Purpose::kControl;
  Step step = Step::kFailed;
  Status failure;
  std::vector<std::byte> input;  // received for the current step
  std::vector<std::byte> transcript;
  std::vector<std::byte> output;
  std::vector<std::byte> hello;
};

Mac Handshake::State::mac(std::string_view label) const {
  std::vector<std::byte> message(label.size());
  std::memcpy(message.data(), label.data(), label.size());
  message.push_back(std::byte{0});
  message.insert(message.end(), transcript.begin(), transcript.end());
  Mac out{};
  unsigned int size = 0;
  const unsigned char* made = HMAC(EVP_sha256(), secret.bytes().data(), static_cast<int>(secret.bytes().size()),
                                   reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                                   reinterpret_cast<unsigned char*>(out.data()), &size);
  SRT_CHECK(made != nullptr && size == kMac);
  return out;
}

Status Handshake::State::fresh_nonce(WireWriter& out) {
  std::array<std::byte, kNonce> nonce{};
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), static_cast<int>(kNonce)) != 1) {
    return unavailable("the system's random number generator failed");
  }
  out.put_raw(nonce);
  return {};
}

std::size_t Handshake::State::wanted() const {
  switch (step) {
    case Step::kGreeting: {
      if (input.size() < kGreeting) {
        return kGreeting;
      }
      std::uint16_t hello_size = 0;
      std::memcpy(&hello_size, input.data() + kGreeting - sizeof(hello_size), sizeof(hello_size));
      return kGreeting + hello_size;
    }
    case Step::kAnswer:
      return kAnswer;
    case Step::kProof:
      return kMac;
    case Step::kDone:
    case Step::kFailed:
      break;
  }
  return 0;
}

// Checks the received part of the prefix, so that junk is refused at its first wrong byte.
Status Handshake::State::check_prefix() const {
  const std::size_t have = std::min(input.size(), kMagic.size());
  if (std::memcmp(input.data(), kMagic.data(), have) != 0) {
    return refused();
  }
  if (input.size() < kPrefix) {
    return {};
  }
  std::uint16_t protocol = 0;
  std::memcpy(&protocol, input.data() + kMagic.size(), sizeof(protocol));
  if (protocol != kProtocol) {
    return {Code::kMismatch, "the peer speaks protocol " + std::to_string(protocol) +
                                 ", this library speaks protocol " + std::to_string(kProtocol) +
                                 "; fix: install the same Sirtaki version on all hosts"};
  }
  return {};
}

Status Handshake::State::on_greeting() {
  if (std::to_integer<std::uint8_t>(input[kPrefix]) != static_cast<std::uint8_t>(purpose)) {
    return refused();
  }
  hello.assign(input.begin() + kGreeting, input.end());
  transcript = input;
  WireWriter answer;
  answer.put_raw(std::as_bytes(std::span(kMagic)));
  answer.put(kProtocol);
  SRT_TRY(fresh_nonce(answer));
  transcript.insert(transcript.end(), answer.bytes().begin(), answer.bytes().end());
  answer.put_raw(mac("acceptor"));
  append_output(answer.bytes());
  step = Step::kProof;
  return {};
}

Status Handshake::State::on_answer() {
  transcript.insert(transcript.end(), input.begin(), input.end() - kMac);
  const Mac expected = mac("acceptor");
  if (CRYPTO_memcmp(expected.data(), input.data() + kAnswer - kMac, kMac) != 0) {
    return refused();
  }
  append_output(mac("initiator"));
  step = Step::kDone;
  return {};
}

Status Handshake::State::on_proof() {
  const Mac expected = mac("initiator");
  if (CRYPTO_memcmp(expected.data(), input.data(), kMac) != 0) {
    return refused();
  }
  step = Step::kDone;
  return {};
}

Status Handshake::State::on_bytes() {
  switch (step) {
    case Step::kGreeting:
      return on_greeting();
    case Step::kAnswer:
      return on_answer();
    case Step::kProof:
      return on_proof();
    case Step::kDone:
    case Step::kFailed:
      break;
  }
  return {};
}

Handshake::Handshake(std::unique_ptr<State> state) : state_(std::move(state)) {}
Handshake::Handshake(Handshake&&) noexcept = default;
Handshake& Handshake::operator=(Handshake&&) noexcept = default;
Handshake::~Handshake() = default;

Handshake Handshake::initiator(const Secret& secret, Purpose purpose, ConstBytes hello) {
  SRT_CHECK(hello.size() <= kMaxHello);
  auto state = std::make_unique<State>();
  state->secret = secret;
  state->purpose = purpose;
  WireWriter greeting;
  greeting.put_raw(std::as_bytes(std::span(kMagic)));
  greeting.put(kProtocol);
  greeting.put(purpose);
  state->failure = secret.is_set() ? state->fresh_nonce(greeting) : no_secret();
  if (state->failure.ok()) {
    greeting.put(static_cast<std::uint16_t>(hello.size()));
    greeting.put_raw(hello);
    state->transcript = greeting.bytes();
    state->append_output(greeting.bytes());
    state->step = State::Step::kAnswer;
  }
  return Handshake(std::move(state));
}

Handshake Handshake::acceptor(const Secret& secret, Purpose purpose) {
  auto state = std::make_unique<State>();
  state->secret = secret;
  state->purpose = purpose;
  state->failure = secret.is_set() ? Status() : no_secret();
  if (state->failure.ok()) {
    state->step = State::Step::kGreeting;
  }
  return Handshake(std::move(state));
}

Result<std::size_t> Handshake::feed(ConstBytes received) {
  State& s = *state_;
  std::size_t used = 0;
  auto fail = [&s](Status why) {
    s.step = State::Step::kFailed;
    s.failure = std::move(why);
    return s.failure;
  };
  while (s.failure.ok() && s.step != State::Step::kDone && used < received.size()) {
    // A step takes two pieces at most: the fixed part holds the length of the rest.
    const std::size_t take = std::min(s.wanted() - s.input.size(), received.size() - used);
    const ConstBytes bite = received.subspan(used, take);
    s.input.insert(s.input.end(), bite.begin(), bite.end());
    used += take;
    const bool greeting = s.step == State::Step::kGreeting;
    if (greeting || s.step == State::Step::kAnswer) {
      if (Status status = s.check_prefix(); !status.ok()) {
        if (greeting && status.code() == Code::kMismatch) {
          s.append_output(std::as_bytes(std::span(kMagic)));
          s.append_output(std::as_bytes(std::span(&kProtocol, 1)));
        }
        return fail(std::move(status));
      }
    }
    if (greeting && s.wanted() > kGreeting + kMaxHello) {
      return fail(s.refused());
    }
    if (s.input.size() == s.wanted()) {
      if (Status status = s.on_bytes(); !status.ok()) {
        return fail(std::move(status));
      }
      s.input.clear();
    }
  }
  if (!s.failure.ok()) {
    return s.failure;
  }
  return used;
}

std::vector<std::byte> Handshake::take_output() {
  return std::exchange(state_->output, {});
}

bool Handshake::done() const {
  return state_->step == State::Step::kDone;
}

const std::vector<std::byte>& Handshake::peer_hello() const {
  SRT_CHECK(done());
  return state_->hello;
}

Secret Handshake::session_key() const {
  SRT_CHECK(done());
  return Secret::from_bytes(state_->mac("session"));
}

}  // namespace sirtaki::rendezvous
