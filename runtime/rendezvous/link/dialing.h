// Dialing: reaches one process of the job at the addresses it told, one after the other, again and again until the
// deadline, and proves the job's secret. Includes Asio: for .cc files of rendezvous and net.
//
// Owned by whoever wants the connection; the loop's thread. The result comes once, never from inside run(), and not
// after abandon(). Only what cannot get better ends it early: a wrong secret, another protocol version, somebody else's
// answer, at every address; where other addresses are silent, two seconds after the first such answer.
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
    std::size_t welcome_bytes = 0;  // what the other side says behind the handshake, once it knows the epoch
    MoveFunction<Status(ConstBytes)> check_welcome;  // not ok: somebody else answers at that address
    Duration timeout{};                              // for all attempts, and the welcome
    Duration handshake_timeout{};                    // for one
    Duration silence_timeout{};                      // for set_control_options; zero: without
  };
  using Callback = MoveFunction<void(Result<Greeted>)>;

  explicit Dialing(Setup setup);
  // kTimeout: the deadline has passed; last_error() says what was tried.
  void run(Callback callback);
  void abandon();
  // The last attempt: "10.0.0.3:41213", "connection refused", and how many there were.
  const std::string& last_address() const { return last_address_; }
  std::string last_error() const;
  int attempts() const { return attempts_; }

 private:
  struct Target {
    std::string text;  // as it was told
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
  std::vector<Target> targets_;  // of this round
  std::size_t at_ = 0;
  std::set<std::string> struck_;  // addresses that have refused for good
  Status refused_;                // the first such refusal
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
