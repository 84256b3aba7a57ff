// One step of all layers, run by every thread of the team side by side.
//
// Few rows: every matrix is split by panels ("columns"), with a barrier after each part. Many rows: blocks of rows go
// through a whole layer on one thread, with one barrier a layer. Both do the same arithmetic for a row.

// Rows that one thread works on: `count` tokens from `token` on; their inputs of matrices begin at row `input` and
// their wide and projected rows at row `scratch` of the workspace.
struct Rows {
  int token, count, input, scratch;
};

struct Share {
  int begin, end;
};

INLINE Share share_of(int count, int thread, int num_threads) {
  return {static_cast<int>(static_cast<int64_t>(count) * thread / num_threads),
          static_cast<int>(static_cast<int64_t>(count) * (thread + 1) / num_threads)};
}

class StepRun {
 public:
  StepRun(const StepContext& context, int thread)
      : m(*context.model), kv(*context.kv), work(*context.work), step(*context.step), team(*context.team),
        thread(thread), num_threads(context.team->num_active()), d(m.head_dim),
        watch(context.profile ? context.profile + thread : nullptr) {}

  void run_layers() {
    watch.start();
    if (step.num_tokens <= kColumnRows) run_columns();
    else run_row_blocks();
  }

  void embed(Share tokens) const {
    for (int row = tokens.begin; row < tokens.end; row++) {
      embed_row(m.embed, step.token_ids[row], m.embedding_scale, x(row));
    }
  }

  // Norm of the residual stream, quantised as input of a matrix of `kind`.
  void norm_input(const float* weight, WeightKind kind, int token, int input) const {
    rms_norm(x(token), weight, m.hidden_padded, m.hidden, m.norm_eps, row_buffer());
    quantise_row(kind, row_buffer(), m.hidden_padded, work.inputs, input);
  }

 private:
  float* x(int token) const { return work.x + static_cast<size_t>(token) * m.hidden_padded; }
  float* qkv(int token) const { return work.qkv + static_cast<size_t>(token) * m.qkv_padded; }
  float* wide(int row) const { return work.wide + static_cast<size_t>(row) * work.wide_pitch; }
  float* projected(int row) const { return work.projected + static_cast<size_t>(row) * m.hidden_padded; }
  float* row_buffer() const { return work.row_buffers + static_cast<size_t>(thread) * m.hidden_padded; }
  Share panels(const Matrix& matrix) const { return share_of(matrix.num_panels, thread, num_threads); }
  static Share all(const Matrix& matrix) { return {0, matrix.num_panels}; }

  int tokens_of(int sequence) const { return step.query_starts[sequence + 1] - step.query_starts[sequence]; }

  void run_columns();
  void run_row_blocks();
  void begin_layer(int index, Rows rows) const;
  void finish_layer(int index, Rows rows) const;

  void norm_inputs(const float* weight, WeightKind kind, Rows rows) const {
    for (int i = 0; i < rows.count; i++) norm_input(weight, kind, rows.token + i, rows.input + i);
  }
  void quantise_wide(WeightKind kind, int used, int padded, Rows rows) const {
    for (int i = 0; i < rows.count; i++) {
      float* row = wide(rows.scratch + i);
      for (int j = used; j < padded; j++) row[j] = 0.0f;
      quantise_row(kind, row, padded, work.inputs, rows.input + i);
    }
  }
  void quantise_attention(const Layer& layer, Rows rows) const {
    quantise_wide(layer.o.kind, m.num_heads * d, m.attention_padded, rows);
  }
  void quantise_activation(const Layer& layer, Rows rows) const {
    quantise_wide(layer.down.kind, m.intermediate_padded, m.intermediate_padded, rows);
  }

  void project_qkv(const Layer& layer, Rows rows, Share panels) const;
  void project_gate_up(const Layer& layer, Rows rows, Share panels) const;
  void project_residual(const Matrix& matrix, const float* bias, bool direct, Rows rows, Share panels) const;
  void add_projected(const float* weight, Rows rows) const;

