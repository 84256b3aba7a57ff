// The parts of a layer for a range of rows: norms, matrices with their fused operations, keys, attention.

// The rows of one thread: `count` tokens from `token` on. Their normed matrix inputs start at row `input` of the
// workspace, all other temporaries at row `scratch`.
struct Rows {
  int token, count, input, scratch;
};

// Query heads of one KV head and sequence: rows [begin, end), where row = token of the chunk * group + head of the group.
struct HeadRows {
  int sequence, kv_head, begin, end;
};

// Rows of latent attention: pairs of a token and one of `group` heads from `first_head` on, row = token * group + head.
struct LatentRows {
  int sequence, begin, end, first_head, group;
};

struct Share {
  int begin, end;
};

// A sequence of the step in a state layer. Its tokens in the step have the numbers 0, 1, ...; earlier ones are negative.
struct StateRows {
  int first, count, certain, replayed;
  const float* from;  // the slot that the sequence continues
  float* to;          // the slot that receives its state
  const Snapshot *snapshots, *snapshots_end;
};

// The inputs and the output of a token in a value head of the delta rule.
struct DeltaRow {
  const float *q, *k;            // [key_dim], of unit length, q times key_dim^-0.5
  const float *read_q, *read_k;  // by channel times the decays, else the same
  const float* v;
  float* out;
  const float* decays;           // [key_dim] by channel
  float decay, beta, dot;        // decay: of all channels, 1 where each has its own; dot: of q and k
};

// The inputs of a row in bf16: slabs of 32 numbers, `pitch` bytes apart.
struct Slabs {
  const uint8_t* first;
  size_t pitch;
};

// A row of int8 inputs; `depth` of them share a scale.
struct InputRow {
  const Activations* inputs;
  int row, depth;
};

// The inner values of a row's adapter; kRankBlock of them share a scale.
struct InnerRow {
  int16_t* values;
  float* scales;
};

// The matrix of a product that adapters change, and the first of its rows: their token and their scratch row.
struct Adapted {
  bool any;  // false: no row of the step has an adapter, or the product is an expert's
  int layer, matrix, token, scratch;
};

// A product with gate and up whose result, activated and quantized for `kind`, becomes the inputs of `down`.
struct GateUp {
  const Matrix* matrix;
  WeightKind kind;
  const float* bias;  // null: there is none
  const Activations *inputs, *outputs;
  int first_input, first_output, num_rows;
  Adapted adapted;
  const float* xielu = nullptr;  // the numbers of this activation
};

INLINE Share share_of(int count, int thread, int num_threads) {
  return {static_cast<int>(static_cast<int64_t>(count) * thread / num_threads),
          static_cast<int>(static_cast<int64_t>(count) * (thread + 1) / num_threads)};
}

// The outputs of o or down are added to the residual stream, kept in `projected` (where a norm follows, or where the MLP
// must not see them), or added together with those kept there.
enum class Target { kStream, kProjected, kBoth };

class StepRun {
 public:
  StepRun(const StepContext& context, int thread)
      : m(*context.model), kv(*context.kv), state_cache(*context.states), work(*context.work), step(*context.step), team(*context.team),
        first_layer(context.first_layer), end_layer(context.end_layer), thread(thread),
        num_threads(context.team->num_active()),
        watch(context.profile ? context.profile + thread : nullptr) {}

  void run_layers() {
    watch.start();
    if (has_few_rows()) run_columns();
    else if (m.experts.count > 0 || m.has_states) run_joint_blocks();
    else run_row_blocks();
  }

  void embed(Share tokens) const {
    for (int row = tokens.begin; row < tokens.end; row++) {
      embed_row(m.embed, step.token_ids[row], m.embedding_scale, x(row));
      if (m.positions) add_to(x(row), m.positions + static_cast<size_t>(work.row_position[row]) * m.hidden_padded);
      if (m.token_types) add_to(x(row), token_type(row));
      if (m.embed_norm.weight) norm_row(m, x(row), m.embed_norm, m.hidden_padded, x(row));
    }
  }

  void begin_rows(Rows rows) const {
    embed({rows.token, rows.token + rows.count});
    begin_layer_inputs(rows);
  }

