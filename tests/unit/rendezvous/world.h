// Helpers of the rendezvous tests: recording handlers, waits for events that fail after a deadline, raw sockets.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/rendezvous/client.h"
#include "runtime/rendezvous/link/sockets.h"
#include "runtime/rendezvous/server.h"

namespace sirtaki::rendezvous {

inline constexpr auto kPatience = std::chrono::seconds(20);

// Log lines of a loop thread that the test waits for.
class EventLog {
 public:
  void add(std::string line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
    changed_.notify_all();
  }
  // Waits until some line contains `part`, and returns that line; fails the test after kPatience.
  std::string await(const std::string& part) {
    std::unique_lock lock(mutex_);
    std::string found;
    const bool came = changed_.wait_for(lock, kPatience, [&] {
      for (const std::string& line : lines_) {
        if (line.find(part) != std::string::npos) {
          found = line;
          return true;
        }
      }
      return false;
    });
    EXPECT_TRUE(came) << "no '" << part << "' among:\n" << joined();
    return found;
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  int count(const std::string& part) {
    const std::lock_guard lock(mutex_);
    int out = 0;
    for (const std::string& line : lines_) {
      out += line.find(part) != std::string::npos ? 1 : 0;
    }
    return out;
  }

 private:
  std::string joined() const {
    std::string out;
    for (const std::string& line : lines_) {
      out += line + "\n";
    }
    return out;
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
};

inline std::vector<std::byte> bytes_of(std::string_view text) {
  std::vector<std::byte> out(text.size());
  std::memcpy(out.data(), text.data(), text.size());
  return out;
}
inline std::string text_of(ConstBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline std::string address_of(std::uint16_t port) {
  return "127.0.0.1:" + std::to_string(port);
}

// Sends "echo X" back to its sender, and "all X" to all members.
class TestServer final : public ServerHandler {
 public:
  explicit TestServer(int size, const std::function<void(ServerOptions&)>& change = {})
      : loop_("test-server", [this](const Status& status) { log.add(status.to_string()); }) {
    secret = Secret::generate().value();
    ServerOptions options;
    options.secret = secret;
    options.size = size;
    options.heartbeat_interval = std::chrono::milliseconds(50);
    options.heartbeat_timeout = std::chrono::seconds(10);
    if (change) {
      change(options);
    }
    size_ = options.size;
    auto started = Server::start(loop_, options, *this);
    EXPECT_TRUE(started) << started.status().to_string();
    if (started) {
      server_ = std::move(started).value();
    }
  }
  ~TestServer() override { stop(); }
  void stop() { server_.reset(); }

  Server& operator*() { return *server_; }
  Server* operator->() { return server_.get(); }
  AsioLoop& loop() { return loop_; }
  std::string address() { return address_of(server_->port()); }

  void on_epoch(const Membership& membership) override {
    log.add("epoch " + std::to_string(membership.epoch.value) + " of " + std::to_string(membership.size()));
  }
  void on_message(Rank from, ConstBytes message) override {
    const std::string text = text_of(message);
    log.add("message " + std::to_string(from) + " " + text);
    SRT_CHECK(text != "trip");
    if (text.starts_with("echo ")) {
      server_->send(from, message);
    } else if (text.starts_with("all ")) {
      for (Rank rank = 0; rank < size_; ++rank) {
        server_->send(rank, message);
      }
    }
  }
  void on_left(Rank rank) override { log.add("left " + std::to_string(rank)); }
  void on_lost(Rank rank, const Status& cause) override {
    log.add("lost " + std::to_string(rank) + " " + cause.to_string());
  }
  void on_epoch_end() override { log.add("epoch end"); }
  void on_warning(const std::string& line) override { log.add("warning " + line); }

  EventLog log;
  Secret secret;

 private:
  int size_ = 0;
  AsioLoop loop_;
  std::unique_ptr<Server> server_;
};

inline JoinRequest join_request(Rank rank, int size) {
  JoinRequest request;
  request.rank = rank;
  request.size = size;
  request.hostname = "node-" + std::to_string(rank);
  request.host_id = request.hostname;
  request.pid = 1000 + rank;
  request.data_endpoints = {"127.0.0.1:" + std::to_string(40000 + rank)};
  request.version = "1.0";
  request.agreed_options = {{"sync.mode", "step"}};
  return request;
}

class TestClient final : public ClientHandler {
 public:
  explicit TestClient(AsioLoop* loop = nullptr)
      : own_(loop == nullptr ? std::make_unique<AsioLoop>("test-client") : nullptr),
        loop_(loop == nullptr ? *own_ : *loop) {}
  ~TestClient() override { client_.reset(); }

  ClientOptions options;
  EventLog log;

  Status connect(const std::string& server, const Secret& secret, MoveFunction<bool()> cancelled = {}) {
    options.server = server;
    options.secret = secret;
    auto connected = Client::connect(loop_, options, *this, std::move(cancelled));
    if (!connected) {
      return connected.status();
    }
    client_ = std::move(connected).value();
    return {};
  }
  Status connect(TestServer& server) { return connect(server.address(), server.secret); }
  void drop() { client_.reset(); }

  Client* operator->() { return client_.get(); }
  AsioLoop& loop() { return loop_; }
  void say(const std::string& text) { client_->send(bytes_of(text)); }

  void on_message(ConstBytes message) override { log.add("message " + text_of(message)); }
  void on_notice(ConstBytes notice) override { log.add("notice " + text_of(notice)); }
  void on_lost(Rank rank, const Status& cause) override {
    log.add("lost " + std::to_string(rank) + " " + cause.to_string());
  }
  void on_left(Rank rank) override { log.add("left " + std::to_string(rank)); }
  void on_disconnected(const Status& cause) override { log.add("disconnected " + cause.to_string()); }

 private:
  std::unique_ptr<AsioLoop> own_;
  AsioLoop& loop_;
  std::unique_ptr<Client> client_;
};

using Clients = std::vector<std::unique_ptr<TestClient>>;

// Joins all clients concurrently; returns the results by rank.
inline std::vector<Result<Membership>> join_all(Clients& clients, const std::vector<JoinRequest>& requests) {
  std::vector<Result<Membership>> results(clients.size(), Status(Code::kBug, "did not join"));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < clients.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = (*clients[i])->join(requests[i]); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  return results;
}

// Returns the clients of a formed epoch of `size` ranks.
inline Clients formed(TestServer& server, int size, const std::function<void(ClientOptions&)>& change = {}) {
  Clients clients;
  std::vector<JoinRequest> requests;
  for (int rank = 0; rank < size; ++rank) {
    clients.push_back(std::make_unique<TestClient>());
    if (change) {
      change(clients.back()->options);
    }
    const Status status = clients.back()->connect(server);
    EXPECT_TRUE(status.ok()) << status.to_string();
    requests.push_back(join_request(rank, size));
  }
  for (const auto& result : join_all(clients, requests)) {
    EXPECT_TRUE(result) << result.status().to_string();
  }
  return clients;
}

// A plain blocking socket, to act as a stranger.
class RawSocket {
 public:
  explicit RawSocket(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    int error = 0;
    const AddrInfo address = look_up({"127.0.0.1", port}, AI_NUMERICHOST, error);
    EXPECT_EQ(::connect(fd_.get(), address->ai_addr, address->ai_addrlen), 0);
    const timeval patience{20, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  void send(ConstBytes bytes) { ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  // Reads `size` bytes; fewer if the peer closes first.
  std::vector<std::byte> read(std::size_t size) {
    std::vector<std::byte> out(size);
    std::size_t used = 0;
    while (used < size) {
      const ssize_t got = ::recv(fd_.get(), out.data() + used, size - used, 0);
      if (got <= 0) {
        break;
      }
      used += static_cast<std::size_t>(got);
    }
    out.resize(used);
    return out;
  }
  // Drops received bytes until the connection ends; returns true if the peer has closed or reset it.
  bool await_end() {
    std::byte byte{};
    while (true) {
      const ssize_t got = ::recv(fd_.get(), &byte, 1, 0);
      if (got <= 0) {
        return got == 0 || errno == ECONNRESET;
      }
    }
  }
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

}  // namespace sirtaki::rendezvous
