#include "needed_rows.h"

#include <cstring>

namespace headrace {

NeededRows::NeededRows(const Step& step, const Workspace& work) : step_(step) {
  for (int i = 0, j = 0; i < step.num_rows || j < step.num_hidden_rows;) {
    const bool has_logits = j == step.num_hidden_rows || (i < step.num_rows && step.rows[i] < step.hidden_rows[j]);
    (has_logits ? rows_ : hidden_rows_).push_back(static_cast<int32_t>(needed_.size()));
    add(step, work, has_logits ? step.rows[i++] : step.hidden_rows[j++]);
  }
  step_.num_tokens = static_cast<int32_t>(needed_.size());
  step_.num_sequences = static_cast<int32_t>(context_lens_.size());
  query_starts_.push_back(step_.num_tokens);
  step_.token_ids = step_.token_types = nullptr;  // only the first layer reads them
  step_.states = {};
  step_.query_starts = query_starts_.data();
  step_.context_lens = context_lens_.data();
  step_.block_tables = block_tables_.data();
  step_.adapters = step.adapters ? adapters_.data() : nullptr;
  step_.rows = rows_.data();
  step_.hidden_rows = hidden_rows_.data();
}

void NeededRows::add(const Step& step, const Workspace& work, int32_t row) {
  const int32_t sequence = work.row_sequence[row];
  if (needed_.empty() || needed_.back() + 1 < row || work.row_sequence[needed_.back()] != sequence) {
    const int32_t* table = step.block_tables + static_cast<size_t>(sequence) * step.table_width;
    query_starts_.push_back(static_cast<int32_t>(needed_.size()));
    context_lens_.push_back(work.row_position[row]);
    block_tables_.insert(block_tables_.end(), table, table + step.table_width);
    if (step.adapters) adapters_.push_back(step.adapters[sequence]);
  }
  needed_.push_back(row);
}

void NeededRows::gather(const Model& model, const Workspace& work) const {
  const auto move = [&](float* values, size_t row_size) {
    for (size_t i = 0; i < needed_.size(); i++) {  // a row moves towards the first, past rows that have moved
      const auto row = static_cast<size_t>(needed_[i]);
      if (row > i) std::memcpy(values + i * row_size, values + row * row_size, row_size * sizeof(float));
    }
  };
  move(work.x, static_cast<size_t>(model.hidden_padded));
  if (step_.layer_inputs) move(step_.layer_inputs, static_cast<size_t>(model.num_layers) * model.layer_input_size);
}

}  // namespace headrace
