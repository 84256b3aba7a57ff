#include "probes.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "isa.h"
#include "layout.h"
#include "pack.h"
#include "require.h"
#include "team.h"

namespace headrace {

namespace {

constexpr size_t kKeptOutputs = 8192;  // serving consumes wider products tile by tile without storing them
constexpr int kSpinsBeforeYield = 4096;
constexpr int64_t kComputeRounds = 1 << 20;

ModelConfig config_of(const std::string& dtype) {
  ModelConfig config;
  config.dtype = dtype;
  return config;
}

WeightKind kind_of(const std::string& dtype) { return config_of(dtype).main_kind(); }

// Pseudorandom numbers between -1 and 1.
std::vector<float> noise(size_t count) {
  std::vector<float> numbers(count);
  uint32_t state = 1;
  for (float& x : numbers) {
    state = state * 1664525u + 1013904223u;
    x = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
  return numbers;
}

}  // namespace

// A barrier for a fixed number of threads. A `Team` would drop threads while the machine is busy.
class SpinBarrier {
 public:
  explicit SpinBarrier(int num_threads) : num_threads_(num_threads) {}

  void wait(int round) {  // rounds count from 1
    arrived_.fetch_add(1, std::memory_order_acq_rel);
    const int64_t target = static_cast<int64_t>(round) * num_threads_;
    for (int spins = 0; arrived_.load(std::memory_order_acquire) < target; spins++) {
      if (spins < kSpinsBeforeYield) cpu_relax();
      else std::this_thread::yield();
    }
  }

