#include "runtime/net/batch/batch_exchange.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "runtime/base/check.h"

namespace sirtaki::net {
namespace {

// Limits of a batch: the time of its sums, for which other work of the loop has to wait.
constexpr std::size_t kBatchBytes = std::size_t{256} * 1024;
constexpr std::size_t kBatchRecords = 512;

}  // namespace

BatchExchange::BatchExchange(PointToPoint& link, std::shared_ptr<SharedMemory> shared,
                             MoveFunction<void(OpTag, const Announced&)> on_announced)
    : link_(link),
      shared_(std::move(shared)),
      on_announced_(std::move(on_announced)),
      peers_(static_cast<std::size_t>(link.size())) {}

BatchExchange::Row& BatchExchange::row_of(OpTag tag) {
  Row& row = rows_[tag];
  if (row.inputs.empty()) {
    row.inputs.resize(peers_.size());
    row.missing = link_.size();
  }
  return row;
}

void BatchExchange::add(const std::shared_ptr<BatchMember>& member) {
  const OpTag tag = member->tag();
  const Expectation here = member->expectation();
  Row& row = row_of(tag);
  row.member = member;
  row.place = {member->priority(), queued_++};
  queue_.emplace(row.place, Queued{tag, here, false});
  schedule();
  if (!lost_.ok()) {
    member->fail_member(lost_);
    return;
  }
  if (const Status* const cause = dropped_.find(tag)) {
    member->fail_member(*cause);  // inputs for a cancelled tag are dropped
    return;
  }
  for (Rank peer = 0; peer < link_.size(); ++peer) {
    const Input& input = row.inputs[static_cast<std::size_t>(peer)];
    if (input.here && input.there != here) {
      fail_different(row, peer);
      return;
    }
  }
  for (Rank peer = 0; peer < link_.size(); ++peer) {
    if (row.inputs[static_cast<std::size_t>(peer)].here) {
      take(tag, row, peer);
    }
  }
}

void BatchExchange::remove(OpTag tag, const Status& cause) {
  dropped_.add(tag, cause);
  const auto row = rows_.find(tag);
  if (row != rows_.end()) {
    queue_.erase(row->second.place);
    rows_.erase(row);
  }
}

void BatchExchange::cancel(const TagGroup& tags, const Status& cause) {
  dropped_.add(tags, cause);
  if (tags.single()) {
    const auto row = rows_.find(tags.first());
    if (row != rows_.end() && row->second.member == nullptr) {
      rows_.erase(row);
    }
    return;
  }
  std::erase_if(rows_, [&](const auto& row) { return row.second.member == nullptr && tags.contains(row.first); });
}

std::optional<BatchExchange::Announced> BatchExchange::announced(OpTag tag) const {
  const auto row = rows_.find(tag);
  if (row == rows_.end() || row->second.member != nullptr) {
    return std::nullopt;
  }
  const auto input = std::ranges::find_if(row->second.inputs, &Input::here);
  return Announced{static_cast<Rank>(input - row->second.inputs.begin()), input->there};
}

void BatchExchange::refuse(OpTag tag, const Expectation& here, const Status& cause) {
  remove(tag, cause);
  queue_.emplace(std::pair(std::numeric_limits<std::int32_t>::min(), queued_++), Queued{tag, here, true});
  schedule();
}

// ---- sending ----

void BatchExchange::open() {
  if (std::exchange(open_, true)) {
    return;
  }
  for (Rank peer = 0; peer < link_.size(); ++peer) {
    for (std::uint32_t i = 0; peer != link_.rank() && i < kReceives; ++i) {
      receive(peer);
    }
  }
}

void BatchExchange::schedule() {
  if (std::exchange(scheduled_, true)) {
    return;
  }
  link_.loop().post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->scheduled_ = false;
      self->turn();
    }
  });
}

void BatchExchange::turn() {
  while (!queue_.empty() && may_send()) {
    send_batch();
  }
  for (Rank peer = 0; peer < link_.size(); ++peer) {
    const Peer& about = peers_[static_cast<std::size_t>(peer)];
    if (about.read - about.told >= kAnswerAfter) {
      send_notice(peer, {});
    }
  }
  reduce_ready();
}

bool BatchExchange::may_send() const {
  for (Rank peer = 0; peer < link_.size(); ++peer) {
    const Peer& about = peers_[static_cast<std::size_t>(peer)];
    if (peer != link_.rank() && !about.lost && sent_ - about.answered >= kUnanswered) {
      return false;
    }
  }
  return true;
}

