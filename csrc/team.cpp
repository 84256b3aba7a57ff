#include "team.h"

#include <sched.h>

#include <chrono>

namespace headrace {

namespace {

constexpr int kSpinsBeforeYield = 4096;                      // in a barrier, some tens of microseconds
constexpr auto kSpinForNextRun = std::chrono::microseconds(50);  // parking and waking takes about 25

}  // namespace

Team::Team(int num_threads, int num_counters)
    : num_threads_(num_threads), num_counters_(num_counters), arrived_(new Slot[num_threads]),
      counters_(new Counter[num_counters]) {
  for (int thread = 1; thread < num_threads; thread++) threads_.emplace_back([this, thread] { work(thread); });
}

Team::~Team() {
  stop_.store(true);
  run_number_.fetch_add(1);
  run_number_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(void (*function)(void*, int), void* context) {
  for (int i = 0; i < num_counters_; i++) counters_[i].value.store(0, std::memory_order_relaxed);
  function_ = function;
  context_ = context;
  num_running_.store(num_threads_ - 1, std::memory_order_relaxed);
  run_number_.fetch_add(1, std::memory_order_release);
  run_number_.notify_all();
  function(context, 0);
  for (int spins = 0; num_running_.load(std::memory_order_acquire) != 0; spins++) {
    if (spins < kSpinsBeforeYield) cpu_relax();
    else sched_yield();
  }
}

void Team::barrier(int thread) {
  uint32_t mine = arrived_[thread].value.load(std::memory_order_relaxed) + 1;
  arrived_[thread].value.store(mine, std::memory_order_release);
  for (int other = 0; other < num_threads_; other++) {
    const std::atomic<uint32_t>& theirs = arrived_[other].value;
    for (int spins = 0; static_cast<int32_t>(theirs.load(std::memory_order_acquire) - mine) < 0; spins++) {
      if (spins < kSpinsBeforeYield) cpu_relax();
      else sched_yield();
    }
  }
}

uint32_t Team::wait_for_run(uint32_t last) {
  const auto deadline = std::chrono::steady_clock::now() + kSpinForNextRun;
  do {
    for (int i = 0; i < 64; i++) {
      uint32_t current = run_number_.load(std::memory_order_acquire);
      if (current != last) return current;
      cpu_relax();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  run_number_.wait(last, std::memory_order_acquire);
  return run_number_.load(std::memory_order_acquire);
}

void Team::work(int thread) {
  uint32_t last = 0;
  for (;;) {
    last = wait_for_run(last);
    if (stop_.load(std::memory_order_relaxed)) return;
    function_(context_, thread);
    num_running_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace headrace
