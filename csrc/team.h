// A team of threads that run the same function side by side and meet at barriers.
#pragma once

#include <atomic>
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

// Workers sleep between runs (they spin for some microseconds first, as the next run often comes at once).
class Team {
 public:
  Team(int num_threads, int num_items);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return num_threads_; }

  // Threads that take part in the current run: fewer than `size` while other processes keep the cores busy.
  int num_active() const { return num_active_; }

  // Calls `function(context, thread)` on the active threads, the calling one being thread 0; returns when all have
  // returned. All threads are active where they seldom wait for each other (`meets_often` false).
  void run(void (*function)(void* context, int thread), void* context, bool meets_often);

  // Waits until every thread of the run is here. Writes before it are seen by all after it.
  void barrier(int thread);

  // Numbers 0, 1, 2, ... handed out once each, for work that threads take as they come; every `run` starts at 0.
  int take() { return taken_.value.fetch_add(1, std::memory_order_relaxed); }

  // Counts the finished stages of an item, on which one thread works at a time; every `run` starts at 0.
  void finish_stage(int item) { stages_[item].value.fetch_add(1, std::memory_order_release); }

  // Waits until `count` stages of an item are finished, and sees what was written in them. Whoever waits must have taken
  // its work after those who work on these stages.
  void wait_for_stages(int item, int count) const;

 private:
  // What belongs to one thread, on a cache line of its own.
  struct alignas(64) Member {
    std::atomic<uint32_t> runs{0};     // runs that it was called to; its thread sleeps on this
    std::atomic<uint32_t> arrived{0};  // barriers of this run that it has reached
    int64_t lost = 0;                  // nanoseconds of this run for which it was off its core
  };
  struct alignas(64) Counter {
    std::atomic<int> value{0};
  };
  void work(int thread);
  void run_part(int thread);
  uint32_t wait_for_run(int thread, uint32_t last) const;
  int64_t lost_time() const;

  const int num_threads_, num_items_;
  std::unique_ptr<Member[]> members_;
  std::unique_ptr<Counter[]> stages_;
  Counter taken_;
  ThreadBudget budget_;
  // Written by thread 0 between runs, when no other thread is in a run; published by the release of `Member::runs`.
  int num_active_;
  int64_t started_ = 0;
  std::atomic<int> num_running_{0};
  std::atomic<bool> stop_{false};
  void (*function_)(void*, int) = nullptr;
  void* context_ = nullptr;
  std::vector<std::thread> threads_;
};

}  // namespace headrace
