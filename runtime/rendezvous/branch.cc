#include "runtime/rendezvous/branch.h"

#include <boost/asio/ip/tcp.hpp>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/wire.h"
#include "runtime/rendezvous/link/asio_context.h"
#include "runtime/rendezvous/link/auth_listener.h"
#include "runtime/rendezvous/link/link.h"
#include "runtime/rendezvous/link/sockets.h"

namespace sirtaki::rendezvous {

namespace asio = boost::asio;

namespace {

constexpr int kMaxVisitors = 64;  // connections before their proof of the secret, beyond one for each child

class BranchImpl final : public Branch, public LinkHandler {
 public:
  BranchImpl(AsioLoop& loop, asio::ip::tcp::socket socket, std::vector<std::byte> following)
      : link_(std::make_shared<Link>(loop, std::move(socket), *this)), following_(std::move(following)) {}
  ~BranchImpl() override {
    // After a leave, frames that are still queued must reach the other side.
    if (left_) {
      link_->finish();
    } else {
      link_->close();
    }
  }

  void start(BranchHandler& handler) override {
    handler_ = &handler;
    const auto link = link_;
    link->start(std::exchange(following_, {}));
  }
  void send(ConstBytes message) override { link_->send(FrameType::kTree, message); }
  void leave() override {
    if (!std::exchange(left_, true)) {
      link_->send(FrameType::kLeave, {});
    }
  }

 private:
  void on_frame(const Frame& frame) override {
    switch (frame.type) {
      case FrameType::kTree:
        return handler_->on_tree(*this, frame.payload);
      case FrameType::kLeave:
        left_ = over_ = true;
        link_->send(FrameType::kLeaveOk, {});
        return handler_->on_leave(*this);
      case FrameType::kLeaveOk:
        over_ = true;
        return handler_->on_leave_ok(*this);
      default:
        link_->close();
        return handler_->on_end(*this, corrupt("a frame of type " + std::to_string(static_cast<int>(frame.type)) +
                                               " came that does not belong there"));
    }
  }
  void on_end(const Status& cause) override {
    if (!over_) {
      handler_->on_end(*this, cause);
    }
  }

  BranchHandler* handler_ = nullptr;
  std::shared_ptr<Link> link_;
  std::vector<std::byte> following_;
  bool left_ = false;  // sent a leave, or answered one
  bool over_ = false;  // the leave is complete: the end of the connection is expected
};

class BranchPortImpl final : public BranchPort, private GateHandler {
 public:
  BranchPortImpl(AsioLoop& loop, Duration silence_timeout, BranchPortHandler& handler)
      : loop_(loop), silence_timeout_(silence_timeout), handler_(handler) {}

  Status listen(BranchPortOptions options) {
    GateOptions gate;
    gate.bind_address = std::move(options.bind_address);
    gate.port_first = options.port_first;
    gate.port_last = options.port_last;
    gate.secret = options.secret;
    gate.purpose = Purpose::kBranch;
    gate.handshake_timeout = options.handshake_timeout;
    gate.max_visitors = kMaxVisitors + options.children;
    SRT_ASSIGN(listener_, AuthListener::open(loop_, std::move(gate), *this));
    return {};
  }

  std::uint16_t port() const override { return listener_->port(); }
  std::uint64_t strangers() const override { return listener_->strangers(); }

 private:
  void on_guest(Guest guest) override {
    const auto hello = decode_branch_hello(guest.hello);
    if (!hello) {
      handler_.on_branch_warning("refused a connection from " + guest.address + ": " +
                                 std::string(hello.status().text()));
      return;
    }
    set_control_options(guest.socket.native_handle(), silence_timeout_);
    handler_.on_branch(*hello,
                       std::make_unique<BranchImpl>(loop_, std::move(guest.socket), std::move(guest.following)));
  }
  void on_gate_warning(const std::string& line) override { handler_.on_branch_warning(line); }

  AsioLoop& loop_;
  const Duration silence_timeout_;
  BranchPortHandler& handler_;
  std::unique_ptr<AuthListener> listener_;
};

}  // namespace

std::vector<std::byte> encode(const BranchHello& hello) {
  WireWriter out;
  out.put(hello.epoch.value);
  out.put(static_cast<std::int32_t>(hello.from));
  out.put(hello.relay);
  return std::move(out).take();
}

Result<BranchHello> decode_branch_hello(ConstBytes bytes) {
  WireReader in(bytes);
  BranchHello hello;
  hello.epoch = Epoch(in.get<std::uint32_t>());
  hello.from = in.get<std::int32_t>();
  hello.relay = in.get<std::int32_t>();
  SRT_TRY(in.finish("the hello of a branch"));
  return hello;
}

Result<std::unique_ptr<Branch>> Branch::adopt(AsioLoop& loop, Dialed dialed) {
  SRT_IN_LOOP(loop);
  asio::ip::tcp::socket socket(io_context_of(loop));
  boost::system::error_code error;
  const bool v6 = dialed.local.family() == AF_INET6;
  socket.assign(v6 ? asio::ip::tcp::v6() : asio::ip::tcp::v4(), dialed.fd.get(), error);
  if (error) {
    return unavailable("cannot watch a connection: " + error.message());
  }
  dialed.fd.release();
  return std::unique_ptr<Branch>(std::make_unique<BranchImpl>(loop, std::move(socket), std::move(dialed.following)));
}

Result<std::unique_ptr<BranchPort>> BranchPort::open(AsioLoop& loop, BranchPortOptions options,
                                                     BranchPortHandler& handler) {
  auto port = std::make_unique<BranchPortImpl>(loop, options.silence_timeout, handler);
  SRT_TRY(port->listen(std::move(options)));
  return std::unique_ptr<BranchPort>(std::move(port));
}

}  // namespace sirtaki::rendezvous
