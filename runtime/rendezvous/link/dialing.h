// Dialing: connects to one process of the job and proves the secret. Tries the addresses of the process in turn until
// the deadline. Includes Asio: for .cc files of rendezvous and net.
//
// It ends early only if every address fails for good: a wrong secret, another protocol version, a process of another
// job. If the other addresses do not answer, it ends two seconds after the first such failure.
// Owned by: the user of the connection. Runs on the loop thread. Calls back once, never inside run(), and not after
// abandon().
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/rendezvous/link/greeting.h"
#include "runtime/rendezvous/link/sockets.h"

namespace sirtaki::rendezvous {

class Dialing : public std::enable_shared_from_this<Dialing> {
 public:
  struct Setup {
    AsioLoop* loop = nullptr;
    Secret secret;
    Purpose purpose = Purpose::kData;
    std::vector<std::string> addresses;  // "host:port" or "[v6]:port"; names are resolved anew in every round
    std::vector<std::byte> hello;
    std::size_t welcome_bytes = 0;  // size of the welcome, sent after the handshake once the peer knows the epoch
    MoveFunction<Status(ConstBytes)> check_welcome;  // an error: another process answers at that address
    Duration timeout{};                              // limit for all attempts and the welcome
    Duration handshake_timeout{};                    // limit for one attempt
    Duration silence_timeout{};                      // passed to set_control_options(); zero: not set
  };
  using Callback = MoveFunction<void(Result<Greeted>)>;

  explicit Dialing(Setup setup);
  // Starts the attempts. kTimeout: the deadline has passed; last_error() describes the last attempt.
  void run(Callback callback);
  void abandon();
  // The last attempt ("10.0.0.3:41213", "connection refused") and the number of attempts.
  const std::string& last_address() const { return last_address_; }
  std::string last_error() const;
  int attempts() const { return attempts_; }

 private:
  struct Target {
    std::string text;  // the entry of Setup::addresses
    SocketAddress address;
  };
  struct Lookup;

  void begin_round();
  void await_lookup();
  void set_targets(std::vector<Target> found, const std::string& error);
  void attempt();
  UniqueFd open(const SocketAddress& address);
  void on_connect(const boost::system::error_code& error);
  void greet();
  void on_greeted(Result<Greeted> result);
  void next(std::string error);
  void refuse(const Status& status);
  void end_round();
  void later(Duration delay, void (Dialing::*what)());
  void finish(Result<Greeted> result);
  Duration left() const { return deadline_ - setup_.loop->now(); }

  Setup setup_;
  Callback callback_;
  std::shared_ptr<Lookup> lookup_;
  std::vector<Target> targets_;  // addresses of this round
  std::size_t at_ = 0;
  std::set<std::string> struck_;  // addresses with a permanent failure
  Status refused_;                // the first permanent failure
  TimePoint refused_at_;
  Duration pause_;
  TimePoint deadline_;
  TimerId timer_;
  std::unique_ptr<boost::asio::ip::tcp::socket> socket_;
  std::shared_ptr<Greeting> greeting_;
  int attempts_ = 0;
  std::string last_address_;
  std::string last_error_ = "no address was tried";
};

}  // namespace sirtaki::rendezvous