// Returns the number of operations of the next batch, and the bytes of its block.
std::size_t BatchExchange::choose(std::size_t& bytes) const {
  std::size_t count = 0;
  std::size_t data = 0;
  for (const auto& [place, queued] : queue_) {
    const std::size_t more = queued.refusal ? 0 : line_up(static_cast<std::size_t>(queued.here.length));
    if (count == kBatchRecords || (count > 0 && data + more > kBatchBytes)) {
      break;
    }
    ++count;
    data += more;
  }
  bytes = line_up(count * sizeof(BatchRecord)) + data;
  return count;
}

void BatchExchange::send_batch() {
  std::size_t bytes = 0;
  std::size_t count = choose(bytes);
  SharedMemory::Readers readers = 0;
  for (Rank peer = 0; peer < link_.size(); ++peer) {
    readers |= peer == link_.rank() ? 0 : SharedMemory::reader(peer);
  }
  const auto room = shared_->reserve(kTag, bytes, readers);
  count = room ? count : 1;
  std::vector<BatchRecord> records;
  std::size_t begin = line_up(count * sizeof(BatchRecord));
  for (std::size_t i = 0; i < count; ++i) {
    const Queued queued = queue_.extract(queue_.begin()).mapped();
    BatchRecord record{queued.tag.value, queued.here.check, static_cast<std::uint32_t>(queued.here.length)};
    if (room && !queued.refusal) {
      const ConstBytes input = rows_.find(queued.tag)->second.member->input();
      record.begin = static_cast<std::uint32_t>(begin);
      std::ranges::copy(input, room->memory.data() + begin);
      begin += line_up(input.size());
    }
    records.push_back(record);
  }
  BatchNotice notice;
  notice.count = static_cast<std::uint32_t>(count);
  if (room) {
    std::memcpy(room->memory.data(), records.data(), count * sizeof(BatchRecord));
    notice.page = room->page;
    notice.bytes = static_cast<std::uint32_t>(bytes);
  } else {
    notice.single = records.front();
  }
  ++sent_;
  send_notices(notice);
  for (const BatchRecord& record : records) {
    mark_sent(record);
  }
}

void BatchExchange::send_notices(const BatchNotice& notice) {
  for (int step = 1; step < link_.size(); ++step) {
    send_notice((link_.rank() + step) % link_.size(), notice);
  }
}

void BatchExchange::send_notice(Rank peer, BatchNotice notice) {
  Peer& about = peers_[static_cast<std::size_t>(peer)];
  if (about.lost) {
    return;
  }
  about.told = about.read;
  notice.read = about.read;
  const auto memory = std::make_shared<BatchNotice>(notice);
  const ConstBytes bytes = std::as_bytes(std::span(memory.get(), 1));
  link_.send(envelope(peer), bytes, [weak = weak_from_this(), memory, peer](const Status& status) {
    const auto self = weak.lock();
    if (self && !status.ok()) {
      self->on_lost(peer, status);
    }
  });
}

// Refusals have no row.
void BatchExchange::mark_sent(const BatchRecord& record) {
  const OpTag tag(record.tag);
  const auto found = rows_.find(tag);
  if (found == rows_.end() || found->second.member == nullptr) {
    return;
  }
  Row& row = found->second;
  row.sent = true;
  row.inputs[static_cast<std::size_t>(link_.rank())].data = row.member->input();
  if (record.follows()) {
    row.missing += link_.size() - 1;
    row.member->send_input([this, tag] {
      one_less(tag);
      reduce_ready();
    });
  }
  one_less(tag);
}

// ---- receiving ----

void BatchExchange::receive(Rank peer) {
  const auto memory = std::make_shared<BatchNotice>();
  const Bytes bytes = std::as_writable_bytes(std::span(memory.get(), 1));
  link_.recv(envelope(peer), bytes, [weak = weak_from_this(), memory, peer](const Status& status) {
    const auto self = weak.lock();
    if (!self) {
      return;
    }
    if (!status.ok()) {
      self->on_lost(peer, status);
      return;
    }
    self->receive(peer);
    self->on_notice(peer, *memory);
  });
}

void BatchExchange::on_notice(Rank peer, const BatchNotice& notice) {
  Peer& about = peers_[static_cast<std::size_t>(peer)];
  if (notice.read - about.answered > sent_ - about.answered) {
    on_lost(peer, corrupt("rank " + std::to_string(link_.job_rank(peer)) + " has read more than was sent"));
    return;
  }
  about.answered = notice.read;
  if (notice.count > 0) {
    ++about.read;
    if (const Status status = on_batch(peer, notice); !status.ok()) {
      on_lost(peer, status);
    }
  }
  if (!queue_.empty() || about.read - about.told >= kAnswerAfter) {
    schedule();
  }
  reduce_ready();
}

