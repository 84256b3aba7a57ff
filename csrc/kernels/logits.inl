// LM head and sampling: the rows whose logits are wanted, kLogitRows at a time.

class LogitRun {
 public:
  LogitRun(const StepContext& context, const StepRun& layers, int thread)
      : m(*context.model), work(*context.work), step(*context.step), team(*context.team), scratch(*context.scratch[thread]),
        layers(layers), thread(thread), num_threads(context.team->num_active()) {}

  void run() {
    for (int first = 0; first < step.num_rows; first += kLogitRows) {
      if (first > 0) team.barrier(thread);  // all have read the logits of the rows before
      const int count = step.num_rows - first < kLogitRows ? step.num_rows - first : kLogitRows;
      const int input = prepare_inputs(first, count);
      const bool keep = needs_logits(first, count);
      if (keep) project<true>(count, input);
      else project<false>(count, input);
      layers.watch.end(Phase::kLmHead);
      team.barrier(thread);
      layers.watch.end(Phase::kWait);
      const Share rows = share_of(count, thread, num_threads);
      for (int i = rows.begin; i < rows.end; i++) finish(first + i, i);
      layers.watch.end(Phase::kSample);
    }
  }

 private:
  float* logits(int row) const { return work.logits + static_cast<size_t>(row) * m.vocab_padded; }
  BestLanes& best(int of_thread, int row) const { return work.best[of_thread * kLogitRows + row]; }

  // Only the best token is asked for, and nothing changes the logits: they need not be stored.
  bool is_plain_greedy(int row) const {
    const SamplingRow& s = step.sampling[row];
    const RowExtras& e = step.extras[row];
    return s.temperature == 0.0f && s.num_top < 0 && s.target < 0 && s.repetition_penalty == 1.0f &&
           s.presence_penalty == 0.0f && s.frequency_penalty == 0.0f && e.num_biases == 0 && !e.mask;
  }

  bool needs_logits(int first, int count) const {
    if (step.all_logits) return true;
    for (int i = first; i < first + count; i++) {
      if (!is_plain_greedy(i)) return true;
    }
    return false;
  }

  // Returns the row of `work.inputs` where this thread finds the first one.
  int prepare_inputs(int first, int count) const {
    const bool alone = count <= kRedundantRows;
    const int input = alone ? thread * kRedundantRows : 0;
    const Share rows = alone ? Share{0, count} : share_of(count, thread, num_threads);
    for (int i = rows.begin; i < rows.end; i++) {
      layers.norm_input(m.final_norm, m.lm_head.kind, step.rows[first + i], input + i);
    }
    layers.watch.end(Phase::kNorm);
    if (!alone) team.barrier(thread);
    layers.watch.end(Phase::kWait);
    return input;
  }

  template <bool KEEP>
  void project(int count, int input) const {
    for (int i = 0; i < count; i++) {
      BestLanes& lanes = best(thread, i);
      store_f(lanes.values, set_f(-__builtin_inff()));
      store_f(lanes.checks, zero_f());
      store_i(lanes.ids, set_i(-1));
    }
    const Share panels = share_of(m.lm_head.num_panels, thread, num_threads);
    gemm(m.lm_head, work.inputs, input, count, panels.begin, panels.end,
         [&](int row, int rows, int column, const float* tile) {
           for (int r = 0; r < rows; r++) {
             watch(best(thread, row + r), tile + r * kPanel, column);
             if constexpr (KEEP) __builtin_memcpy(logits(row + r) + column, tile + r * kPanel, kPanel * sizeof(float));
           }
         });
  }

  void watch(BestLanes& lanes, const float* values, int column) const {
    int32_t offsets[W];
    for (int i = 0; i < W; i++) offsets[i] = i;
    const vi lane = load_i(offsets);
    vf best_values = load_f(lanes.values), checks = load_f(lanes.checks);
    vi best_ids = load_i(lanes.ids);
    for (int i = 0; i < kPanel; i += W) {
      vf value = load_f(values + i);
      checks = fma(value, zero_f(), checks);  // NaN if the value is not finite
      if (column + i + W > m.vocab) value = select(lanes_between(0, m.vocab - column - i), value, set_f(-__builtin_inff()));
      const vmask better = greater(value, best_values);
      best_values = select(better, value, best_values);
      best_ids = select_i(better, add_i(lane, set_i(column + i)), best_ids);
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
  }

  const Model& m;
  const Workspace& work;
  const Step& step;
  Team& team;
  SampleScratch& scratch;
  const StepRun& layers;
  const int thread, num_threads;
};

void run_step(const StepContext& context, int thread) {
  StepRun layers(context, thread);
  layers.run_layers();
  if (context.step->num_rows > 0) LogitRun(context, layers, thread).run();
}
