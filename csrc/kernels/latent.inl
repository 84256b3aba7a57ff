// Latent attention: what no other attention has. Queries are multiplied by the keys' matrix of their head (absorbed), so
// that all heads attend to the latents of the cache, and the sums of latents by the values' matrix.
//
// The products of a head quantize its part of a row, so that a row's bits depend neither on other rows nor on the way in
// which a step is split.

// Quantizes `count` numbers as inputs of a matrix, and zeros for the rest of its last group.
INLINE void quantize_part(const Matrix& matrix, const float* x, int count, const Activations& inputs, int row) {
  const int whole = count / kDepth * kDepth;
  quantize_row(matrix.kind, x, whole, inputs, row);
  if (whole == count) return;
  alignas(64) float rest[kDepth] = {};
  __builtin_memcpy(rest, x + whole, static_cast<size_t>(count - whole) * sizeof(float));
  quantize_row(matrix.kind, rest, kDepth, inputs, row, whole);
}

// Rotates `d` numbers; `turns`: d/2 cosines and then d/2 sines.
INLINE void rotate_part(const float* x, const float* turns, int d, float* out) {
  const int half = d / 2;
  for (int i = 0; i < half; i++) {
    const float first = x[i], second = x[i + half];
    out[i] = first * turns[i] - second * turns[half + i];
    out[i + half] = second * turns[i] + first * turns[half + i];
  }
}

// Copies the first `width` outputs of the rows of a tile.
INLINE void copy_outputs(const float* tile, int rows, int width, float* out, size_t pitch) {
  const size_t bytes = static_cast<size_t>(width < kPanel ? width : kPanel) * sizeof(float);
  for (int r = 0; r < rows; r++) __builtin_memcpy(out + r * pitch, tile + r * kPanel, bytes);
}

INLINE Matrix matrix_of(const Matrix& stack, int index, int count) {
  const int32_t num_panels = stack.num_panels / count;
  return {stack.kind, num_panels, stack.k, stack.panel_bytes,
          stack.panels + static_cast<size_t>(index) * num_panels * stack.panel_bytes};
}

Activations StepRun::head_inputs(WeightKind kind, int count) const {
  return part_of(work.mla.inputs, kind, thread * work.mla.thread_rows, count);
}

const float* StepRun::head_query(const Layer& layer, Rows rows, int row, int head) const {
  const float* queries = layer.q_a_norm ? work.mla.queries + static_cast<size_t>(rows.scratch + row) * work.mla.query_pitch
                                        : qkv(rows.token + row);
  return queries + head * m.mla.query_dim();
}

// Norms the latents of rows, that of their queries in place, and writes the others to the cache with the rotated keys.
void StepRun::store_latents(int index, Rows rows) const {
  const Mla& mla = m.mla;
  const Layer& layer = m.layers[index];
  const int first = layer.heads.first_part(), d = layer.heads.shared_key();
  for (int token = rows.token; token < rows.token + rows.count; token++) {
    float* row = qkv(token);
    if (layer.q_a_norm) rms_norm(row, layer.q_a_norm, mla.query_rank, mla.query_rank, mla.eps, row);
    const float* latent = row + mla.query_outputs(layer.heads);
    const int sequence = work.row_sequence[token], position = work.row_position[token], slot = position % kBlockTokens;
    alignas(64) float key[kMaxHeadDim] = {};
    rms_norm(latent, layer.kv_a_norm, mla.rank, mla.rank, mla.eps, key);
    rotate_part(latent + mla.rank, layer.rope + static_cast<size_t>(position) * mla.rope_dim, mla.rope_dim, key + first);
    make_finite(key, d);
    const int32_t block = step.block_tables[static_cast<size_t>(sequence) * step.table_width + position / kBlockTokens];
    store_shared_key(kv.kind, kv.piece(index, block, 0), slot, layer.heads, key);
  }
}

void StepRun::quantize_query_latents(const Layer& layer, Rows rows) const {
  for (int i = 0; i < rows.count; i++) {
    quantize_part(layer.q_b, qkv(rows.token + i), m.mla.query_rank, work.inputs, rows.scratch + i);
  }
}

void StepRun::project_queries(const Layer& layer, Rows rows, Share panels) const {
  const size_t pitch = static_cast<size_t>(work.mla.query_pitch);
  float* queries = work.mla.queries + rows.scratch * pitch;
  gemm(layer.q_b, work.inputs, rows.scratch, rows.count, panels.begin, panels.end,
       [&](int row, int count, int column, const float* tile) {
         copy_outputs(tile, count, kPanel, queries + row * pitch + column, pitch);
       });
}

// Computes outputs of the queries of a head that meet latents: those of some panels of its matrix, and with the first one
// also the rotated numbers behind them.
void StepRun::absorb_keys(const Layer& layer, int head, Rows rows, Share panels, float* out, size_t pitch) const {
  const Mla& mla = m.mla;
  const Matrix matrix = matrix_of(layer.k_b, head, layer.heads.count);
  const Activations inputs = head_inputs(matrix.kind, rows.count);
  for (int i = 0; i < rows.count; i++) quantize_part(matrix, head_query(layer, rows, i, head), mla.key_dim, inputs, i);
  gemm(matrix, inputs, 0, rows.count, panels.begin, panels.end, [&](int row, int count, int column, const float* tile) {
    copy_outputs(tile, count, mla.rank - column, out + row * pitch + column, pitch);
  });
  for (int i = 0; panels.begin == 0 && i < rows.count; i++) {
    const float* turns = layer.rope + static_cast<size_t>(work.row_position[rows.token + i]) * mla.rope_dim;
    rotate_part(head_query(layer, rows, i, head) + mla.key_dim, turns, mla.rope_dim, out + i * pitch + mla.rank);
  }
}

