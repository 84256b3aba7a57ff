// One step through its layers, run by every thread of the team concurrently.
//
// Few rows: every matrix is split by panels ("columns") and tiles of rows, with a barrier after each part. Many rows: a
// block of rows passes through a whole layer on one thread, and waits for other blocks only when it attends to their keys.
// The arithmetic for a row is the same in both.

// Calls `body(rows, units)` for this thread's share of the product of `rows` with the units of `unit_panels` panels of a
// matrix. Threads share the tiles of rows of all units, in this order, so that few panels keep many threads busy: each
// has some units with all rows, and a part of the rows of the units before and after them. One tile of rows is not split,
// because more threads would read the same weights.
template <class Body>
void StepRun::share_product(const Matrix& matrix, int unit_panels, Rows rows, const Body& body) const {
  const int limit = tile_rows(matrix.kind, work.inputs.terms), tiles = (rows.count + limit - 1) / limit;
  const Share mine = share_of(matrix.num_panels / unit_panels * tiles, thread, num_threads);
  const auto run = [&](Share of_tiles, Share units) {
    const int first = rows.count * of_tiles.begin / tiles, count = rows.count * of_tiles.end / tiles - first;
    if (count == 0 || units.begin == units.end) return;
    body(Rows{rows.token + first, count, rows.input + first, rows.scratch + first}, units);
  };
  const int first = mine.begin / tiles, first_tile = mine.begin % tiles, last = mine.end / tiles, last_tile = mine.end % tiles;
  if (first == last) return run({first_tile, last_tile}, {first, first + 1});
  if (first_tile > 0) run({first_tile, tiles}, {first, first + 1});
  run({0, tiles}, {first + (first_tile > 0), last});
  run({0, last_tile}, {last, last + 1});
}

// Few rows: this thread's share of o, down, or what takes their place.
void StepRun::project_columns(const Layer& layer, const Matrix& matrix, AdaptedMatrix adapted, const Activations& inputs,
                              const float* bias, Target target, Rows rows) const {
  share_product(matrix, 1, rows, [&](Rows part, Share panels) {
    project_residual(matrix, inputs, bias, target, part, panels, adapted_of(layer, adapted, part));
  });
}

