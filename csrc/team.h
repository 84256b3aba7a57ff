// A team of threads that run the same function concurrently and synchronise at barriers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "thread_budget.h"

namespace headrace {

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Two lines of 64 bytes, which Intel's prefetcher fetches together, or one line of Apple's cores.
constexpr size_t kCacheLines = 128;
constexpr int kBarrierWays = 4;

// Workers sleep between runs, after spinning for some microseconds: the next run often follows immediately.
class Team {
 public:
  Team(int num_threads, int num_items);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return num_threads_; }

  // Threads that take part in the current run: fewer than `size` while other processes keep the cores busy.
  int num_active() const { return num_active_; }

  // Rounds of barriers in the newest run: of 2 to 4 threads, its barriers.
  int num_rounds() const { return static_cast<int>(members_[0].arrived.load(std::memory_order_relaxed)); }

  // Calls `function(context, thread)` on the active threads, the caller being thread 0, and waits for all of them.
  // All threads are active if they seldom synchronise (`synchronises_often` false).
  void run(void (*function)(void* context, int thread), void* context, bool synchronises_often);

  // Waits until every thread of the run arrives. Writes before it are visible to all threads after it.
  //
  // In each round a thread waits for kBarrierWays - 1 others, which stand for kBarrierWays times as many as in the round
  // before (n-way dissemination: Hoefler et al. 2006). Up to 4 threads it is one round in which each reads all others; 16
  // threads read 6 counters each instead of 15.
  void barrier(int thread);

  // Returns 0, 1, 2, ..., each once per run, for dynamic scheduling.
  int take() { return taken_.value.fetch_add(1, std::memory_order_relaxed); }

  // Counts a finished stage of an item, which one thread works on at a time; reset at every `run`.
  void finish_stage(int item) { stages_[item].value.fetch_add(1, std::memory_order_release); }

  // Waits until `count` stages of an item are finished and their writes are visible. To avoid deadlock, the waiting
  // thread must have taken its work after the threads that work on these stages.
  void wait_for_stages(int item, int count) const;

 private:
  // State of one thread, on its own cache lines to avoid false sharing.
  struct alignas(kCacheLines) Member {
    std::atomic<uint32_t> runs{0};     // runs started; the thread sleeps on this
    std::atomic<uint32_t> arrived{0};  // rounds of barriers reached
    int64_t lost = 0;                  // nanoseconds of this run in which the thread was descheduled
  };
  struct alignas(kCacheLines) Counter {
    std::atomic<int> value{0};
  };
  void work(int thread);
  void run_part(int thread);
  uint32_t wait_for_run(int thread, uint32_t last) const;
  int64_t lost_time() const;

  const int num_threads_, num_items_;
  std::unique_ptr<Member[]> members_;
  std::unique_ptr<Counter[]> stages_;
  Counter taken_, running_;
  ThreadBudget budget_;
  // Written by thread 0 between runs, when no other thread is in a run; published by the release of `Member::runs`.
  int num_active_;
  int64_t started_ = 0;
  std::atomic<bool> stop_{false};
  void (*function_)(void*, int) = nullptr;
  void* context_ = nullptr;
  std::vector<std::thread> threads_;
};

}  // namespace headrace