  void store_keys(int index, const Layer& layer, int token, int kv_head) const;
  void attend_range(int index, int sequence, int kv_head, Share rows, int scratch_offset) const;
  void attend_share(int index) const;
  void attend_rows_of(int index, Rows rows) const;

  const Model& m;
  const KvCache& kv;
  const Workspace& work;
  const Step& step;
  Team& team;
  const int thread, num_threads, d;

 public:
  const Stopwatch watch;
};

void StepRun::project_qkv(const Layer& layer, Rows rows, Share panels) const {
  gemm(layer.qkv, work.inputs, rows.input, rows.count, panels.begin, panels.end,
       [&](int row, int count, int column, const float* tile) {
         for (int r = 0; r < count; r++) {
           float* out = qkv(rows.token + row + r) + column;
           for (int i = 0; i < kPanel; i += W) {
             const vf value = load_f(tile + r * kPanel + i);
             store_f(out + i, layer.qkv_bias ? add(value, load_f(layer.qkv_bias + column + i)) : value);
           }
         }
       });
}

void StepRun::project_gate_up(const Layer& layer, Rows rows, Share panels) const {
  const bool is_silu = m.activation == Activation::kSilu;
  gemm(layer.gate_up, work.inputs, rows.input, rows.count, panels.begin, panels.end,
       [&](int row, int count, int column, const float* tile) {
         for (int r = 0; r < count; r++) {
           float* out = wide(rows.scratch + row + r) + column / 2;
           for (int i = 0; i < kPanel / 2; i += W) {
             const vf gate = load_f(tile + r * kPanel + i), up = load_f(tile + r * kPanel + kPanel / 2 + i);
             store_f(out + i, mul(is_silu ? silu(gate) : gelu_tanh(gate), up));
           }
         }
       });
}

// Adds the product to the residual stream, or puts it into `projected` when a norm comes first.
void StepRun::project_residual(const Matrix& matrix, const float* bias, bool direct, Rows rows, Share panels) const {
  gemm(matrix, work.inputs, rows.input, rows.count, panels.begin, panels.end,
       [&](int row, int count, int column, const float* tile) {
         for (int r = 0; r < count; r++) {
           float* out = (direct ? x(rows.token + row + r) : projected(rows.scratch + row + r)) + column;
           for (int i = 0; i < kPanel; i += W) {
             vf value = load_f(tile + r * kPanel + i);
             if (bias) value = add(value, load_f(bias + column + i));
             store_f(out + i, direct ? add(load_f(out + i), value) : value);
           }
         }
       });
}

void StepRun::add_projected(const float* weight, Rows rows) const {
  const int padded = static_cast<int>(round_up(m.hidden, kPanel));
  for (int i = 0; i < rows.count; i++) {
    float* residual = x(rows.token + i);
    rms_norm(projected(rows.scratch + i), weight, padded, m.hidden, m.norm_eps, row_buffer());
    for (int j = 0; j < padded; j += W) store_f(residual + j, add(load_f(residual + j), load_f(row_buffer() + j)));
  }
}

void StepRun::store_keys(int index, const Layer& layer, int token, int kv_head) const {
  const int sequence = work.row_sequence[token], position = work.row_position[token];
  const int32_t* table = step.block_tables + static_cast<size_t>(sequence) * step.table_width;
  const float* key = qkv(token) + (m.num_heads + kv_head) * d;
  store_kv({&layer, d, m.norm_eps}, kv.kind, kv.piece(index, table[position / kBlockTokens], kv_head), position, key,
           key + m.num_kv_heads * d);
}

