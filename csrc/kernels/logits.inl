// LM head and sampling of the rows that need logits, kLogitRows at a time.
//
// A grammar often allows only a few tokens (a quote, a comma, the digits). The LM head of such a row is computed only
// for the panels with an allowed token: a panel has kPanel outputs, a word of a mask as many bits.

static_assert(kPanel == 32, "a mask has one word for each panel of the LM head");
constexpr int kSparseShare = 8;  // a single row costs several times as much per panel as a row among many

class LogitRun {
 public:
  LogitRun(const StepContext& context, const StepRun& layers, int thread)
      : m(*context.model), work(*context.work), step(*context.step), team(*context.team), scratch(*context.scratch[thread]),
        layers(layers), thread(thread), num_threads(context.team->num_active()) {}

  void run() {
    for (int first = 0; first < step.num_rows; first += kLogitRows) {
      if (first > 0) team.barrier(thread);  // all threads have read the previous logits
      const int count = step.num_rows - first < kLogitRows ? step.num_rows - first : kLogitRows;
      const int num_dense = order_rows(first, count);
      const int input = prepare_inputs(count);
      if (needs_logits(0, num_dense)) project<true>(num_dense, input);
      else project<false>(num_dense, input);
      for (int i = num_dense; i < count; i++) project_allowed(i, input + i);
      layers.watch.end(Phase::kLmHead);
      team.barrier(thread);
      layers.watch.end(Phase::kWait);
      const Share rows = share_of(count, thread, num_threads);
      for (int i = rows.begin; i < rows.end; i++) finish(row_of[i], i);
      layers.watch.end(Phase::kSample);
    }
  }

 private:
  float* logits(int row) const { return work.logits + static_cast<size_t>(row) * m.vocab_padded; }
  BestLanes& best(int of_thread, int row) const { return work.best[of_thread * kLogitRows + row]; }

  // Only the best allowed token is needed, and nothing modifies the logits: they need not be stored.
  bool is_plain_greedy(int row) const {
    const SamplingRow& s = step.sampling[row];
    return s.temperature == 0.0f && s.num_top < 0 && s.target < 0 && s.repetition_penalty == 1.0f &&
           s.presence_penalty == 0.0f && s.frequency_penalty == 0.0f && step.extras[row].num_biases == 0;
  }

  // True if so few panels have an allowed token that they are computed for this row alone.
  bool is_sparse(int row) const {
    if (step.all_logits) return false;  // without sampling, `sampling` and `extras` are null
    const SamplingRow& s = step.sampling[row];
    const uint32_t* mask = step.extras[row].mask;
    if (!mask || s.num_top >= 0 || s.target >= 0) return false;
    int num_panels = 0;
    for (int panel = 0; panel < m.lm_head.num_panels; panel++) num_panels += mask[panel] != 0;
    return num_panels * kSparseShare <= m.lm_head.num_panels;
  }

  // Moves the rows that need the full LM head to the front; returns their number. All threads compute the same order.
  int order_rows(int first, int count) {
    int num_dense = 0, num_sparse = 0;
    int sparse[kLogitRows];
    for (int row = first; row < first + count; row++) {
      if (is_sparse(row)) sparse[num_sparse++] = row;
      else row_of[num_dense++] = row;
    }
    for (int i = 0; i < num_sparse; i++) row_of[num_dense + i] = sparse[i];
    return num_dense;
  }

  bool needs_logits(int begin, int end) const {
    if (step.all_logits) return true;
    for (int i = begin; i < end; i++) {
      if (!is_plain_greedy(row_of[i])) return true;
    }
    return false;
  }

  // Returns the row of `work.inputs` of the first one for this thread.
  int prepare_inputs(int count) const {
    const bool alone = count <= kRedundantRows;
    const int input = alone ? thread * kRedundantRows : 0;
    const Share rows = alone ? Share{0, count} : share_of(count, thread, num_threads);
    for (int i = rows.begin; i < rows.end; i++) {
      layers.norm_input(m.final_norm, m.lm_head.kind, step.rows[row_of[i]], input + i);
    }
    layers.watch.end(Phase::kNorm);
    if (!alone) team.barrier(thread);
    layers.watch.end(Phase::kWait);
    return input;
  }

  template <bool KEEP>
  void project(int count, int input) const {
    for (int i = 0; i < count; i++) clear_best(i);
    if (count == 0) return;
    const Share panels = share_of(m.lm_head.num_panels, thread, num_threads);
    gemm(m.lm_head, work.inputs, input, count, panels.begin, panels.end,
         [&](int row, int rows, int column, const float* tile) {
           alignas(64) float buffer[kPanel];
           for (int r = 0; r < rows; r++) {
             const float* values = finish_panel(tile + r * kPanel, column, buffer);
             watch(row + r, values, column);
             if constexpr (KEEP) __builtin_memcpy(logits(row + r) + column, values, kPanel * sizeof(float));
           }
         });
  }