Status BatchExchange::on_batch(Rank peer, const BatchNotice& notice) {
  if (notice.bytes == 0) {
    on_record(peer, notice.single, {}, nullptr);
    return {};
  }
  SRT_ASSIGN(SharedView view, shared_->view(kTag, peer, notice.page, notice.bytes));
  const auto block = std::make_shared<const SharedView>(std::move(view));
  SRT_ASSIGN(const auto records, read_batch_table(block->data(), notice.count));
  for (const BatchRecord& record : records) {
    const ConstBytes data = record.follows() ? ConstBytes() : block->data().subspan(record.begin, record.bytes);
    on_record(peer, record, data, record.follows() ? nullptr : block);
  }
  return {};
}

void BatchExchange::on_record(Rank peer, const BatchRecord& record, ConstBytes data,
                              std::shared_ptr<const SharedView> block) {
  on_input(OpTag(record.tag), peer, {true, data, {record.bytes, record.check}, record.follows(), std::move(block)});
}

void BatchExchange::on_input(OpTag tag, Rank peer, Input input) {
  if (dropped_.find(tag) != nullptr) {
    return;
  }
  Row& row = row_of(tag);
  Input& place = row.inputs[static_cast<std::size_t>(peer)];
  if (place.here) {
    row.next.emplace_back(peer, std::move(input));  // the peer has ended this operation and uses its tag again
    return;
  }
  place = std::move(input);
  if (row.member == nullptr) {
    on_announced_(tag, {peer, place.there});
    return;
  }
  if (place.there == row.member->expectation()) {
    take(tag, row, peer);
  } else {
    fail_different(row, peer);
  }
}

// Ends an operation for which `peer` has other arguments. The other ranks detect that by the input of this rank, or by
// a refusal if none was sent.
void BatchExchange::fail_different(const Row& row, Rank peer) {
  const auto member = row.member;
  const bool sent = row.sent;
  const Expectation here = member->expectation();
  const Status cause = mismatch_error(link_.job_rank(peer), here, row.inputs[static_cast<std::size_t>(peer)].there);
  member->fail_member(cause);
  if (!sent) {
    refuse(member->tag(), here, cause);
  }
}

// Takes an input with the right arguments. Its operation has been added.
void BatchExchange::take(OpTag tag, Row& row, Rank peer) {
  if (!row.inputs[static_cast<std::size_t>(peer)].follows) {
    one_less(tag);
    return;
  }
  row.member->receive_input(peer, [this, tag, peer](ConstBytes data) {
    rows_.find(tag)->second.inputs[static_cast<std::size_t>(peer)].data = data;
    one_less(tag);
    reduce_ready();
  });
}

void BatchExchange::one_less(OpTag tag) {
  const auto row = rows_.find(tag);
  if (--row->second.missing > 0) {
    return;
  }
  ready_.push_back(std::move(row->second));
  rows_.erase(row);
  for (auto& [peer, input] : std::exchange(ready_.back().next, {})) {
    on_input(tag, peer, std::move(input));
  }
}

// The callback of an operation may start, cancel or end others.
void BatchExchange::reduce_ready() {
  const auto self = shared_from_this();
  while (!ready_.empty()) {
    const std::vector<Row> ready = std::exchange(ready_, {});
    std::vector<const std::byte*> inputs(peers_.size());
    for (const Row& row : ready) {
      std::ranges::transform(row.inputs, inputs.begin(), [](const Input& input) { return input.data.data(); });
      row.member->reduce(inputs);
    }
  }
}

void BatchExchange::on_lost(Rank peer, const Status& status) {
  if (std::exchange(peers_[static_cast<std::size_t>(peer)].lost, true)) {
    return;
  }
  lost_.update(status);
  // An operation whose input has reached the peer, and that of the peer this rank, does not need the peer any more.
  std::vector<std::shared_ptr<BatchMember>> failed;
  for (const auto& [tag, row] : rows_) {
    if (row.member != nullptr && !(row.sent && row.inputs[static_cast<std::size_t>(peer)].here)) {
      failed.push_back(row.member);
    }
  }
  for (const auto& member : failed) {
    member->fail_member(status);
  }
}

}  // namespace sirtaki::net
