// Dialer: reaches one peer at the addresses it told, one after the other, again and again until the deadline.
// Includes Asio: for .cc files of this folder.
//
// Owned by a Transport; its loop's thread. The result comes once, never from inside run(), and not after abandon().
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>
#include <vector>

#include "runtime/net/greeting.h"

namespace sirtaki::net {

class Dialer : public std::enable_shared_from_this<Dialer> {
 public:
  struct Setup {
    rendezvous::AsioLoop* loop = nullptr;
    rendezvous::Secret secret;
    std::vector<std::string> endpoints;
    std::vector<std::byte> hello;
    std::size_t welcome_bytes = 0;  // what the other side says behind the handshake, once it knows the epoch
    MoveFunction<Status(ConstBytes)> check_welcome;  // not ok: somebody else answers at that address
    Duration timeout{};                              // for all attempts, and the welcome
    Duration handshake_timeout{};                    // for one
  };
  using Callback = MoveFunction<void(Result<Greeted>)>;

  explicit Dialer(Setup setup);
  void run(Callback callback);
  void abandon();
  // What the last attempt said: "10.0.0.3:41213: connection refused".
  std::string last_error() const;

 private:
  struct Target {
    std::string text;
    boost::asio::ip::tcp::endpoint endpoint;
  };
  void attempt();
  void on_connect(const boost::system::error_code& error);
  void on_greeted(Result<Greeted> result);
  void next(const std::string& error, bool hopeless);
  void finish(Result<Greeted> result);

  Setup setup_;
  Callback callback_;
  std::vector<Target> targets_;
  std::size_t at_ = 0;
  int rounds_ = 0;
  TimePoint deadline_;
  TimerId timer_;
  std::unique_ptr<boost::asio::ip::tcp::socket> socket_;
  std::shared_ptr<Greeting> greeting_;
  std::string last_error_ = "no address was tried";
};

}  // namespace sirtaki::net