// Few rows: every thread computes its share of each matrix of a layer, and of the attention.
void StepRun::run_columns() {
  const int count = step.num_tokens;
  // One or two rows: each thread quantizes redundantly, which is cheaper than a barrier.
  const bool alone = count <= kRedundantRows;
  const Share mine = share_of(count, thread, num_threads);
  const Rows every = {0, count, alone ? thread * kRedundantRows : 0, 0};
  const Rows split = {mine.begin, mine.end - mine.begin, mine.begin, mine.begin};
  const Rows normed = alone ? every : split;
  const auto norm = [&](const Norm& of, const Matrix& matrix) {
    norm_inputs(of, matrix.kind, normed);
    alone ? watch.end(Phase::kNorm) : barrier_after(Phase::kNorm);
  };
  const auto add_norm = [&](const Norm& of, float scale = 1.0f) {
    if (!of.weight) return;
    add_projected(of, split, scale);
    barrier_after(Phase::kNorm);
  };

  // Before a product that adapters change: their inner values, which all threads read.
  const auto shrink = [&](const Layer& layer, AdaptedMatrix matrix, const Matrix& base, const Activations& inputs,
                          int first_input, Phase phase) {
    const Adapted adapted = adapted_of(layer, matrix, every);
    if (!adapted.any) return;
    shrink_rows(adapted, base, inputs, first_input, count, true);
    barrier_after(phase);
  };

  if (first_layer == 0) {
    embed(mine);
    barrier_after(Phase::kEmbed);
    if (m.layer_input_size > 0) {
      norm({}, m.layer_proj);
      project_layer_inputs(every, panels(m.layer_proj));
      barrier_after(Phase::kEmbed);
      add_layer_projections(split);
    }
  }
  for (int index = first_layer; index < end_layer; index++) {
    const Layer& layer = m.layers[index];
    const Matrix& next = index + 1 < m.num_layers ? first_matrix(m.layers[index + 1]) : m.lm_head;
    const auto gate_up_first = [&] { return share_of(num_groups(layer), thread, num_threads).begin * group_panels(); };
    if (mixes(layer)) {
      keep_normed(layer, normed);
      norm(layer.attn_norm, layer.qkv);
      shrink(layer, kAdaptedQkv, layer.qkv, work.inputs, every.input, Phase::kQkv);
      const auto project_share = [&](const Matrix& matrix, int first_output) {
        share_product(matrix, 1, every, [&](Rows part, Share panels) { project_qkv(layer, matrix, first_output, part, panels); });
      };
      project_share(layer.qkv, 0);
      project_share(layer.v, layer.qkv.num_panels * kPanel);
      project_gates(layer, every, share_of(layer.state.num_gates, thread, num_threads));
      barrier_after(Phase::kQkv);
      if (!layer.attends) mix_columns(layer, split);
      else if (is_latent(layer)) attend_latents_by_columns(index, every, split);
      else attend_columns(index, split);
      shrink(layer, kAdaptedOutput, layer.o, work.inputs, every.scratch, Phase::kOutput);
      project_columns(layer, layer.o, kAdaptedOutput, work.inputs, layer.o_bias, target_of_o(layer), every);
      if (layer.attends && has_state(layer)) {  // side by side: both have read the same row of `qkv`
        watch.end(Phase::kOutput);
        mix_columns(layer, split);
        project_residual(layer.mix_out, work.inputs, nullptr, Target::kStream, every, panels(layer.mix_out), {});
      }
      if (has_mlp(layer)) barrier_before(layer.gate_up, gate_up_first(), Phase::kOutput);
      else barrier_before(next, panels(next).begin, Phase::kOutput);
      add_norm(layer.post_attn_norm);
    }
    if (!has_mlp(layer)) continue;
    if (layer.router) {
      norm_for_experts(layer, split);
      barrier_after(Phase::kNorm);
      score_experts(layer, every, share_of(m.experts.num_scores(), thread, num_threads));
      if (m.experts.has_latent) run_latent_columns(layer);
      if (m.experts.own_norms) run_beside_columns(layer, every, split);
      barrier_after(Phase::kRoute);
      choose_experts(index, mine);
      barrier_after(Phase::kRoute);
      run_experts(layer);
      m.experts.has_latent ? add_latent_columns(layer) : finish_experts(layer, split);
      barrier_before(next, panels(next).begin, Phase::kDown);
      continue;
    }
    norm(layer.mlp_norm, layer.gate_up);
    shrink(layer, kAdaptedGateUp, layer.gate_up, work.inputs, every.input, Phase::kGateUp);
    share_product(layer.gate_up, group_panels(), every,
                  [&](Rows part, Share groups) { project_gate_up(gate_up_of(layer, part), groups); });
    barrier_before(layer.down, panels(layer.down).begin, Phase::kGateUp);
    shrink(layer, kAdaptedDown, layer.down, work.gated_inputs, every.scratch, Phase::kDown);
    project_columns(layer, layer.down, kAdaptedDown, work.gated_inputs, layer.down_bias, target_of_down(layer), every);
    barrier_before(next, panels(next).begin, Phase::kDown);
    add_norm(layer.post_mlp_norm, scale_after_mlp(layer));
    if (layer.input_gate.num_panels == 0) continue;
    norm({}, layer.input_gate);
    project_input_gate(index, every, share_of(num_input_groups(layer), thread, num_threads));
    barrier_after(Phase::kGateUp);
    project_residual(layer.input_out, work.gated_inputs, nullptr, Target::kProjected, every, panels(layer.input_out), {});
    barrier_before(next, panels(next).begin, Phase::kDown);
    add_norm(layer.input_norm, layer.scale);
  }
}

