// Experts with a latent input: one matrix before all routed experts, one after their sum. The shared MLP beside them
// reads the hidden state as the router does, so it is no expert of their stack but a dense MLP.
//
// A row adds the shared MLP to the residual stream first, then the sum of its experts, however a step is split.

// Computes the inputs of the routed experts, unquantized.
void StepRun::project_latent(const Layer& layer, Rows rows, Share panels) const {
  gemm(layer.latent_down, work.inputs, rows.scratch, rows.count, panels.begin, panels.end,
       [&](int row, int count, int column, const float* tile) {
         for (int r = 0; r < count; r++) {
           float* out = latent(rows.token + row + r) + column;
           for (int i = 0; i < kPanel; i += W) store_f(out + i, load_f(tile + r * kPanel + i));
         }
       });
}

void StepRun::quantize_shared_inputs(const Layer& layer, Rows rows) const {
  for (int i = 0; i < rows.count; i++) {
    quantize_row(layer.shared_gate_up.kind, normed(rows.scratch + i), m.hidden_padded, work.inputs, rows.scratch + i);
  }
}

// Sums the outputs of the routed experts of each row, and quantizes the sums as the inputs of the matrix after them.
void StepRun::sum_latent(const Layer& layer, Rows rows) const {
  for (int i = 0; i < rows.count; i++) {
    float* row = latent(rows.token + i);
    sum_experts(m.experts, work.experts, rows.token + i, m.experts.io_padded,
                [&](int at, vf total) { store_f(row + at, total); });
    quantize_row(layer.latent_up.kind, row, m.experts.io_padded, work.inputs, rows.scratch + i);
  }
}

// Many rows: one thread takes a block of rows up to the choice of their experts.
void StepRun::begin_experts(int index, Rows rows) const {
  const Layer& layer = m.layers[index];
  norm_for_experts(layer, rows);
  watch.end(Phase::kNorm);
  score_experts(layer, rows, {0, m.experts.num_scores()});
  choose_experts(index, {rows.token, rows.token + rows.count});
  watch.end(Phase::kRoute);
  if (m.experts.own_norms) {
    project_gate_up(shared_gate_up_of(layer, rows), {0, layer.shared_gate_up.num_panels / group_panels()});
    project_residual(layer.shared_down, work.gated_inputs, nullptr, Target::kProjected, rows, all(layer.shared_down), {});
    keep_beside(layer, rows);
    return watch.end(Phase::kGateUp);
  }
  if (!m.experts.has_latent) return;
  project_latent(layer, rows, all(layer.latent_down));
  for (int i = 0; i < rows.count; i++) quantize_for_experts(layer, latent(rows.token + i), rows.token + i);
  if (layer.shared_down.num_panels == 0) return;
  quantize_shared_inputs(layer, rows);
  project_gate_up(shared_gate_up_of(layer, rows), {0, layer.shared_gate_up.num_panels / group_panels()});
  project_residual(layer.shared_down, work.gated_inputs, nullptr, Target::kStream, rows, all(layer.shared_down), {});
  watch.end(Phase::kGateUp);
}

// Adds the outputs of the experts of a block of rows to the residual stream.
void StepRun::finish_experts(const Layer& layer, Rows rows) const {
  if (m.experts.own_norms) return add_beside(layer, rows);
  if (!m.experts.has_latent) return add_experts(layer, rows);
  sum_latent(layer, rows);
  project_residual(layer.latent_up, work.inputs, nullptr, Target::kStream, rows, all(layer.latent_up), {});
}

// Few rows: all threads compute the inputs of the routed experts and the shared MLP.
void StepRun::run_latent_columns(const Layer& layer) {
  const int count = step.num_tokens;
  const Share mine = share_of(count, thread, num_threads);
  const Rows every = {0, count, 0, 0}, split = {mine.begin, mine.end - mine.begin, mine.begin, mine.begin};
  const auto barrier_after = [&](Phase phase) {
    watch.end(phase);
    team.barrier(thread);
    watch.end(Phase::kWait);
  };
  project_latent(layer, every, panels(layer.latent_down));
  barrier_after(Phase::kRoute);
  for (int token = mine.begin; token < mine.end; token++) quantize_for_experts(layer, latent(token), token);
  if (layer.shared_down.num_panels == 0) return;
  quantize_shared_inputs(layer, split);
  barrier_after(Phase::kQuantize);
  const int num_groups = layer.shared_gate_up.num_panels / group_panels();
  project_gate_up(shared_gate_up_of(layer, every), share_of(num_groups, thread, num_threads));
  barrier_after(Phase::kGateUp);
  project_residual(layer.shared_down, work.gated_inputs, nullptr, Target::kStream, every, panels(layer.shared_down), {});
  watch.end(Phase::kDown);
}

// Few rows: all threads add the outputs of the experts to the residual stream.
void StepRun::add_latent_columns(const Layer& layer) {
  const int count = step.num_tokens;
  const Share mine = share_of(count, thread, num_threads);
  sum_latent(layer, {mine.begin, mine.end - mine.begin, mine.begin, mine.begin});
  watch.end(Phase::kQuantize);
  team.barrier(thread);
  watch.end(Phase::kWait);
  project_residual(layer.latent_up, work.inputs, nullptr, Target::kStream, {0, count, 0, 0}, panels(layer.latent_up), {});
}