// Attention of rows [rows.begin, rows.end) of a sequence and KV head, where row = token of the chunk * group + head of
// the group. The output of token t goes to wide row t + scratch_offset (t counted from the first token of the step).
void StepRun::attend_range(int index, int sequence, int kv_head, Share rows, int scratch_offset) const {
  const Layer& layer = m.layers[index];
  const HeadShape shape = {&layer, d, m.norm_eps};
  const Context context = {&kv, step.block_tables + static_cast<size_t>(sequence) * step.table_width, index, kv_head};
  AttentionTile tile;
  for (int first = rows.begin; first < rows.end; first += kRowsAttention) {
    tile.num_rows = rows.end - first < kRowsAttention ? rows.end - first : kRowsAttention;
    for (int r = 0; r < tile.num_rows; r++) {
      const int token = step.query_starts[sequence] + (first + r) / m.group;
      const int head = kv_head * m.group + (first + r) % m.group, position = work.row_position[token];
      load_query(tile, r, kv.kind, shape, qkv(token) + head * d, position, m.attention_scale);
      tile.end[r] = position + 1;
      tile.begin[r] = layer.window && position + 1 > layer.window ? position + 1 - layer.window : 0;
      tile.out[r] = wide(token + scratch_offset) + head * d;
    }
    for (int r = tile.num_rows; r < kRowsAttention; r++) {  // kernels take some row counts only: repeat the last row
      const int last = tile.num_rows - 1;
      __builtin_memcpy(tile.queries[r], tile.queries[last], sizeof tile.queries[r]);
      tile.scales[r] = tile.scales[last], tile.biases[r] = tile.biases[last];
      tile.begin[r] = tile.begin[last], tile.end[r] = tile.end[last], tile.out[r] = tile.out[last];
    }
    if (kv.kind == KvKind::kInt8) attend<KvKind::kInt8>(tile, context, d);
    else attend<KvKind::kBf16>(tile, context, d);
  }
}

// The part of all attention of the step that is this thread's, by context length.
void StepRun::attend_share(int index) const {
  constexpr int64_t kFixedCost = 64;  // of a row, in tokens of context
  int64_t total = 0;
  const auto cost_of = [&](int s) { return step.context_lens[s] + tokens_of(s) + kFixedCost; };
  for (int s = 0; s < step.num_sequences; s++) total += cost_of(s) * tokens_of(s) * m.num_heads;
  const int64_t begin = total * thread / num_threads, end = total * (thread + 1) / num_threads;
  int64_t before = 0;
  for (int s = 0; s < step.num_sequences; s++) {
    const int64_t cost = cost_of(s), per_head = int64_t{tokens_of(s)} * m.group, units = per_head * m.num_kv_heads;
    const auto unit_at = [&](int64_t bound) {
      const int64_t unit = bound <= before ? 0 : (bound - before + cost - 1) / cost;
      return unit < units ? unit : units;
    };
    for (int64_t unit = unit_at(begin), stop = unit_at(end); unit < stop;) {
      const int64_t head = unit / per_head, head_stop = (head + 1) * per_head < stop ? (head + 1) * per_head : stop;
      attend_range(index, s, static_cast<int>(head),
                   {static_cast<int>(unit - head * per_head), static_cast<int>(head_stop - head * per_head)}, 0);
      unit = head_stop;
    }
    before += cost * units;
  }
}

void StepRun::attend_rows_of(int index, Rows rows) const {
  const int end = rows.token + rows.count;
  for (int token = rows.token; token < end;) {
    const int s = work.row_sequence[token], start = step.query_starts[s];
    const int stop = step.query_starts[s + 1] < end ? step.query_starts[s + 1] : end;
    for (int head = 0; head < m.num_kv_heads; head++) {
      attend_range(index, s, head, {(token - start) * m.group, (stop - start) * m.group}, rows.scratch - rows.token);
    }
    token = stop;
  }
}

