#include "team.h"

#include <sched.h>
#include <strings.h>
#include <time.h>

#include <chrono>
#include <cstdlib>

namespace headrace {

namespace {

struct Patience {
  int spins_before_yield;  // waiting for another thread
  std::chrono::microseconds spin_for_next_run;
};
constexpr Patience kActive{4096, std::chrono::microseconds(50)};  // some tens of microseconds; parking and waking takes 25
// As with OpenMP, for machines with more busy threads than cores: the thread that is waited for needs a core.
constexpr Patience kPassive{16, std::chrono::microseconds(0)};

const Patience& patience() {
  static const Patience& chosen = [] () -> const Patience& {
    const char* policy = std::getenv("OMP_WAIT_POLICY");
    return policy != nullptr && strcasecmp(policy, "passive") == 0 ? kPassive : kActive;
  }();
  return chosen;
}

int64_t nanoseconds(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

template <class Condition>
void spin_until(const Condition& condition) {
  if (condition()) return;
  const int spins_before_yield = patience().spins_before_yield;
  for (int spins = 0; !condition(); spins++) {
    if (spins < spins_before_yield) cpu_relax();
    else sched_yield();
  }
}

}  // namespace

Team::Team(int num_threads, int num_items)
    : num_threads_(num_threads), num_items_(num_items), members_(new Member[num_threads]),
      stages_(new Counter[num_items]), budget_(num_threads), num_active_(num_threads) {
  for (int thread = 1; thread < num_threads; thread++) threads_.emplace_back([this, thread] { work(thread); });
}

Team::~Team() {
  stop_.store(true);
  for (int thread = 1; thread < num_threads_; thread++) {
    members_[thread].runs.fetch_add(1, std::memory_order_release);
    members_[thread].runs.notify_one();
  }
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(void (*function)(void*, int), void* context, bool synchronises_often) {
  started_ = nanoseconds(CLOCK_MONOTONIC);
  num_active_ = synchronises_often ? budget_.size(started_) : num_threads_;
  taken_.value.store(0, std::memory_order_relaxed);
  for (int i = 0; i < num_items_; i++) stages_[i].value.store(0, std::memory_order_relaxed);
  for (int i = 0; i < num_active_; i++) members_[i].arrived.store(0, std::memory_order_relaxed);
  function_ = function;
  context_ = context;
  running_.value.store(num_active_ - 1, std::memory_order_relaxed);
  // Inactive threads are not woken and never read the state of the run.
  for (int thread = 1; thread < num_active_; thread++) {
    members_[thread].runs.fetch_add(1, std::memory_order_release);
    members_[thread].runs.notify_one();
  }
  run_part(0);
  spin_until([&] { return running_.value.load(std::memory_order_acquire) == 0; });
  const int64_t now = nanoseconds(CLOCK_MONOTONIC);
  if (synchronises_often) budget_.record(now, now - started_, lost_time());
}

// Lost time is the time between start and end of the run in which the thread was not on a core: not yet woken,
// preempted, or yielding its core while it waited for a preempted thread.
void Team::run_part(int thread) {
  const int64_t cpu_start = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
  function_(context_, thread);
  const int64_t cpu = nanoseconds(CLOCK_THREAD_CPUTIME_ID) - cpu_start;
  members_[thread].lost = nanoseconds(CLOCK_MONOTONIC) - started_ - cpu;
}

int64_t Team::lost_time() const {
  int64_t lost = 0;
  for (int thread = 0; thread < num_active_; thread++) {
    if (members_[thread].lost > lost) lost = members_[thread].lost;
  }
  return lost;
}

void Team::barrier(int thread) {
  std::atomic<uint32_t>& arrived = members_[thread].arrived;
  for (int distance = 1; distance < num_active_; distance *= kBarrierWays) {
    const uint32_t round = arrived.load(std::memory_order_relaxed) + 1;
    arrived.store(round, std::memory_order_release);
    for (int way = 1; way < kBarrierWays && way * distance < num_active_; way++) {
      const std::atomic<uint32_t>& theirs = members_[(thread + way * distance) % num_active_].arrived;
      spin_until([&] { return static_cast<int32_t>(theirs.load(std::memory_order_acquire) - round) >= 0; });
    }
  }
}

void Team::wait_for_stages(int item, int count) const {
  const std::atomic<int>& stages = stages_[item].value;
  spin_until([&] { return stages.load(std::memory_order_acquire) >= count; });
}

uint32_t Team::wait_for_run(int thread, uint32_t last) const {
  const std::atomic<uint32_t>& runs = members_[thread].runs;
  const auto deadline = std::chrono::steady_clock::now() + patience().spin_for_next_run;
  do {
    for (int i = 0; i < 64; i++) {
      uint32_t current = runs.load(std::memory_order_acquire);
      if (current != last) return current;
      cpu_relax();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  runs.wait(last, std::memory_order_acquire);
  return runs.load(std::memory_order_acquire);
}

void Team::work(int thread) {
  uint32_t last = 0;
  for (;;) {
    last = wait_for_run(thread, last);
    if (stop_.load(std::memory_order_relaxed)) return;
    run_part(thread);
    running_.value.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace headrace