  // Norms the residual stream, if there is a norm, and quantizes it as the input of a matrix of `kind`.
  void norm_input(const Norm& norm, WeightKind kind, int token, int input) const {
    if (norm.weight) norm_row(m, x(token), norm, m.hidden_padded, row_buffer());
    quantize_row(kind, norm.weight ? row_buffer() : x(token), m.hidden_padded, work.inputs, input);
  }

  // Copies this thread's share of the hidden states that the step returns.
  void write_hidden() const {
    const Share mine = share_of(step.num_hidden_rows, thread, num_threads);
    for (int i = mine.begin; i < mine.end; i++) {
      const float* state = x(step.hidden_rows[i]);
      if (m.final_norm.weight) norm_row(m, state, m.final_norm, m.hidden_padded, row_buffer());
      float* out = step.hidden + static_cast<size_t>(i) * m.hidden;
      __builtin_memcpy(out, m.final_norm.weight ? row_buffer() : state, static_cast<size_t>(m.hidden) * sizeof(float));
    }
    watch.end(Phase::kNorm);
  }

 private:
  const float* token_type(int row) const {
    const int32_t type = step.token_types ? step.token_types[row] : 0;
    return m.token_types + static_cast<size_t>(type) * m.hidden_padded;
  }
  float* x(int token) const { return work.x + static_cast<size_t>(token) * m.hidden_padded; }
  float* qkv(int token) const { return work.qkv + static_cast<size_t>(token) * m.qkv_padded; }
  float* gated(int row) const {
    return work.gated + (static_cast<size_t>(thread) * work.gated_rows + row) * kDepth;
  }
  float* wide(int row) const { return work.wide + static_cast<size_t>(row) * m.attention_padded; }
  float* projected(int row) const { return work.projected + static_cast<size_t>(row) * m.hidden_padded; }
  float* row_buffer() const { return work.row_buffers + static_cast<size_t>(thread) * m.hidden_padded; }
  Share panels(const Matrix& matrix) const { return share_of(matrix.num_panels, thread, num_threads); }
  template <class Body>
  void share_product(const Matrix& matrix, int unit_panels, Rows rows, const Body& body) const;
  static void fetch_first(const Matrix& matrix, int panel) {
    const uint8_t* first = matrix.panels + panel * matrix.panel_bytes;
    for (size_t i = 0; i < kPrefetchAhead; i += 64) prefetch_l2(first + i);
  }
  static Share all(const Matrix& matrix) { return {0, matrix.num_panels}; }
  // Panels of gate and up that compute the inputs of one group of `down`, and the number of these groups.
  int group_panels() const { return (m.has_gate ? 2 : 1) * kDepth / kPanel; }
  int num_groups(const Layer& layer) const { return layer.gate_up.num_panels / group_panels(); }
  void add_to(float* sum, const float* values) const {
    for (int i = 0; i < m.hidden_padded; i += W) store_f(sum + i, add(load_f(sum + i), load_f(values + i)));
  }

  int tokens_of(int sequence) const { return step.query_starts[sequence + 1] - step.query_starts[sequence]; }

  void run_columns();
  void project_columns(const Layer& layer, const Matrix& matrix, AdaptedMatrix adapted, const Activations& inputs,
                       const float* bias, Target target, Rows rows) const;
  void run_row_blocks();
  void wait_for_keys(int stage, int block, int num_blocks) const;
  void run_stage(int stage, Share tokens) const;
  void finish_needed_rows(int index, Rows rows, const int32_t* needed, int num_needed) const;
  void begin_layer(int index, Rows rows) const;
  void finish_layer(int index, Rows rows) const;
  void finish_mixer(int index, Rows rows) const;
  void attend_columns(int index, Rows split);
  void mix_columns(const Layer& layer, Rows split);
  void barrier_after(Phase phase) const {
    watch.end(phase);
    team.barrier(thread);
    watch.end(Phase::kWait);
  }
  // Prefetches the first weights of the next matrix while waiting at the barrier.
  void barrier_before(const Matrix& next, int panel, Phase phase) const {
    fetch_first(next, panel);
    barrier_after(phase);
  }
  void finish_mlp(int index, Rows rows) const;

