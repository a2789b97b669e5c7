// Handshake: mutual proof of the secret of a job, as a pure state machine over bytes. Used by control, data and branch
// connections, and for hosts that join a job. The caller does the I/O and keeps the deadline.
//
// HMAC-SHA256 challenge: the initiator sends {magic, protocol, purpose, nonce_i, hello}; the acceptor answers
// {magic, protocol, nonce_a, HMAC(secret, "acceptor" | transcript)}; the initiator proves itself with
// HMAC(secret, "initiator" | transcript). Both proofs cover `hello` (the identity of the initiator: rank, epoch, ...),
// which is not read before its proof has been checked. Proofs are compared in constant time, lengths are checked before
// any allocation, both sides use fresh nonces against replay, and the peer sees the same error for every failure.
//
// The handshake authenticates the two ends of a new connection; it neither encrypts nor signs later bytes. Users that
// need this take session_key() for a StreamCipher.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"
#include "runtime/rendezvous/auth/secret.h"

namespace sirtaki::rendezvous {

enum class Purpose : std::uint8_t { kControl = 1, kData = 2, kBranch = 3, kAgent = 4 };

class Handshake {
 public:
  static constexpr std::size_t kMaxHello = 256;
  // Limit of the bytes received from a peer, and of those sent to it.
  static constexpr std::size_t kMaxBytes = 512;

  // `hello` is at most kMaxHello bytes. If the secret is not set, feed() fails and nothing is sent.
  static Handshake initiator(const Secret& secret, Purpose purpose, ConstBytes hello);
  static Handshake acceptor(const Secret& secret, Purpose purpose);
  Handshake(Handshake&&) noexcept;
  Handshake& operator=(Handshake&&) noexcept;
  ~Handshake();

  // Takes received bytes and returns the number used; the rest follows the handshake. An error is final: send the bytes
  // of take_output(), which give the peer the protocol version of this side, and close the connection.
  Result<std::size_t> feed(ConstBytes received);
  // Returns and clears the bytes to send. An initiator has some before the first feed(), and its last ones when done()
  // has become true.
  std::vector<std::byte> take_output();
  bool done() const;
  // Returns the hello of the initiator; acceptor only, after done().
  const std::vector<std::byte>& peer_hello() const;
  // Returns a key of this connection that both sides compute, and nobody without the secret; after done().
  Secret session_key() const;

 private:
  struct State;
  explicit Handshake(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sirtaki::rendezvous
