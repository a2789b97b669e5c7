#include "launcher/join/join_port.h"

#include <utility>

#include "runtime/rendezvous/link/asio_loop.h"
#include "runtime/rendezvous/link/auth_listener.h"
#include "runtime/rendezvous/link/sockets.h"

namespace sirtaki::launcher {

using rendezvous::StreamCipher;

struct JoinPort::State final : rendezvous::GateHandler {
  explicit State(Events given) : events(std::move(given)) {}
  ~State() override {
    loop.run_sync([this] { listener.reset(); });
    loop.stop();
  }

  void on_guest(rendezvous::Guest guest) override {
    Result<HostOffer> offer = decode_host_offer(guest.hello);
    if (!offer) {
      return events.on_warning("refused the host at " + guest.address + ": " + std::string(offer.status().text()));
    }
    const int fd = guest.socket.native_handle();
    auto host = std::make_shared<JoiningHost>();
    host->offer = std::move(*offer);
    host->peer = rendezvous::remote_address_of(fd).host();
    host->here = rendezvous::local_address_of(fd).host();
    Result<ChannelEnds> ends =
        socket_ends(FileDescriptor(guest.socket.release()), StreamCipher(guest.session, StreamCipher::Side::kAcceptor),
                    std::move(guest.following));
    if (!ends) {
      return events.on_warning("refused the host at " + guest.address + ": " + std::string(ends.status().text()));
    }
    host->ends = std::move(*ends);
    events.on_host(host);
  }
  void on_gate_warning(const std::string& line) override { events.on_warning(line); }

  const Events events;
  rendezvous::AsioLoop loop{"srt-join"};
  std::unique_ptr<rendezvous::AuthListener> listener;
};

JoinPort::JoinPort(std::unique_ptr<State> state) : state_(std::move(state)) {}
JoinPort::~JoinPort() = default;

Result<std::unique_ptr<JoinPort>> JoinPort::open(std::uint16_t port, const rendezvous::Secret& secret, Events events) {
  auto state = std::make_unique<State>(std::move(events));
  rendezvous::GateOptions options;
  options.port_first = port;
  options.port_last = port;
  options.secret = secret;
  options.purpose = rendezvous::Purpose::kAgent;
  SRT_ASSIGN(state->listener, rendezvous::AuthListener::open(state->loop, std::move(options), *state));
  return std::unique_ptr<JoinPort>(new JoinPort(std::move(state)));
}

std::uint16_t JoinPort::port() const {
  return state_->listener->port();
}

}  // namespace sirtaki::launcher
