// A team of threads that run the same function side by side and meet at barriers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

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
  Team(int num_threads, int num_counters);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return num_threads_; }

  // Calls `function(context, thread)` on every thread, the calling one being thread 0; returns when all have returned.
  void run(void (*function)(void* context, int thread), void* context);

  // Waits until every thread of the run is here. Writes before it are seen by all after it.
  void barrier(int thread);

  // Numbers 0, 1, 2, ... handed out once each, for work that threads take as they come; every `run` starts them at 0.
  int take(int counter) { return counters_[counter].value.fetch_add(1, std::memory_order_relaxed); }

 private:
  struct alignas(64) Slot {
    std::atomic<uint32_t> value{0};
  };
  struct alignas(64) Counter {
    std::atomic<int> value{0};
  };
  void work(int thread);
  uint32_t wait_for_run(uint32_t last);

  int num_threads_, num_counters_;
  std::unique_ptr<Slot[]> arrived_;  // barriers passed, per thread
  std::unique_ptr<Counter[]> counters_;
  std::atomic<uint32_t> run_number_{0};
  std::atomic<int> num_running_{0};
  std::atomic<bool> stop_{false};
  void (*function_)(void*, int) = nullptr;
  void* context_ = nullptr;
  std::vector<std::thread> threads_;
};

}  // namespace headrace