void StepRun::attend_columns(int index, Rows split) {
  const Layer& layer = m.layers[index];
  if (finishes_qkv(layer)) {
    finish_qkv(layer, split);
    barrier_after(Phase::kNorm);
  }
  // Enough sequences of one row: a thread attends only to keys that it has written itself, without a barrier.
  const int count = step.num_tokens;
  const bool whole_heads = count == step.num_sequences && count * layer.heads.num_kv >= 4 * num_threads;
  if (layer.heads.owns_kv) {
    store_keys_share(index, whole_heads);
    whole_heads ? watch.end(Phase::kKeys) : barrier_after(Phase::kKeys);
  }
  attend_share(index, whole_heads);
  barrier_before(layer.o, panels(layer.o).begin, Phase::kAttention);
  if (quantizes_heads(layer)) return;
  quantize_attention(layer, split);
  barrier_after(Phase::kQuantize);
}

void StepRun::mix_columns(const Layer& layer, Rows split) {
  run_state_share(layer);
  if (layer.state.mixer == Mixer::kConv) return barrier_before(layer.o, panels(layer.o).begin, Phase::kAttention);
  barrier_after(Phase::kAttention);
  store_shared_inputs(layer);
  quantize_mixed(layer, split);
  const Matrix& output = state_output(layer);
  barrier_before(output, panels(output).begin, Phase::kQuantize);
}

// Stage i of a block of rows spans from the attention of layer i - 1 to the keys of layer i. Threads take blocks in
// order of stages and rows, so a block only waits for blocks that were taken before it (no deadlock).
void StepRun::run_row_blocks() {
  const int num_blocks = num_row_blocks(step.num_tokens, num_threads);
  for (int taken; (taken = team.take()) < num_blocks * (end_layer - first_layer + 1);) {
    const int stage = taken / num_blocks, block = taken % num_blocks;
    wait_for_keys(stage, block, num_blocks);
    run_stage(stage, share_of(step.num_tokens, block, num_blocks));
    team.finish_stage(block);
  }
  team.barrier(thread);
  watch.end(Phase::kWait);
}

// Waits for all blocks whose keys the rows of `block` may read: from the first row of the sequence of its first row to
// the last row in the KV block of its last row (whose key is read, but masked).
void StepRun::wait_for_keys(int stage, int block, int num_blocks) const {
  const Share tokens = share_of(step.num_tokens, block, num_blocks);
  const int last = tokens.end - 1, sequence = work.row_sequence[last];
  const int rest = kBlockTokens - 1 - work.row_position[last] % kBlockTokens, stop = step.query_starts[sequence + 1];
  const int first_row = step.query_starts[work.row_sequence[tokens.begin]];
  const int last_row = m.causal && last + rest < stop ? last + rest : stop - 1;
  for (int other = 0; other < num_blocks; other++) {
    const Share rows = share_of(step.num_tokens, other, num_blocks);
    if (rows.begin <= last_row && rows.end > first_row) team.wait_for_stages(other, stage);
  }
  watch.end(Phase::kWait);
}

void StepRun::run_stage(int stage, Share tokens) const {
  const int scratch = thread * kBlockRows;
  const Rows rows = {tokens.begin, tokens.end - tokens.begin, scratch, scratch};
  const int index = first_layer + stage;
  if (index == 0) begin_rows(rows);
  watch.end(Phase::kEmbed);
  if (index == end_layer) {
    finish_needed_rows(index - 1, rows, step.rows, step.num_rows);
    return finish_needed_rows(index - 1, rows, step.hidden_rows, step.num_hidden_rows);
  }
  if (stage > 0) finish_layer(index - 1, rows);
  begin_layer(index, rows);
}

