#include "tests/device/emulator.h"

#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <vector>

namespace sirtaki::emulated {
namespace {

constexpr std::size_t kStack = 128 << 10;
constexpr unsigned kLanes = 32;

// A barrier that opens when all live threads have arrived.
struct Gate {
  unsigned live = 0;
  unsigned arrived = 0;
  std::uint64_t turn = 0;

  void open_when_full() {
    if (arrived != 0 && arrived == live) {
      arrived = 0;
      ++turn;
    }
  }
};

struct Warp {
  Gate gate;
  std::uint32_t live = 0;
  const char* function = nullptr;
  std::uint64_t words[2][kLanes] = {};
  std::uint32_t met[2] = {};
};

struct Fiber {
  ucontext_t context;
  const Gate* waits_for = nullptr;
  std::uint64_t turn = 0;
  bool done = false;

  bool can_run() const { return !done && (waits_for == nullptr || waits_for->turn != turn); }
};

struct Machine {
  Place place;
  unsigned order = 0;
  std::mt19937 random{7};
  std::vector<std::unique_ptr<char[]>> stacks;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Gate block;
  ucontext_t scheduler;
  const std::function<void()>* kernel = nullptr;
  std::set<const void*> launched;
  std::set<const void*> loaded;

  Fiber& current() { return fibers[place.thread.x]; }
};

Machine& machine() {
  static Machine the_one;
  return the_one;
}

[[noreturn]] void give_up(const char* what, const char* detail) {
  const Place& at = machine().place;
  std::fprintf(stderr, "emulator: block %u, thread %u: %s%s\n", at.block.x, at.thread.x, what, detail);
  std::abort();
}

void wait_at(Gate& gate) {
  Machine& m = machine();
  Fiber& fiber = m.current();
  const std::uint64_t turn = gate.turn;
  ++gate.arrived;
  gate.open_when_full();
  if (gate.turn == turn) {
    fiber.waits_for = &gate;
    fiber.turn = turn;
    swapcontext(&fiber.context, &m.scheduler);
    fiber.waits_for = nullptr;
  }
}

void run_thread() {
  Machine& m = machine();
  (*m.kernel)();
  Fiber& fiber = m.current();
  fiber.done = true;
  Warp& warp = m.warps[m.place.thread.x / kLanes];
  warp.live &= ~(1U << m.place.thread.x % kLanes);
  --warp.gate.live;
  --m.block.live;
  warp.gate.open_when_full();
  m.block.open_when_full();
  setcontext(&m.scheduler);
}

void start_block(Machine& m, unsigned threads) {
  while (m.stacks.size() < threads) {
    m.stacks.push_back(std::make_unique<char[]>(kStack));
  }
  m.fibers = std::vector<Fiber>(threads);
  m.warps = std::vector<Warp>(threads / kLanes);
  m.block = Gate{threads};
  for (Warp& warp : m.warps) {
    warp.gate.live = kLanes;
    warp.live = ~0U;
  }
  for (unsigned t = 0; t < threads; ++t) {
    ucontext_t& context = m.fibers[t].context;
    getcontext(&context);
    context.uc_stack.ss_sp = m.stacks[t].get();
    context.uc_stack.ss_size = kStack;
    context.uc_link = nullptr;
    makecontext(&context, run_thread, 0);
  }
}

void run_block(Machine& m, unsigned threads) {
  start_block(m, threads);
  std::vector<unsigned> turns(threads);
  for (unsigned t = 0; t < threads; ++t) {
    turns[t] = m.order == 1 ? threads - 1 - t : t;
  }
  while (m.block.live > 0) {
    if (m.order > 1) {
      std::shuffle(turns.begin(), turns.end(), m.random);
    }
    bool progress = false;
    for (const unsigned t : turns) {
      if (m.fibers[t].can_run()) {
        progress = true;
        m.place.thread.x = t;
        swapcontext(&m.scheduler, &m.fibers[t].context);
      }
    }
    if (!progress) {
      give_up("all threads wait, not all at the same place", "");
    }
  }
}

}  // namespace

const Place& place() {
  return machine().place;
}

void note_launched(const void* kernel) {
  machine().launched.insert(kernel);
}
void note_loaded(const void* kernel) {
  machine().loaded.insert(kernel);
}
std::size_t launched_kernels() {
  return machine().launched.size();
}
std::size_t launched_but_not_loaded() {
  std::size_t count = 0;
  for (const void* kernel : machine().launched) {
    count += machine().loaded.contains(kernel) ? 0 : 1;
  }
  return count;
}

std::size_t loaded_but_not_launched() {
  return machine().loaded.size() + launched_but_not_loaded() - machine().launched.size();
}

void set_order(unsigned order) {
  machine().order = order;
  machine().random.seed(order);
}

void run(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
  Machine& m = machine();
  if (threads % kLanes != 0 || threads > 1024) {
    give_up("not whole warps, or more threads than a block can have", "");
  }
  m.kernel = &kernel;
  m.place.threads.x = threads;
  m.place.blocks.x = blocks;
  for (unsigned b = 0; b < blocks; ++b) {
    m.place.block.x = b;
    run_block(m, threads);
  }
}

Words meet(const char* function, std::uint32_t mask, std::uint64_t word) {
  Machine& m = machine();
  Warp& warp = m.warps[m.place.thread.x / kLanes];
  const std::uint64_t set = warp.gate.turn % 2;
  if (warp.gate.arrived == 0) {
    warp.function = function;
    std::fill_n(warp.words[set], kLanes, 0);
    warp.met[set] = 0;
  } else if (std::strcmp(warp.function, function) != 0) {
    give_up("lanes of a warp meet in different functions, here in ", function);
  }
  if ((warp.live & ~mask) != 0) {
    give_up("the mask leaves out lanes that have not ended, in ", function);
  }
  warp.words[set][m.place.thread.x % kLanes] = word;
  warp.met[set] |= 1U << m.place.thread.x % kLanes;
  wait_at(warp.gate);
  return {warp.words[set], warp.met[set]};
}

std::uint64_t word_of(const char* function, const Words& words, unsigned lane) {
  if ((words.met >> lane & 1U) == 0) {
    give_up("reads from a lane that has ended, in ", function);
  }
  return words.of[lane];
}

void meet_block() {
  wait_at(machine().block);
}

}  // namespace sirtaki::emulated
