// Time of steps by phase, for benchmarks. Disabled by default.
#pragma once

#include <time.h>

#include <cstdint>

namespace headrace {

constexpr const char* kPhaseNames[] = {"embed", "norm", "qkv", "keys", "attention", "quantize", "o", "route", "gate_up", "down",
                                       "lm_head", "sample", "wait"};
enum class Phase { kEmbed, kNorm, kQkv, kKeys, kAttention, kQuantize, kOutput, kRoute, kGateUp, kDown, kLmHead, kSample, kWait };
constexpr int kNumPhases = sizeof kPhaseNames / sizeof *kPhaseNames;

// The times of one thread; on its own cache line to avoid false sharing.
struct alignas(64) PhaseTimes {
  int64_t nanoseconds[kNumPhases];
  int64_t last;
};

// Adds the time since the previous call to the phase that has just ended; without `times` it does nothing.
class Stopwatch {
 public:
  explicit Stopwatch(PhaseTimes* times) : times_(times) {}
  void start() const {
    if (times_) times_->last = now();
  }
  void end(Phase phase) const {
    if (!times_) return;
    const int64_t time = now();
    times_->nanoseconds[static_cast<int>(phase)] += time - times_->last;
    times_->last = time;
  }

 private:
  static int64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  }
  PhaseTimes* times_;
};

}  // namespace headrace
