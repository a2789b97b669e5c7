// Handshake: mutual proof of the job's secret, as a pure state machine over bytes. Used by control and data
// connections.
//
// HMAC-SHA256 challenge: the initiator sends {magic, protocol, purpose, nonce_i, hello}; the acceptor answers
// {magic, protocol, nonce_a, HMAC(secret, "acceptor" | transcript)}; the initiator proves itself with
// HMAC(secret, "initiator" | transcript). `hello` (who I am: rank, epoch, ...) is covered by both proofs and is not
// looked at before the proof has been checked. Constant-time comparison, length caps before any allocation, fresh
// nonces on both sides against replay, one error text for the peer.
// Proves who speaks when a connection opens; it neither encrypts nor signs what follows.
// The caller does the I/O and the deadline.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"
#include "runtime/rendezvous/auth/secret.h"

namespace sirtaki::rendezvous {

enum class Purpose : std::uint8_t { kControl = 1, kData = 2, kBranch = 3 };

class Handshake {
 public:
  static constexpr std::size_t kMaxHello = 256;
  // More bytes than this are never taken from a peer, nor sent to one.
  static constexpr std::size_t kMaxBytes = 512;

  // `hello` is at most kMaxHello bytes. With a secret that is not set, feed() fails and nothing is ever sent.
  static Handshake initiator(const Secret& secret, Purpose purpose, ConstBytes hello);
  static Handshake acceptor(const Secret& secret, Purpose purpose);
  Handshake(Handshake&&) noexcept;
  Handshake& operator=(Handshake&&) noexcept;
  ~Handshake();

  // Takes received bytes; returns how many were used (the rest belongs to what follows the handshake). An error is
  // final. After one, send what take_output() still holds (it tells the peer our protocol version), then close.
  Result<std::size_t> feed(ConstBytes received);
  // Bytes to send now; cleared by the call. The initiator has some before the first feed(). The initiator's last
  // bytes are there when done() turns true.
  std::vector<std::byte> take_output();
  bool done() const;
  // Acceptor, when done: the initiator's hello.
  const std::vector<std::byte>& peer_hello() const;

 private:
  struct State;
  explicit Handshake(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sirtaki::rendezvous
