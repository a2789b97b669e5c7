#include "runtime/net/tcp/outbox.h"

#include <algorithm>
#include <utility>

namespace sirtaki::net {
namespace {

// Limit of small frames written together, for which an urgent frame has to wait.
constexpr std::size_t kCoalesceBytes = 64 * 1024;
constexpr std::size_t kCoalesceFrames = 32;

}  // namespace

void Outbox::push_control(const FrameHeader& header) {
  control_.push_back(header);
}

void Outbox::push_frame(Message message) {
  push(std::move(message), false);
}

void Outbox::push_stream(Message message) {
  push(std::move(message), true);
}

void Outbox::push(Message message, bool stream) {
  queued_bytes_ += message.payload.size();
  const Turn turn(message.priority, pushed_++);
  Item& item = queue_[turn];
  item.message = std::move(message);
  item.stream = stream;
}

// Commits a frame, or the next fragment of a stream. Returns whether the item is used up.
bool Outbox::commit_frame(Item& item, std::size_t& budget, TimePoint now) {
  Message& message = item.message;
  const std::size_t rest = message.payload.size() - item.offset;
  const std::size_t size = item.stream ? std::min(rest, fragment_bytes_) : rest;
  FrameHeader header = message.header;
  if (has_payload(header.type)) {
    header.length = size;
  }
  if (item.offset == 0) {
    item.begin = now;
  }
  Piece piece;
  piece.header = encode_frame(header);
  piece.tag = header.tag;
  piece.payload = message.payload.subspan(item.offset, size);
  piece.last = size == rest;
  item.offset += size;
  budget -= std::min(budget, size + kFrameBytes);
  if (piece.last) {
    piece.item = std::move(item);
  }
  committed_.push_back(std::move(piece));
  return committed_.back().last;
}

void Outbox::commit(TimePoint now) {
  std::size_t budget = kCoalesceBytes;
  while (!control_.empty() && committed_.size() < kCoalesceFrames) {
    Piece piece;
    piece.header = encode_frame(control_.front());
    piece.control = true;
    control_.pop_front();
    committed_.push_back(std::move(piece));
  }
  while (!queue_.empty() && budget > 0 && committed_.size() < kCoalesceFrames) {
    const auto first = queue_.begin();
    Item& item = first->second;
    // An urgent frame waits for the whole batch, so no fragment is added to a batch of many small frames.
    if (item.stream && budget < kCoalesceBytes / 2) {
      break;
    }
    if (!commit_frame(item, budget, now)) {
      break;
    }
    queue_.erase(first);
  }
}

std::size_t Outbox::gather(std::span<iovec> out, TimePoint now) {
  if (first_ == committed_.size()) {
    committed_.clear();
    first_ = 0;
    commit(now);
  }
  std::size_t used = 0;
  for (std::size_t i = first_; i < committed_.size() && used + 2 <= out.size(); ++i) {
    Piece& piece = committed_[i];
    if (piece.offset < kFrameBytes) {
      out[used++] = {piece.header.data() + piece.offset, kFrameBytes - piece.offset};
    }
    const std::size_t skip = piece.offset > kFrameBytes ? piece.offset - kFrameBytes : 0;
    if (piece.payload.size() > skip) {
      // sendmsg takes a pointer to mutable memory and does not write to it.
      out[used++] = {const_cast<std::byte*>(piece.payload.data()) + skip, piece.payload.size() - skip};
    }
  }
  return used;
}

void Outbox::written(std::size_t count, TimePoint now, std::vector<Ended>& ended) {
  while (count > 0 && first_ < committed_.size()) {
    Piece& piece = committed_[first_];
    const std::size_t whole = kFrameBytes + piece.payload.size();
    const std::size_t step = std::min(count, whole - piece.offset);
    piece.offset += step;
    count -= step;
    if (piece.offset < whole) {
      return;
    }
    queued_bytes_ -= piece.detached ? 0 : piece.payload.size();
    if (piece.last && !piece.detached && has_payload(piece.item.message.header.type)) {
      Ended end;
      end.done = std::move(piece.item.message.done);
      end.stream = piece.item.stream;
      end.sample.sent = true;
      end.sample.bytes = piece.item.message.payload.size();
      end.sample.queued = piece.item.message.queued;
      end.sample.begin = piece.item.begin;
      end.sample.end = now;
      ended.push_back(std::move(end));
    }
    ++first_;
  }
}

void Outbox::drop(Message& message, bool unsent, Cancelled& cancelled) {
  if (unsent && message.header.type == FrameType::kEager) {
    cancelled.unannounced.push_back(message.payload.size());
  } else if (unsent && message.header.type == FrameType::kPush) {
    cancelled.unannounced.push_back(static_cast<std::size_t>(message.header.length));
  }
  cancelled.dones.push_back(std::move(message.done));
}

// Detaches the caller's memory from a committed piece. Returns whether the piece is to be dropped.
bool Outbox::detach(Piece& piece, Cancelled& cancelled) {
  if (piece.detached) {
    return false;
  }
  piece.detached = true;
  queued_bytes_ -= piece.payload.size();
  if (piece.last) {
    drop(piece.item.message, piece.offset == 0, cancelled);
  }
  if (piece.offset == 0) {
    return true;
  }
  // A frame that has begun must be completed, or the peer could not parse the rest of the connection.
  piece.copy.assign(piece.payload.begin(), piece.payload.end());
  piece.payload = piece.copy;
  return false;
}

template <class Selects>
Outbox::Cancelled Outbox::cancel_if(Selects selects) {
  Cancelled cancelled;
  for (auto it = queue_.begin(); it != queue_.end();) {
    Item& item = it->second;
    if (selects(item.message.header.tag)) {
      queued_bytes_ -= item.message.payload.size() - item.offset;
      drop(item.message, item.offset == 0, cancelled);
      it = queue_.erase(it);
    } else {
      ++it;
    }
  }
  const auto unwritten = committed_.begin() + static_cast<std::ptrdiff_t>(first_);
  const auto dropped = std::remove_if(unwritten, committed_.end(), [&](Piece& piece) {
    return !piece.control && selects(piece.tag) && detach(piece, cancelled);
  });
  committed_.erase(dropped, committed_.end());
  return cancelled;
}

Outbox::Cancelled Outbox::cancel(const TagGroup& tags) {
  return cancel_if([&tags](OpTag tag) { return tags.contains(tag); });
}

Outbox::Cancelled Outbox::cancel_all() {
  return cancel_if([](OpTag) { return true; });
}

}  // namespace sirtaki::net