  void project_layer_inputs(Rows rows, Share panels) const;
  void add_layer_projections(Rows rows) const;
  void project_input_gate(int index, Rows rows, Share groups) const;
  void begin_layer_inputs(Rows rows) const;
  void add_layer_input(int index, Rows rows) const;
  static int num_input_groups(const Layer& layer) { return layer.input_gate.num_panels * kPanel / kDepth; }
  // The scale of a layer, where its MLP is the last part of it.
  static float scale_after_mlp(const Layer& layer) { return layer.input_gate.num_panels > 0 ? 1.0f : layer.scale; }
  float* layer_input(int token, int layer) const {
    return step.layer_inputs + (static_cast<size_t>(token) * m.num_layers + layer) * m.layer_input_size;
  }
  float* layer_products(int row) const {
    return work.layer_products + static_cast<size_t>(row) * m.num_layers * m.layer_input_size;
  }

  void norm_beside(const Layer& layer, Rows rows) const;
  void keep_beside(const Layer& layer, Rows rows) const;
  void add_beside(const Layer& layer, Rows rows) const;
  void run_beside_columns(const Layer& layer, Rows every, Rows split);
  float* beside(int token) const { return work.experts.beside + static_cast<size_t>(token) * m.hidden_padded; }

  void run_joint_blocks();
  void run_experts(const Layer& layer);
  template <class Body>
  void share_tasks(int count, const Body& body);
  float* normed(int row) const { return work.normed + static_cast<size_t>(row) * m.hidden_padded; }
  void quantize_for_experts(const Layer& layer, const float* row, int token) const;
  void norm_for_experts(const Layer& layer, Rows rows) const;
  void score_experts(const Layer& layer, Rows rows, Share experts) const;
  void choose_experts(int index, Share tokens) const;
  void choose_by_scores(const float* bias, float* scores, int32_t* chosen, float* shares) const;
  void choose_by_softmax(float* scores, int32_t* chosen, float* shares) const;
  void choose_by_sparsemixer(float* scores, int32_t* chosen, float* shares) const;
  void sort_places() const;
  void gather_inputs(const Layer& layer, Share places) const;
  Matrix expert_of(const Matrix& stack, int expert) const;
  int units_per_task(int num_units, size_t unit_bytes) const;
  void run_gate_up_task(const Layer& layer, int expert, Share groups) const;
  void run_down_task(const Layer& layer, int expert, Share panels) const;
  void add_experts(const Layer& layer, Rows rows) const;
  void begin_experts(int index, Rows rows) const;
  void finish_experts(const Layer& layer, Rows rows) const;

  float* latent(int token) const { return work.experts.latent + static_cast<size_t>(token) * m.experts.io_padded; }
  void project_latent(const Layer& layer, Rows rows, Share panels) const;
  void quantize_shared_inputs(const Layer& layer, Rows rows) const;
  void sum_latent(const Layer& layer, Rows rows) const;
  void run_latent_columns(const Layer& layer);
  void add_latent_columns(const Layer& layer);

  void norm_inputs(const Norm& norm, WeightKind kind, Rows rows) const {
    for (int i = 0; i < rows.count; i++) norm_input(norm, kind, rows.token + i, rows.input + i);
  }

  // The output of a head is quantized right after its attention, unless a scale group of `o` spans heads.
  bool quantizes_heads(const Layer& layer) const {
    return !is_latent(layer) && layer.heads.dim % group_of(layer.o.kind) == 0 && layer.heads.outputs() == layer.o.k;
  }
  void quantize_attention(const Layer& layer, Rows rows) const {
    for (int i = 0; i < rows.count; i++) {
      float* row = wide(rows.scratch + i);
      for (int j = layer.heads.outputs(); j < layer.o.k; j++) row[j] = 0.0f;
      quantize_row(layer.o.kind, row, layer.o.k, work.inputs, rows.scratch + i);
    }
  }