// Computes some outputs of a head of the sums of latents.
void StepRun::expand_values(const Layer& layer, int head, Rows rows, Share panels, const float* sums, size_t pitch) const {
  const int size = m.mla.value_dim;
  const Matrix matrix = matrix_of(layer.v_b, head, layer.heads.count);
  const Activations inputs = head_inputs(matrix.kind, rows.count);
  for (int i = 0; i < rows.count; i++) quantize_part(matrix, sums + i * pitch, m.mla.rank, inputs, i);
  gemm(matrix, inputs, 0, rows.count, panels.begin, panels.end, [&](int row, int count, int column, const float* tile) {
    copy_outputs(tile, count, size - column, wide(rows.scratch + row) + head * size + column,
                 static_cast<size_t>(m.attention_padded));
  });
}

// Attends with the queries at `locate(token, head)`, which the sums of latents replace.
template <class Locate>
void StepRun::attend_latents(int index, LatentRows rows, const Context& following, const Locate& locate) const {
  const Heads& heads = m.layers[index].heads;
  const int start = step.query_starts[rows.sequence];
  const Context context = context_between(index, 0, start + rows.begin / rows.group, start + (rows.end - 1) / rows.group);
  AttentionTile tile;
  tile.softcap = m.attention_softcap * kLog2E;
  tile.has_slopes = m.distance_slopes != nullptr;
  for (int first = rows.begin; first < rows.end; first += kRowsAttention) {
    tile.num_rows = rows.end - first < kRowsAttention ? rows.end - first : kRowsAttention;
    for (int r = 0; r < tile.num_rows; r++) {
      const int token = start + (first + r) / rows.group, head = rows.first_head + (first + r) % rows.group;
      float scale = heads.scale, *query = locate(token, head);
      if (m.mla.growth > 0) {
        const int periods = work.row_position[token] / m.mla.growth_period;
        scale *= 1.0f + m.mla.growth * __builtin_log1pf(static_cast<float>(periods));
      }
      quantize_shared_query(tile, r, kv.kind, heads, query, scale);
      set_row(tile, r, index, token, head, query);
    }
    repeat_last_row(tile, heads.shared_key());
    attend<true>(kv.kind, tile, context, following, heads);
  }
}

// Calls `body(head, panels)` for this thread's share of the panels of a stack with a matrix for each head.
template <class Body>
void StepRun::share_heads(const Matrix& stack, int num_heads, const Body& body) const {
  const int each = stack.num_panels / num_heads;
  const Share mine = panels(stack);
  for (int panel = mine.begin; panel < mine.end;) {
    const int head = panel / each, next = (head + 1) * each, end = next < mine.end ? next : mine.end;
    body(head, Share{panel - head * each, end - head * each});
    panel = end;
  }
}

// Few rows: the threads share the panels of each matrix, and the pairs of a token and a head.
void StepRun::attend_latents_by_columns(int index, Rows every, Rows split) const {
  const Layer& layer = m.layers[index];
  const int num_heads = layer.heads.count, d = layer.heads.dim;
  const size_t pitch = static_cast<size_t>(num_heads) * d;
  const auto locate = [&](int token, int head) { return work.mla.absorbed + token * pitch + head * d; };
  store_latents(index, split);
  if (layer.q_a_norm) quantize_query_latents(layer, split);
  barrier_after(Phase::kKeys);
  if (layer.q_a_norm) {
    project_queries(layer, every, panels(layer.q_b));
    barrier_after(Phase::kQkv);
  }
  share_heads(layer.k_b, num_heads, [&](int head, Share own) { absorb_keys(layer, head, every, own, locate(0, head), pitch); });
  barrier_after(Phase::kQkv);
  visit_share(layer.heads, false, [&](HeadRows part) {
    attend_latents(index, {part.sequence, part.begin, part.end, 0, num_heads}, context_of(index, part), locate);
  });
  barrier_after(Phase::kAttention);
  share_heads(layer.v_b, num_heads, [&](int head, Share own) { expand_values(layer, head, every, own, locate(0, head), pitch); });
  barrier_before(layer.o, panels(layer.o).begin, Phase::kAttention);
  quantize_attention(layer, split);
  barrier_after(Phase::kQuantize);
}

// Many rows: a block of rows attends with one head after the other, so that its temporaries stay in the cache.
void StepRun::attend_latents_of(int index, Rows rows) const {
  const Layer& layer = m.layers[index];
  const size_t d = static_cast<size_t>(layer.heads.dim);
  float* absorbed = work.mla.absorbed + static_cast<size_t>(thread) * work.mla.thread_rows * d;
  const auto locate = [&](int token, int) { return absorbed + (token - rows.token) * d; };
  if (layer.q_a_norm) {
    quantize_query_latents(layer, rows);
    project_queries(layer, rows, all(layer.q_b));
  }
  watch.end(Phase::kQkv);
  for (int head = 0; head < layer.heads.count; head++) {
    absorb_keys(layer, head, rows, all(matrix_of(layer.k_b, head, layer.heads.count)), absorbed, d);
    for (int token = rows.token, end = rows.token + rows.count; token < end;) {
      const int s = work.row_sequence[token], start = step.query_starts[s];
      const int stop = step.query_starts[s + 1] < end ? step.query_starts[s + 1] : end;
      attend_latents(index, {s, token - start, stop - start, head, 1}, context_between(index, 0, token, stop - 1), locate);
      token = stop;
    }
    expand_values(layer, head, rows, all(matrix_of(layer.v_b, head, layer.heads.count)), absorbed, d);
  }
}
