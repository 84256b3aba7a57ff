// Layers with experts: the products of each expert with the rows that chose it.
//
// Rows are sorted by expert, so that a weight is read once for all rows of a step. Each output of an expert goes to a
// place of its own, and a row sums its experts in the order in which it chose them: its bits depend neither on the
// other rows nor on the threads.

constexpr size_t kTaskBytes = size_t{512} << 10;  // weights of a task, long enough for prefetching to pay
constexpr int kTasksPerThread = 4;                // at least, where the experts are small: no thread waits for long

// Views `count` rows from `first` on as activations of their own, with `count` rows a slab.
INLINE Activations part_of(const Activations& all, WeightKind kind, int first, int count) {
  const size_t value_bytes = kind == WeightKind::kBf16 ? kBf16Bytes : all.terms;
  const size_t row_bytes = static_cast<size_t>(all.groups_pitch) * kW4Group * value_bytes;
  const size_t groups = static_cast<size_t>(first) * all.groups_pitch;
  return {all.values + first * row_bytes, all.scales + groups, all.biases + groups * all.terms, all.sums + groups,
          static_cast<size_t>(count), all.groups_pitch, all.terms};
}

INLINE void copy_row(WeightKind kind, int num_inputs, const Activations& from, int from_row, const Activations& to,
                     int to_row) {
  const int num_slabs = num_inputs / (kind == WeightKind::kBf16 ? kSlab : kDepth);
  for (int i = 0; i < num_slabs; i++) {
    __builtin_memcpy(row_values(to, i * to.num_rows + to_row), row_values(from, i * from.num_rows + from_row),
                     static_cast<size_t>(from.terms) * 64);
  }
  if (kind == WeightKind::kBf16) return;
  const size_t bytes = static_cast<size_t>(num_inputs / group_of(kind)) * 4;
  const size_t from_groups = static_cast<size_t>(from_row) * from.groups_pitch;
  const size_t to_groups = static_cast<size_t>(to_row) * to.groups_pitch;
  __builtin_memcpy(to.scales + to_groups, from.scales + from_groups, bytes);
  if (kind != WeightKind::kW8) __builtin_memcpy(to.sums + to_groups, from.sums + from_groups, bytes);
  if (has_nibbles(kind)) return;
  for (int term = 0; term < from.terms; term++) {
    __builtin_memcpy(to.biases + to_groups * to.terms + static_cast<size_t>(term) * to.groups_pitch,
                     from.biases + from_groups * from.terms + static_cast<size_t>(term) * from.groups_pitch, bytes);
  }
}

// Runs `body` for every i < count on the threads of the step, in this order, and waits for all of them. Nothing else may
// call `team.take` in such a step: every thread knows the number of the first task because each takes one too many.
template <class Body>
void StepRun::share_tasks(int count, const Body& body) {
  for (int task; (task = team.take() - tasks_begin) < count;) body(task);
  tasks_begin += count + num_threads;
  team.barrier(thread);
  watch.end(Phase::kWait);
}

// Quantizes the input of a row's experts, once for all of them.
void StepRun::quantize_for_experts(const Layer& layer, const float* row, int token) const {
  const WeightKind kind = layer.gate_up.kind;
  quantize_row(kind, row, m.experts.io_padded, part_of(work.experts.rows, kind, token, 1), 0);
}

// Norms rows and quantizes them for the experts, or for the matrix before these; the router reads them unquantized.
void StepRun::norm_for_experts(const Layer& layer, Rows rows) const {
  if (m.experts.own_norms) return norm_beside(layer, rows);
  for (int i = 0; i < rows.count; i++) {
    float* row = normed(rows.scratch + i);
    norm_row(m, x(rows.token + i), layer.mlp_norm, m.hidden_padded, row);
    if (m.experts.has_latent) quantize_row(layer.latent_down.kind, row, m.hidden_padded, work.inputs, rows.scratch + i);
    else quantize_for_experts(layer, row, rows.token + i);
  }
}