void StepRun::run_columns() {
  const int count = step.num_tokens;
  // One or two rows: every thread quantises them for itself, which is cheaper than to meet.
  const bool alone = count <= kRedundantRows;
  const Share mine = share_of(count, thread, num_threads);
  const Rows every = {0, count, alone ? thread * kRedundantRows : 0, 0};
  const Rows own = alone ? every : Rows{mine.begin, mine.end - mine.begin, mine.begin, mine.begin};
  const Rows split = {mine.begin, mine.end - mine.begin, mine.begin, mine.begin};
  const auto meet_after = [&](Phase phase) {
    watch.end(phase);
    team.barrier(thread);
    watch.end(Phase::kWait);
  };
  const auto done = [&](Phase phase) { alone ? watch.end(phase) : meet_after(phase); };

  embed(mine);
  meet_after(Phase::kEmbed);
  for (int index = 0; index < m.num_layers; index++) {
    const Layer& layer = m.layers[index];
    norm_inputs(layer.attn_norm, layer.qkv.kind, own);
    done(Phase::kNorm);
    project_qkv(layer, every, panels(layer.qkv));
    meet_after(Phase::kQkv);
    const Share keys = share_of(count * m.num_kv_heads, thread, num_threads);
    for (int i = keys.begin; i < keys.end; i++) store_keys(index, layer, i / m.num_kv_heads, i % m.num_kv_heads);
    meet_after(Phase::kKeys);
    attend_share(index);
    meet_after(Phase::kAttention);
    quantise_attention(layer, own);
    done(Phase::kActivation);
    project_residual(layer.o, layer.o_bias, !layer.post_attn_norm, every, panels(layer.o));
    meet_after(Phase::kOutput);
    if (layer.post_attn_norm) {
      add_projected(layer.post_attn_norm, split);
      meet_after(Phase::kNorm);
    }
    norm_inputs(layer.mlp_norm, layer.gate_up.kind, own);
    done(Phase::kNorm);
    project_gate_up(layer, every, panels(layer.gate_up));
    meet_after(Phase::kGateUp);
    quantise_activation(layer, own);
    done(Phase::kActivation);
    project_residual(layer.down, nullptr, !layer.post_mlp_norm, every, panels(layer.down));
    meet_after(Phase::kDown);
    if (layer.post_mlp_norm) {
      add_projected(layer.post_mlp_norm, split);
      meet_after(Phase::kNorm);
    }
  }
}

// A block of rows does all that needs no other row: from the attention of one layer to the keys of the next.
void StepRun::run_row_blocks() {
  const int per_round = num_threads * kBlockRows;
  const int num_blocks = num_threads * ((step.num_tokens + per_round - 1) / per_round);
  for (int index = 0; index <= m.num_layers; index++) {
    for (int taken; (taken = team.take(index)) < num_blocks;) {
      // The last rows see the most context: they go first, so that no long piece is left at the end.
      const Share tokens = share_of(step.num_tokens, num_blocks - 1 - taken, num_blocks);
      const int scratch = thread * kBlockRows;
      const Rows rows = {tokens.begin, tokens.end - tokens.begin, scratch, scratch};
      if (index == 0) embed(tokens);
      watch.end(Phase::kEmbed);
      if (index > 0) finish_layer(index - 1, rows);
      if (index < m.num_layers) begin_layer(index, rows);
    }
    team.barrier(thread);
    watch.end(Phase::kWait);
  }
}

void StepRun::begin_layer(int index, Rows rows) const {
  const Layer& layer = m.layers[index];
  norm_inputs(layer.attn_norm, layer.qkv.kind, rows);
  watch.end(Phase::kNorm);
  project_qkv(layer, rows, all(layer.qkv));
  watch.end(Phase::kQkv);
  for (int i = 0; i < rows.count; i++) {
    for (int head = 0; head < m.num_kv_heads; head++) store_keys(index, layer, rows.token + i, head);
  }
  watch.end(Phase::kKeys);
}

void StepRun::finish_layer(int index, Rows rows) const {
  const Layer& layer = m.layers[index];
  attend_rows_of(index, rows);
  watch.end(Phase::kAttention);
  quantise_attention(layer, rows);
  watch.end(Phase::kActivation);
  project_residual(layer.o, layer.o_bias, !layer.post_attn_norm, rows, all(layer.o));
  watch.end(Phase::kOutput);
  if (layer.post_attn_norm) add_projected(layer.post_attn_norm, rows);
  norm_inputs(layer.mlp_norm, layer.gate_up.kind, rows);
  watch.end(Phase::kNorm);
  project_gate_up(layer, rows, all(layer.gate_up));
  watch.end(Phase::kGateUp);
  quantise_activation(layer, rows);
  watch.end(Phase::kActivation);
  project_residual(layer.down, nullptr, !layer.post_mlp_norm, rows, all(layer.down));
  watch.end(Phase::kDown);
  if (layer.post_mlp_norm) add_projected(layer.post_mlp_norm, rows);
}