// Finishes the last layer, only for those of the ascending rows `needed` that lie in `rows`.
void StepRun::finish_needed_rows(int index, Rows rows, const int32_t* needed, int num_needed) const {
  for (int i = 0; i < num_needed;) {
    const int first = needed[i] - rows.token;
    int count = 1;
    while (i + count < num_needed && needed[i + count] == needed[i] + count) count++;
    i += count;
    const int begin = first > 0 ? first : 0, end = first + count < rows.count ? first + count : rows.count;
    if (begin < end) finish_layer(index, {rows.token + begin, end - begin, rows.input + begin, rows.scratch + begin});
  }
}

void StepRun::begin_layer(int index, Rows rows) const {
  const Layer& layer = m.layers[index];
  if (!mixes(layer)) return;
  keep_normed(layer, rows);
  norm_inputs(layer.attn_norm, layer.qkv.kind, rows);
  watch.end(Phase::kNorm);
  shrink_block_rows(layer, kAdaptedQkv, layer.qkv, work.inputs, rows.input, rows);
  project_qkv(layer, layer.qkv, 0, rows, all(layer.qkv));
  project_qkv(layer, layer.v, layer.qkv.num_panels * kPanel, rows, all(layer.v));
  project_gates(layer, rows, {0, layer.state.num_gates});
  watch.end(Phase::kQkv);
  if (finishes_qkv(layer)) finish_qkv(layer, rows);
  if (is_latent(layer)) store_latents(index, rows);
  for (int i = 0; !is_latent(layer) && layer.heads.owns_kv && i < rows.count; i++) {
    for (int head = 0; head < layer.heads.num_kv; head++) store_keys(index, layer, rows.token + i, head);
  }
  watch.end(Phase::kKeys);
}

void StepRun::finish_layer(int index, Rows rows) const {
  finish_mixer(index, rows);
  finish_mlp(index, rows);
}

void StepRun::finish_mixer(int index, Rows rows) const {
  const Layer& layer = m.layers[index];
  if (!mixes(layer)) return;
  if (!layer.attends) {
    quantize_mixed(layer, rows);
  } else {
    is_latent(layer) ? attend_latents_of(index, rows) : attend_rows_of(index, rows);
    watch.end(Phase::kAttention);
    if (!quantizes_heads(layer)) quantize_attention(layer, rows);
  }
  watch.end(Phase::kQuantize);
  shrink_block_rows(layer, kAdaptedOutput, layer.o, work.inputs, rows.scratch, rows);
  project_residual(layer.o, work.inputs, layer.o_bias, target_of_o(layer), rows, all(layer.o),
                   adapted_of(layer, kAdaptedOutput, rows));
  if (layer.attends && has_state(layer)) {
    quantize_mixed(layer, rows);
    project_residual(layer.mix_out, work.inputs, nullptr, Target::kStream, rows, all(layer.mix_out), {});
  }
  watch.end(Phase::kOutput);
  if (layer.post_attn_norm.weight) add_projected(layer.post_attn_norm, rows);
}

void StepRun::finish_mlp(int index, Rows rows) const {
  const Layer& layer = m.layers[index];
  if (!has_mlp(layer)) return;
  norm_inputs(layer.mlp_norm, layer.gate_up.kind, rows);
  watch.end(Phase::kNorm);
  shrink_block_rows(layer, kAdaptedGateUp, layer.gate_up, work.inputs, rows.input, rows);
  project_gate_up(gate_up_of(layer, rows), {0, num_groups(layer)});
  watch.end(Phase::kGateUp);
  shrink_block_rows(layer, kAdaptedDown, layer.down, work.gated_inputs, rows.scratch, rows);
  project_residual(layer.down, work.gated_inputs, layer.down_bias, target_of_down(layer), rows, all(layer.down),
                   adapted_of(layer, kAdaptedDown, rows));
  if (layer.post_mlp_norm.weight) add_projected(layer.post_mlp_norm, rows, scale_after_mlp(layer));
  watch.end(Phase::kDown);
  add_layer_input(index, rows);
}