// Sorts the places of all rows by expert, and the experts that have rows by the number of these.
void StepRun::sort_places() const {
  const int num_experts = m.experts.total(), num_places = step.num_tokens * m.experts.slots();
  int32_t *starts = work.experts.starts, *active = work.experts.active;
  const int32_t* chosen = work.experts.chosen;
  for (int i = 0; i <= num_experts; i++) starts[i] = 0;
  for (int i = 0; i < num_places; i++) starts[chosen[i] + 1]++;
  for (int i = 0; i < num_experts; i++) starts[i + 1] += starts[i];
  for (int i = 0; i < num_experts; i++) active[i] = starts[i];  // the next free place, for now
  for (int i = 0; i < num_places; i++) work.experts.places[active[chosen[i]]++] = i;
  int num_active = 0;
  const auto rows_of = [&](int expert) { return starts[expert + 1] - starts[expert]; };
  for (int expert = 0; expert < num_experts; expert++) {
    if (rows_of(expert) == 0) continue;
    int at = num_active++;
    for (; at > 0 && rows_of(active[at - 1]) < rows_of(expert); at--) active[at] = active[at - 1];
    active[at] = expert;
  }
  *work.experts.num_active = num_active;
}

// Copies the inputs of each expert together, so that its products are those of any matrix (about 2 % of their time).
void StepRun::gather_inputs(const Layer& layer, Share places) const {
  const WeightKind kind = layer.gate_up.kind;
  const int32_t* starts = work.experts.starts;
  for (int expert = 0; expert < m.experts.total(); expert++) {
    const int first = starts[expert], stop = starts[expert + 1];
    const Activations inputs = part_of(work.experts.inputs, kind, first, stop - first);
    for (int i = first > places.begin ? first : places.begin; i < stop && i < places.end; i++) {
      const int token = work.experts.places[i] / m.experts.slots();
      copy_row(kind, m.experts.io_padded, part_of(work.experts.rows, kind, token, 1), 0, inputs, i - first);
    }
  }
}

Matrix StepRun::expert_of(const Matrix& stack, int expert) const {
  const int32_t num_panels = stack.num_panels / m.experts.total();
  return {stack.kind, num_panels, stack.k, stack.panel_bytes,
          stack.panels + static_cast<size_t>(expert) * num_panels * stack.panel_bytes};
}

// Returns how many of the `num_units` units of an expert's matrix a task computes.
int StepRun::units_per_task(int num_units, size_t unit_bytes) const {
  const int by_size = static_cast<int>(kTaskBytes / unit_bytes);
  const int by_threads = *work.experts.num_active * num_units / (kTasksPerThread * num_threads);
  const int units = by_size < by_threads ? by_size : by_threads;
  return units > 1 ? units : 1;
}

void StepRun::run_gate_up_task(const Layer& layer, int expert, Share groups) const {
  const int first = work.experts.starts[expert], count = work.experts.starts[expert + 1] - first;
  const Matrix matrix = expert_of(layer.gate_up, expert);
  const Activations inputs = part_of(work.experts.inputs, matrix.kind, first, count);
  const Activations outputs = part_of(work.experts.gated_inputs, layer.down.kind, first, count);
  const size_t num_outputs = static_cast<size_t>(matrix.num_panels) * kPanel;
  const float* bias = layer.gate_up_bias ? layer.gate_up_bias + expert * num_outputs : nullptr;
  for (int group = groups.begin; group < groups.end; group++) {
    for (int row = 0; row < count; row += work.gated_rows) {
      const int rows = count - row < work.gated_rows ? count - row : work.gated_rows;
      project_gate_up({&matrix, layer.down.kind, bias, &inputs, &outputs, row, row, rows, {}}, {group, group + 1});
    }
  }
}

void StepRun::run_down_task(const Layer& layer, int expert, Share panels) const {
  const int first = work.experts.starts[expert], count = work.experts.starts[expert + 1] - first;
  const Matrix matrix = expert_of(layer.down, expert);
  const Activations inputs = part_of(work.experts.gated_inputs, matrix.kind, first, count);
  const int pitch = m.experts.io_padded;
  const float* bias = layer.down_bias ? layer.down_bias + static_cast<size_t>(expert) * pitch : nullptr;
  gemm(matrix, inputs, 0, count, panels.begin, panels.end, [&](int row, int rows, int column, const float* tile) {
    for (int r = 0; r < rows; r++) {
      const size_t place = static_cast<size_t>(work.experts.places[first + row + r]);
      float* out = work.experts.outputs + place * pitch + column;
      for (int i = 0; i < kPanel; i += W) {
        const vf value = load_f(tile + r * kPanel + i);
        store_f(out + i, bias ? add(value, load_f(bias + column + i)) : value);
      }
    }
  });
}