  float* gates_of(int token) const { return work.gates + static_cast<size_t>(token) * m.gates_pitch; }
  void keep_normed(const Layer& layer, Rows rows) const;
  void project_gates(const Layer& layer, Rows rows, Share gates) const;
  static bool mixes(const Layer& layer) { return layer.qkv.num_panels > 0; }
  static bool has_mlp(const Layer& layer) { return layer.gate_up.num_panels > 0; }
  static const Matrix& first_matrix(const Layer& layer) { return mixes(layer) ? layer.qkv : layer.gate_up; }
  bool has_few_rows() const { return step.num_tokens <= column_rows(num_threads); }
  static const Matrix& state_output(const Layer& layer) { return layer.attends ? layer.mix_out : layer.o; }
  static bool has_state(const Layer& layer) { return keeps_state(layer.state.mixer); }
  StateRows state_rows_of(int sequence) const;
  // Returns the inputs of the convolution of a token; those of earlier tokens, replayed ones too, are in the slot.
  const float* conv_input(const StateLayer& state, const StateRows& rows, int token) const {
    if (token >= 0) return qkv(rows.first + token) + state.conv_inputs;
    return rows.from + state.rows + static_cast<size_t>(token + rows.replayed + state.taps - 1) * state.channels;
  }
  void store_conv_inputs(const StateLayer& state, const StateRows& rows, Share channels) const;
  template <class Visit>
  void convolve(const StateLayer& state, const StateRows& rows, int token, Share channels, const Visit& visit) const;
  const float* scan_gates(const StateLayer& state, const StateRows& rows, int token) const;
  void store_gates(const StateLayer& state, const StateRows& rows, Share gates) const;
  float* scan_scratch() const { return work.scan + static_cast<size_t>(thread) * m.scan_scratch; }
  const float* decay_latent(const StateLayer& state, const StateRows& rows, int token) const;
  void store_decay_latents(const StateLayer& state, const StateRows& rows) const;
  void load_channels(const StateLayer& state, const StateRows& rows, int head, int first, int count, DeltaRow* loaded) const;
  void load_delta_rows(const StateLayer& state, const StateRows& rows, int head, int first, int count, DeltaRow* loaded) const;
  void finish_delta_rows(const StateLayer& state, const StateRows& rows, int head, int first, int count,
                         const DeltaRow* loaded) const;
  void run_delta_head(const StateLayer& state, const StateRows& rows, int head) const;
  void run_delta(const StateLayer& state, const StateRows& rows, Share key_heads) const;
  void run_short_conv(const Layer& layer, const StateRows& rows, Share channels) const;
  void run_state_units(const Layer& layer, const StateRows& rows, Share units) const;
  void run_state_share(const Layer& layer) const;
  void quantize_mixed(const Layer& layer, Rows rows) const;

  float* ssd_vectors(const Ssd& ssd, int token) const;
  void load_ssd_group(const StateLayer& state, const StateRows& rows, int group, int first, int count) const;
  void run_ssd_tokens(const StateLayer& state, const StateRows& rows, int head, int first, int count, const float* from,
                      float* to) const;
  void run_ssd_heads(const StateLayer& state, const StateRows& rows, int group, Share heads) const;
  void run_ssd(const StateLayer& state, const StateRows& rows, Share heads) const;
  void store_shared_inputs(const Layer& layer) const;
  void norm_ssd(const Ssd& ssd, float* row) const;

  // Computes outputs of qkv, of which `matrix` gives those from `first_column` on.
  void project_qkv(const Layer& layer, const Matrix& matrix, int first_column, Rows rows, Share panels) const;
  void project_gate_up(const GateUp& product, Share groups) const;
  GateUp gate_up_of(const Layer& layer, Rows rows) const {
    return {&layer.gate_up,     layer.down.kind, layer.gate_up_bias, &work.inputs,
            &work.gated_inputs, rows.input,      rows.scratch,       rows.count,
            adapted_of(layer, kAdaptedGateUp, rows), layer.xielu};
  }
  GateUp shared_gate_up_of(const Layer& layer, Rows rows) const {
    return {&layer.shared_gate_up, layer.shared_down.kind, nullptr,      &work.inputs,
            &work.gated_inputs,    rows.scratch,           rows.scratch, rows.count, {}};
  }
  bool finishes_qkv(const Layer& layer) const { return layer.q_norms || m.qkv_clip > 0; }
  void finish_qkv(const Layer& layer, Rows rows) const;
  void norm_heads(const float* weights, int d, int count, float* heads) const;
  Target target_of_o(const Layer& layer) const {
    return (layer.post_attn_norm.weight && !m.norms_stream) || m.parallel ? Target::kProjected : Target::kStream;
  }
  Target target_of_down(const Layer& layer) const {
    return layer.post_mlp_norm.weight && !m.norms_stream ? Target::kProjected : m.parallel ? Target::kBoth : Target::kStream;
  }
  void project_residual(const Matrix& matrix, const Activations& inputs, const float* bias, Target target, Rows rows,
                        Share panels, const Adapted& adapted) const;
  void add_projected(const Norm& norm, Rows rows, float scale = 1.0f) const;