  // Computes the panels with an allowed token for one row; panels are dealt to the threads in turn.
  void project_allowed(int i, int input) const {
    const uint32_t* mask = step.extras[row_of[i]].mask;
    const bool keep = !is_plain_greedy(row_of[i]);
    clear_best(i);
    int num_found = 0;
    for (int panel = 0; panel < m.lm_head.num_panels; panel++) {
      if (mask[panel] == 0 || num_found++ % num_threads != thread) continue;
      gemm(m.lm_head, work.inputs, input, 1, panel, panel + 1, [&](int, int, int column, const float* tile) {
        alignas(64) float buffer[kPanel];
        const float* values = finish_panel(tile, column, buffer);
        watch(i, values, column);
        if (keep) __builtin_memcpy(logits(i) + column, values, kPanel * sizeof(float));
      });
    }
  }

  // Returns the logits of a panel, given their products: with bias and softcap, in `buffer` if the model has them.
  const float* finish_panel(const float* products, int column, float* buffer) const {
    if (!m.head_bias && m.logit_softcap == 0) return products;
    for (int i = 0; i < kPanel; i += W) {
      vf value = load_f(products + i);
      if (m.head_bias) value = add(value, load_f(m.head_bias + column + i));
      store_f(buffer + i, m.logit_softcap > 0 ? softcap(value, m.logit_softcap) : value);
    }
    return buffer;
  }

  void clear_best(int i) const {
    BestLanes& lanes = best(thread, i);
    store_f(lanes.values, set_f(-__builtin_inff()));
    store_f(lanes.checks, zero_f());
    store_i(lanes.ids, set_i(-1));
  }

  // Updates the best logits of the row at index `i` with the allowed logits of a panel.
  void watch(int i, const float* values, int column) const {
    BestLanes& lanes = best(thread, i);
    const uint32_t* mask = step.extras ? step.extras[row_of[i]].mask : nullptr;
    const uint32_t allowed = mask ? mask[column / kPanel] : ~0u;
    int32_t offsets[W];
    for (int lane = 0; lane < W; lane++) offsets[lane] = lane;
    const vi lane = load_i(offsets);
    const vf none = set_f(-__builtin_inff());
    vf best_values = load_f(lanes.values), checks = load_f(lanes.checks);
    vi best_ids = load_i(lanes.ids);
    for (int from = 0; from < kPanel; from += W) {
      vf value = load_f(values + from);
      if (mask) {
        const vmask here = lanes_of(allowed >> from);
        checks = fma(select(here, value, zero_f()), zero_f(), checks);
        value = select(here, value, none);
      } else {
        checks = fma(value, zero_f(), checks);  // NaN if the value is not finite
      }
      if (column + from + W > m.vocab) value = select(lanes_between(0, m.vocab - column - from), value, none);
      const vmask better = greater(value, best_values);
      best_values = select(better, value, best_values);
      best_ids = select_i(better, add_i(lane, set_i(column + from)), best_ids);
    }
    store_f(lanes.values, best_values);
    store_f(lanes.checks, checks);
    store_i(lanes.ids, best_ids);
  }

  // The lowest id of the best logit over lanes and threads; -1 if a logit is not finite.
  int32_t best_token(int row) const {
    float value = -__builtin_inff(), check = 0;
    int32_t id = -1;
    for (int t = 0; t < num_threads; t++) {
      const BestLanes& lanes = best(t, row);
      for (int i = 0; i < W; i++) {
        check += lanes.checks[i];
        const bool better = lanes.values[i] > value || (lanes.values[i] == value && lanes.ids[i] < id);
        if (lanes.ids[i] < 0 || !better) continue;
        value = lanes.values[i];
        id = lanes.ids[i];
      }
    }
    return check == 0 ? id : -1;
  }

  void finish(int row, int i) const {
    const StepOutputs& out = step.out;
    if (step.all_logits) {
      float* to = step.all_logits + static_cast<size_t>(row) * m.vocab;
      __builtin_memcpy(to, logits(i), static_cast<size_t>(m.vocab) * sizeof(float));
      return;
    }
    SampleResult result;
    result.top_capacity = out.top_capacity;
    result.top_ids = out.top_ids + static_cast<size_t>(row) * out.top_capacity;
    result.top_logprobs = out.top_logprobs + static_cast<size_t>(row) * out.top_capacity;
    if (is_plain_greedy(row)) {
      result.token = best_token(i);
      result.logprob = __builtin_nanf("");
      for (int k = 0; k < out.top_capacity; k++) {
        result.top_ids[k] = -1;
        result.top_logprobs[k] = result.logprob;
      }
    } else {
      sample_row(logits(i), m.vocab, step.sampling[row], step.extras[row], scratch, result);
    }
    out.token_ids[row] = result.token;
    out.logprobs[row] = result.logprob;
    out.ranks[row] = result.rank;
  }

  const Model& m;
  const Workspace& work;
  const Step& step;
  Team& team;
  SampleScratch& scratch;
  const StepRun& layers;
  const int thread, num_threads;
  int row_of[kLogitRows];  // the logit row in each place of the batch
};

void run_step(const StepContext& context, int thread) {
  StepRun layers(context, thread);
  layers.run_layers();
  if (context.end_layer < context.model->num_layers) return;
  layers.write_hidden();
  if (context.step->num_rows > 0) LogitRun(context, layers, thread).run();
}
