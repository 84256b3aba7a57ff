// Parallel loops over independent items, for loading; steps use a `Team`.
#pragma once

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace headrace {

// Calls `body(i)` for every i < count; threads take items dynamically. `body` must not throw.
template <class Body>
void parallel_for(size_t count, int num_threads, Body&& body) {
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(i);
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < num_threads && static_cast<size_t>(t) < count; t++) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace headrace
