// Chooses the number of threads for the next run while other processes compete for the cores.
#pragma once

#include <cstdint>

namespace headrace {

// The threads of a run synchronise often, so all of them wait while one is preempted: next to another busy process on
// two cores, two threads are slower than one. A thread contributes 1/n of the speed of n threads; when more time than
// that is lost, the budget drops by one thread. Later it tries one more again, with exponential backoff. Waking a thread
// also takes time, which no other process causes: it does not count, or a step of half a millisecond would lose a fifth of
// its time on an idle machine. All times are nanoseconds of a steady clock.
class ThreadBudget {
 public:
  explicit ThreadBudget(int num_threads) : num_threads_(num_threads), size_(num_threads) {}

  // Returns the number of threads for a run that starts now.
  int size(int64_t now) {
    if (size_ < num_threads_ && now >= retry_at_) {
      size_++;
      is_trial_ = true;
      retry_at_ = now + pause_;  // for the next thread
      elapsed_ = lost_ = 0;
    }
    return size_;
  }

  // Records a run of `size` threads that ended now and took `elapsed`, in which a thread lost the time `lost`.
  void record(int64_t now, int64_t elapsed, int64_t lost) {
    if (size_ == 1) return;
    elapsed_ += elapsed;
    lost_ += lost > kWakeUp ? lost - kWakeUp : 0;
    if (lost_ > kMinimumLoss && lost_ * size_ > elapsed_ * kWorthOfThread) {
      drop_thread(now);
    } else if (elapsed_ >= kWindow) {
      is_trial_ = false;
      elapsed_ = lost_ = 0;
    }
  }

 private:
  static constexpr int64_t kMillisecond = 1'000'000;
  static constexpr int64_t kWakeUp = kMillisecond / 10;      // of the threads of a run
  static constexpr int64_t kWindow = 25 * kMillisecond;      // of work, over which losses are summed
  static constexpr int64_t kMinimumLoss = 4 * kMillisecond;  // less is a short interruption, not a busy process
  static constexpr int64_t kFirstPause = 50 * kMillisecond, kLongestPause = 800 * kMillisecond;
  static constexpr double kWorthOfThread = 0.8;  // of 1/n, because threads share the memory bandwidth

  void drop_thread(int64_t now) {
    pause_ = is_trial_ ? (pause_ * 2 < kLongestPause ? pause_ * 2 : kLongestPause) : kFirstPause;
    size_--;
    retry_at_ = now + pause_;
    is_trial_ = false;
    elapsed_ = lost_ = 0;
  }

  const int num_threads_;
  int size_;
  bool is_trial_ = false;
  int64_t pause_ = kFirstPause, retry_at_ = 0, elapsed_ = 0, lost_ = 0;
};

}  // namespace headrace