  Adapted adapted_of(const Layer& layer, AdaptedMatrix matrix, Rows rows) const {
    return {step.adapters != nullptr, static_cast<int>(&layer - m.layers), matrix, rows.token, rows.scratch};
  }
  InnerRow inner(int row) const {
    const size_t first = static_cast<size_t>(row) * work.adapter_inner_pitch;
    return {work.adapter_inner + first, work.adapter_inner_scales + first / kRankBlock};
  }
  const LowRank* low_rank(const Adapted& adapted, int row) const;
  InputRow int8_inputs(WeightKind kind, const Activations& inputs, int row, int k) const;
  void shrink_rows(const Adapted& adapted, const Matrix& base, const Activations& inputs, int first_input, int num_rows,
                   bool is_shared) const;
  // Of a block of rows that one thread computes alone.
  void shrink_block_rows(const Layer& layer, AdaptedMatrix matrix, const Matrix& base, const Activations& inputs,
                         int first_input, Rows rows) const {
    const Adapted adapted = adapted_of(layer, matrix, rows);
    if (adapted.any) shrink_rows(adapted, base, inputs, first_input, rows.count, false);
  }
  void expand_rows(const Adapted& adapted, int row, int count, int column, float* tile) const;

  void prefetch_keys(int index, int token, int kv_head) const;
  void store_keys(int index, const Layer& layer, int token, int kv_head) const;
  void store_keys_share(int index, bool whole_heads) const;
  Share seen_by(int index, int token) const;
  Context context_of(int index, HeadRows rows) const;
  Context context_between(int index, int kv_head, int first_token, int last_token) const;
  void set_row(AttentionTile& tile, int r, int index, int token, int head, float* out) const;
  void gate_head(const Heads& heads, int token, int head, float* out) const;
  void attend_range(int index, HeadRows rows, int scratch_offset, const Context& following) const;
  template <class Visit>
  void visit_share(const Heads& heads, bool whole_heads, const Visit& visit) const;
  void attend_share(int index, bool whole_heads) const;
  void attend_rows_of(int index, Rows rows) const;
  static bool is_latent(const Layer& layer) { return layer.kv_a_norm != nullptr; }
  Activations head_inputs(WeightKind kind, int count) const;
  const float* head_query(const Layer& layer, Rows rows, int row, int head) const;
  void store_latents(int index, Rows rows) const;
  void quantize_query_latents(const Layer& layer, Rows rows) const;
  void project_queries(const Layer& layer, Rows rows, Share panels) const;
  void absorb_keys(const Layer& layer, int head, Rows rows, Share panels, float* out, size_t pitch) const;
  void expand_values(const Layer& layer, int head, Rows rows, Share panels, const float* sums, size_t pitch) const;
  template <class Locate>
  void attend_latents(int index, LatentRows rows, const Context& following, const Locate& locate) const;
  template <class Body>
  void share_heads(const Matrix& stack, int num_heads, const Body& body) const;
  void attend_latents_by_columns(int index, Rows every, Rows split) const;
  void attend_latents_of(int index, Rows rows) const;

  const Model& m;
  const KvCache& kv;
  const StateCache& state_cache;
  const Workspace& work;
  const Step& step;
  Team& team;
  const int first_layer, end_layer, thread, num_threads;
  int tasks_begin = 0;  // number of the first task of the next `share_tasks`

 public:
  const Stopwatch watch;
};