// Computes the outputs of all experts, once every row has chosen its own.
void StepRun::run_experts(const Layer& layer) {
  if (thread == 0) sort_places();
  team.barrier(thread);
  watch.end(Phase::kRoute);
  gather_inputs(layer, share_of(step.num_tokens * m.experts.slots(), thread, num_threads));
  team.barrier(thread);
  watch.end(Phase::kRoute);
  const auto run_tasks = [&](const Matrix& stack, int unit_panels, Phase phase, const auto& run_task) {
    const int num_units = stack.num_panels / m.experts.total() / unit_panels;
    const int units = units_per_task(num_units, unit_panels * stack.panel_bytes);
    const int tasks_per_expert = (num_units + units - 1) / units;
    share_tasks(*work.experts.num_active * tasks_per_expert, [&](int task) {
      const int begin = task % tasks_per_expert * units, end = begin + units < num_units ? begin + units : num_units;
      run_task(layer, work.experts.active[task / tasks_per_expert], Share{begin, end});
      watch.end(phase);
    });
  };
  run_tasks(layer.gate_up, group_panels(), Phase::kGateUp,
            [&](const Layer& of, int expert, Share groups) { run_gate_up_task(of, expert, groups); });
  run_tasks(layer.down, 1, Phase::kDown,
            [&](const Layer& of, int expert, Share panels) { run_down_task(of, expert, panels); });
}

// Sums `count` numbers of the outputs of a row's experts in the order of its choice; `store` takes the sums.
template <class Store>
INLINE void sum_experts(const Experts& experts, const ExpertWorkspace& work, int token, int count, const Store& store) {
  const int slots = experts.slots();
  const float* shares = work.shares + static_cast<size_t>(token) * slots;
  const float* outputs = work.outputs + static_cast<size_t>(token) * slots * experts.io_padded;
  for (int i = 0; i < count; i += W) {
    vf total = zero_f();
    for (int slot = 0; slot < slots; slot++) {
      total = fma(set_f(shares[slot]), load_f(outputs + static_cast<size_t>(slot) * experts.io_padded + i), total);
    }
    store(i, total);
  }
}

// Adds the outputs of the experts of each row to the residual stream, or the norm of their sum if the layer has one.
void StepRun::add_experts(const Layer& layer, Rows rows) const {
  const int padded = static_cast<int>(round_up(m.hidden, kPanel));
  for (int token = rows.token; token < rows.token + rows.count; token++) {
    float* stream = x(token);
    if (layer.post_mlp_norm.weight) {
      float* total = row_buffer();
      sum_experts(m.experts, work.experts, token, padded, [&](int i, vf sum) { store_f(total + i, sum); });
      norm_row(m, total, layer.post_mlp_norm, padded, total);
      for (int i = 0; i < padded; i += W) store_f(stream + i, add(load_f(stream + i), load_f(total + i)));
      continue;
    }
    sum_experts(m.experts, work.experts, token, padded,
                [&](int i, vf total) { store_f(stream + i, add(load_f(stream + i), total)); });
  }
}

// Many rows: as `run_row_blocks`, but all rows of the step pass through the experts, or a state layer, together, between
// barriers.
void StepRun::run_joint_blocks() {
  const int num_blocks = num_row_blocks(step.num_tokens, num_threads), scratch = thread * kBlockRows;
  const auto rows_of = [&](int block) {
    const Share tokens = share_of(step.num_tokens, block, num_blocks);
    return Rows{tokens.begin, tokens.end - tokens.begin, scratch, scratch};
  };
  for (int index = first_layer; index <= end_layer; index++) {
    share_tasks(num_blocks, [&](int block) {
      const Rows rows = rows_of(block);
      if (index == 0) begin_rows(rows);
      else if (index > first_layer && m.layers[index - 1].router) finish_experts(m.layers[index - 1], rows);
      watch.end(index == 0 ? Phase::kEmbed : Phase::kDown);
      if (index < end_layer) begin_layer(index, rows);
    });
    if (index == end_layer) return;
    const Layer& layer = m.layers[index];
    if (has_state(layer)) {
      run_state_share(layer);
      barrier_after(Phase::kAttention);
      store_shared_inputs(layer);
    }
    share_tasks(num_blocks, [&](int block) {
      const Rows rows = rows_of(block);
      finish_mixer(index, rows);
      if (!layer.router) return finish_mlp(index, rows);
      begin_experts(index, rows);
    });
    if (layer.router) run_experts(layer);
  }
}
