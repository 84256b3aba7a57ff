// The second part of a step that ends in layers which store nothing: only for the rows whose outputs it returns.
#pragma once

#include <vector>

#include "step.h"

namespace headrace {

// The rows of a step whose logits or hidden states it returns, as a step of their own with the same outputs. Rows of a
// sequence that follow each other are one of its sequences, and the rows before them its context.
class NeededRows {
 public:
  // `work` has the sequences and positions of the rows of `step`.
  NeededRows(const Step& step, const Workspace& work);
  NeededRows(const NeededRows&) = delete;
  NeededRows& operator=(const NeededRows&) = delete;

  const Step& step() const { return step_; }

  // Moves what earlier layers computed for these rows to where `step` reads it.
  void gather(const Model& model, const Workspace& work) const;

 private:
  void add(const Step& step, const Workspace& work, int32_t row);

  Step step_;
  std::vector<int32_t> needed_;  // rows of the whole step, ascending
  std::vector<int32_t> rows_, hidden_rows_, query_starts_, context_lens_, block_tables_, adapters_;
};

}  // namespace headrace
