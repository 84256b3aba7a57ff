// Single kernels, their timings, and peak rates of the machine: for tests and benchmarks, not for serving.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "memory.h"
#include "step.h"

namespace headrace {

class SpinBarrier;

// Times products with a matrix, split over threads as in a step. It cycles through enough copies of the matrix that the
// weights come from memory.
class ProductTimer {
 public:
  // Throws std::invalid_argument for an unknown kind or ISA, or for sizes that are not whole panels.
  ProductTimer(const std::string& kind, int32_t num_outputs, int32_t num_inputs, int num_copies,
               const std::string& isa, int num_threads);

  // Returns the seconds for `num_products` consecutive products of `num_rows` rows.
  double time(int num_rows, int num_products);
  size_t matrix_bytes() const { return copies_[0].panel_bytes * copies_[0].num_panels; }

 private:
  void fill(const std::string& kind);
  void run_thread(int thread, SpinBarrier& barrier);
  void multiply(const Matrix& matrix, int first_row, int num_rows, int panel_begin, int panel_end);

  const Probes& probes_;
  const int num_threads_;
  Arena weights_, workspace_;
  std::vector<Matrix> copies_;
  Activations inputs_{};
  float* out_ = nullptr;
  size_t out_pitch_ = 0;
  int num_rows_ = 0, num_products_ = 0, next_copy_ = 0;
};

// Rows to multiply with the panels of a matrix of `kind` (`parse_kind`).
struct ProductInputs {
  std::string kind;
  const uint8_t* panels;
  size_t panels_bytes;
  const float* rows;
  int32_t num_rows, num_inputs, terms;
};

// Returns the products, [num_rows][outputs]; throws std::invalid_argument if the sizes do not match.
std::vector<float> multiply(const ProductInputs& inputs, const std::string& isa);

// Operations per second (a multiplication and an addition are two) of the dot products of `kind` on registers.
double peak_operations(const std::string& kind, const std::string& isa, int num_threads);

// Bytes per second of reading all of `memory` once, each thread its own part.
double read_bandwidth(const Arena& memory, const std::string& isa, int num_threads);

// Runs without work of a team of threads, as a step starts and ends one.
struct RunTrial {
  int num_threads, num_runs, num_barriers;  // barriers in each run
  double pause_s;                           // before each run: threads that wait too long for the next one sleep
  bool checks;                              // that no thread passes a barrier before the others have reached it
};

// Returns the mean seconds of a run. Throws std::logic_error if a barrier let a thread pass too early.
double time_runs(const RunTrial& trial);

}  // namespace headrace