 private:
  const int num_threads_;
  std::atomic<int64_t> arrived_{0};
};

namespace {

// Calls `part(thread, barrier)` on all threads concurrently; returns the seconds until all are done.
template <class Part>
double timed(int num_threads, const Part& part) {
  SpinBarrier start(num_threads), inside(num_threads), end(num_threads);
  const auto work = [&](int thread) {
    start.wait(1);
    part(thread, inside);
    end.wait(1);
  };
  std::vector<std::thread> threads;
  for (int thread = 1; thread < num_threads; thread++) threads.emplace_back(work, thread);
  start.wait(1);
  const auto began = std::chrono::steady_clock::now();
  part(0, inside);
  end.wait(1);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  for (std::thread& thread : threads) thread.join();
  return seconds;
}

int checked(int num_threads) {
  if (num_threads < 1 || num_threads > 1024) throw std::invalid_argument("num_threads must lie between 1 and 1024");
  return num_threads;
}

Activations carve_inputs(Carver& carver, size_t num_rows, int32_t k, int32_t terms) {
  Activations inputs{};
  const size_t groups = static_cast<size_t>(k / kW4Group);
  inputs.values = carver.take<int8_t>(num_rows * k * sizeof(float));  // enough for any kind
  inputs.scales = carver.take<float>(num_rows * groups);
  inputs.biases = carver.take<int32_t>(num_rows * groups * terms);
  inputs.sums = carver.take<float>(num_rows * groups);
  inputs.num_rows = num_rows;
  inputs.groups_pitch = static_cast<int32_t>(groups);
  inputs.terms = terms;
  return inputs;
}

}  // namespace

ProductTimer::ProductTimer(const std::string& kind, int32_t num_outputs, int32_t num_inputs, int num_copies,
                           const std::string& isa, int num_threads)
    : probes_(*select_kernels(isa).probes), num_threads_(checked(num_threads)) {
  if (num_outputs < kPanel || num_outputs % kPanel || num_inputs < kDepth || num_inputs % kDepth || num_copies < 1)
    throw std::invalid_argument("expected outputs in panels of 32, inputs in groups of 64, and at least one copy");
  const size_t bytes = panel_bytes(kind_of(kind), num_inputs), num_panels = static_cast<size_t>(num_outputs) / kPanel;
  weights_ = Arena(bytes * num_panels * num_copies);
  for (int i = 0; i < num_copies; i++) {
    copies_.push_back({kind_of(kind), static_cast<int32_t>(num_panels), num_inputs, bytes,
                       weights_.data() + i * num_panels * bytes});
  }
  const size_t rows = std::max(kColumnRows, num_threads_ * kBlockRows);
  out_pitch_ = static_cast<size_t>(num_outputs) <= kKeptOutputs ? num_outputs : kPanel;
  const auto carve = [&](uint8_t* base) {
    Carver carver(base);
    inputs_ = carve_inputs(carver, rows, num_inputs, config_of(kind).terms());
    out_ = carver.take<float>(rows * out_pitch_);
    return carver.used();
  };
  workspace_ = Arena(carve(nullptr));
  carve(workspace_.data());
  fill(kind);
}

void ProductTimer::fill(const std::string& kind) {
  const Matrix& matrix = copies_[0];
  const std::vector<float> numbers = noise(static_cast<size_t>(matrix.k) * kPanel);
  const Slot slot = {"", false, kind_of(kind), kPanel, matrix.k, 0, matrix.panel_bytes};
  pack_rows(slot, weights_.data(),
            {Encoding::kF32, reinterpret_cast<const uint8_t*>(numbers.data()), kPanel, matrix.k, 0, false}, 1);
  for (size_t at = matrix.panel_bytes; at < weights_.size(); at += matrix.panel_bytes)
    std::memcpy(weights_.data() + at, weights_.data(), matrix.panel_bytes);
  for (size_t row = 0; row < inputs_.num_rows; row++)
    probes_.quantize(matrix.kind, numbers.data() + row % kPanel * matrix.k, matrix.k, inputs_, static_cast<int>(row));
}

double ProductTimer::time(int num_rows, int num_products) {
  if (num_rows < 1 || num_products < 1) throw std::invalid_argument("expected at least one row and one product");
  num_rows_ = num_rows;
  num_products_ = num_products;
  const double seconds = timed(num_threads_, [this](int thread, SpinBarrier& barrier) { run_thread(thread, barrier); });
  next_copy_ = (next_copy_ + num_products) % static_cast<int>(copies_.size());
  return seconds;
}

// Few rows: by panels. Many rows: by blocks of rows, as in kernels/step.inl.
void ProductTimer::run_thread(int thread, SpinBarrier& barrier) {
  for (int i = 0; i < num_products_; i++) {
    const Matrix& matrix = copies_[(next_copy_ + i) % copies_.size()];
    if (num_rows_ <= column_rows(num_threads_)) {
      const auto bound = [&](int t) { return static_cast<int>(static_cast<int64_t>(matrix.num_panels) * t / num_threads_); };
      multiply(matrix, 0, num_rows_, bound(thread), bound(thread + 1));
    } else {
      const int num_blocks = num_row_blocks(num_rows_, num_threads_);
      for (int block = thread; block < num_blocks; block += num_threads_) {
        const int rows = num_rows_ * (block + 1) / num_blocks - num_rows_ * block / num_blocks;
        multiply(matrix, thread * kBlockRows, rows, 0, matrix.num_panels);
      }
    }
    barrier.wait(i + 1);
  }
}

void ProductTimer::multiply(const Matrix& matrix, int first_row, int num_rows, int panel_begin, int panel_end) {
  probes_.multiply({&matrix, &inputs_, first_row, num_rows, panel_begin, panel_end,
                    out_ + static_cast<size_t>(first_row) * out_pitch_, out_pitch_});
}

std::vector<float> multiply(const ProductInputs& x, const std::string& isa) {
  const Probes& probes = *select_kernels(isa).probes;
  const WeightKind kind = parse_kind("kind", x.kind);
  require(x.num_rows > 0 && x.num_inputs > 0 && x.num_inputs % kDepth == 0, "expected rows of inputs in groups of 64");
  require(x.terms == 1 || (x.terms == 2 && kind != WeightKind::kBf16), "terms must be 1 or 2, of bf16 1");
  const size_t bytes = panel_bytes(kind, x.num_inputs), num_panels = x.panels_bytes / bytes;
  require(num_panels > 0 && x.panels_bytes % bytes == 0, "expected panels of " + std::to_string(bytes) + " bytes");
  Arena panels(x.panels_bytes);
  std::memcpy(panels.data(), x.panels, x.panels_bytes);
  Carver counter(nullptr);
  carve_inputs(counter, x.num_rows, x.num_inputs, x.terms);
  const Arena workspace(counter.used());
  Carver carver(workspace.data());
  const Activations inputs = carve_inputs(carver, x.num_rows, x.num_inputs, x.terms);
  for (int row = 0; row < x.num_rows; row++)
    probes.quantize(kind, x.rows + static_cast<size_t>(row) * x.num_inputs, x.num_inputs, inputs, row);
  const Matrix matrix = {kind, static_cast<int32_t>(num_panels), x.num_inputs, bytes, panels.data()};
  const size_t num_outputs = num_panels * kPanel;
  std::vector<float> out(x.num_rows * num_outputs);
  probes.multiply({&matrix, &inputs, 0, x.num_rows, 0, matrix.num_panels, out.data(), num_outputs});
  return out;
}

double peak_operations(const std::string& kind, const std::string& isa, int num_threads) {
  const Probes& probes = *select_kernels(isa).probes;
  const WeightKind weight_kind = kind_of(kind);
  std::atomic<int64_t> operations{0};
  const double seconds = timed(checked(num_threads), [&](int, SpinBarrier&) {
    operations.fetch_add(probes.compute(weight_kind, kComputeRounds), std::memory_order_relaxed);
  });
  return static_cast<double>(operations.load()) / seconds;
}

double read_bandwidth(const Arena& memory, const std::string& isa, int num_threads) {
  const Probes& probes = *select_kernels(isa).probes;
  const size_t share = memory.size() / checked(num_threads);
  const double seconds = timed(num_threads, [&](int thread, SpinBarrier&) {
    probes.read(memory.data() + thread * share, share);
  });
  return static_cast<double>(memory.size()) / seconds;
}

namespace {

struct EmptyRun {
  const RunTrial& trial;
  Team& team;
  std::vector<std::atomic<int>> reached;  // barriers that each thread has reached
  std::atomic<int> num_early{0};

  void part(int thread) {
    for (int i = 1; i <= trial.num_barriers; i++) {
      if (trial.checks) reached[thread].store(i, std::memory_order_relaxed);
      team.barrier(thread);
      for (size_t other = 0; trial.checks && other < reached.size(); other++) num_early += reached[other] < i;
    }
  }
};

}  // namespace

double time_runs(const RunTrial& trial) {
  require(trial.num_runs > 0 && trial.num_barriers >= 0, "expected at least one run, and no negative number of barriers");
  Team team(checked(trial.num_threads), 0);
  EmptyRun run{trial, team, std::vector<std::atomic<int>>(trial.num_threads)};
  std::chrono::duration<double> total{0};
  for (int i = 0; i < trial.num_runs; i++) {
    std::this_thread::sleep_for(std::chrono::duration<double>(trial.pause_s));
    for (std::atomic<int>& barriers : run.reached) barriers = 0;
    const auto began = std::chrono::steady_clock::now();
    team.run([](void* context, int thread) { static_cast<EmptyRun*>(context)->part(thread); }, &run, false);
    total += std::chrono::steady_clock::now() - began;
  }
  if (run.num_early > 0) throw std::logic_error("a thread passed a barrier before others had reached it");
  return total.count() / trial.num_runs;
}

}  // namespace headrace
