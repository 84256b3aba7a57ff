// The router of layers with experts: the scores of a row, and the choice of its experts by them.

constexpr int kRouterRows = 4;  // rows that share a load of the router's weights

INLINE float sigmoid_one(float x) {
  float lanes[W];
  store_f(lanes, sigmoid_times(set_f(1.0f), set_f(x)));
  return lanes[0];
}

// Scores of experts [begin, end) for ROWS rows; each sum has the same order for any ROWS.
template <int ROWS>
INLINE void score_rows(const float* router, const float* bias, int size, Share experts, const float* x, float* scores, int pitch) {
  for (int expert = experts.begin; expert < experts.end; expert++) {
    const float* weight = router + static_cast<size_t>(expert) * size;
    vf sums[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) sums[r] = zero_f();
    for (int i = 0; i < size; i += W) {
      const vf w = load_f(weight + i);
      UNROLL for (int r = 0; r < ROWS; r++) sums[r] = fma(load_f(x + static_cast<size_t>(r) * size + i), w, sums[r]);
    }
    const float offset = bias ? bias[expert] : 0.0f;
    UNROLL for (int r = 0; r < ROWS; r++) scores[static_cast<size_t>(r) * pitch + expert] = sum(sums[r]) + offset;
  }
}

// The same for `count` rows, of which kRouterRows share a load of the weights.
INLINE void score_all_rows(const float* router, const float* bias, int size, Share experts, const float* x, int count, float* scores, int pitch) {
  int i = 0;
  for (; i + kRouterRows <= count; i += kRouterRows, x += kRouterRows * size, scores += kRouterRows * pitch)
    score_rows<kRouterRows>(router, bias, size, experts, x, scores, pitch);
  for (; i < count; i++, x += size, scores += pitch) score_rows<1>(router, bias, size, experts, x, scores, pitch);
}

// Sum of exp(score - top) over a row's `count` scores; those behind them, up to a multiple of 16, are overwritten.
INLINE float sum_of_exponentials(float* scores, int count, float top) {
  const int padded = static_cast<int>(round_up(count, 16));
  for (int i = count; i < padded; i++) scores[i] = -__builtin_inff();
  vf total = zero_f();
  for (int i = 0; i < padded; i += W) {
    total = add(total, exp2_v(mul(sub(load_f(scores + i), set_f(top)), set_f(kLog2E))));
  }
  return sum(total);
}

void StepRun::score_experts(const Layer& layer, Rows rows, Share experts) const {
  const int pitch = m.experts.score_pitch();
  score_all_rows(layer.router, layer.router_bias, m.hidden_padded, experts, normed(rows.scratch), rows.count,
                 work.experts.scores + static_cast<size_t>(rows.token) * pitch, pitch);
}

INLINE int best_of(const float* scores, int count) {
  int best = 0;
  for (int i = 1; i < count; i++) best = scores[i] > scores[best] ? i : best;
  return best;
}

// Factors are the softmax of all scores, or of the chosen ones (`renormalize`). Overwrites `scores`.
void StepRun::choose_by_softmax(float* scores, int32_t* chosen, float* shares) const {
  const Experts& experts = m.experts;
  const float top = scores[best_of(scores, experts.count)];
  float total = experts.renormalize ? 0.0f : sum_of_exponentials(scores, experts.count, top);
  for (int slot = 0; slot < experts.top_k; slot++) {
    const int best = chosen[slot] = best_of(scores, experts.count);
    shares[slot] = exp2_one((scores[best] - top) * kLog2E);
    scores[best] = -__builtin_inff();
    if (experts.renormalize) total += shares[slot];
  }
  for (int slot = 0; slot < experts.top_k; slot++) shares[slot] /= total;
}

INLINE float score_of(Scoring scoring, float logit) {
  if (scoring == Scoring::kSigmoid) return sigmoid_one(logit);
  return __builtin_sqrtf(softplus_one(logit));
}

// Sum of the best `count` (one or two) ranks of a group, a score and its bias each.
INLINE float rank_of_group(const float* scores, const float* bias, int size, int count) {
  float best = -__builtin_inff(), second = best;
  for (int i = 0; i < size; i++) {
    const float rank = bias ? scores[i] + bias[i] : scores[i];
    if (rank > best) second = best, best = rank;
    else if (rank > second) second = rank;
  }
  return count == 1 || size == 1 ? best : best + second;
}

// Sets the scores outside of the best groups to -inf; the lower group of two equals wins.
INLINE void keep_best_groups(const ExpertChoice& choice, const float* bias, int count, float* scores) {
  const int size = count / choice.num_groups;
  float ranks[kMaxExpertGroups];
  for (int group = 0; group < choice.num_groups; group++) {
    const int first = group * size;
    ranks[group] = rank_of_group(scores + first, bias ? bias + first : nullptr, size, choice.scores_of_group);
  }
  bool kept[kMaxExpertGroups] = {};
  for (int i = 0; i < choice.top_groups; i++) {
    int best = -1;
    for (int group = 0; group < choice.num_groups; group++) {
      if (!kept[group] && (best < 0 || ranks[group] > ranks[best])) best = group;
    }
    kept[best] = true;
  }
  for (int i = 0; i < count; i++) scores[i] = kept[i / size] ? scores[i] : -__builtin_inff();
}

// Experts are chosen by their scores and biases, and their factors are their scores. Overwrites `scores`.
void StepRun::choose_by_scores(const float* bias, float* scores, int32_t* chosen, float* shares) const {
  const Experts& experts = m.experts;
  const ExpertChoice& choice = experts.choice;
  const int count = experts.count;
  if (choice.scoring == Scoring::kSoftmax) {
    const float top = scores[best_of(scores, count)], total = sum_of_exponentials(scores, count, top);
    for (int i = 0; i < count; i++) scores[i] = exp2_one((scores[i] - top) * kLog2E) / total;
  } else {
    for (int i = 0; i < count; i++) scores[i] = score_of(choice.scoring, scores[i]);
  }
  if (choice.num_groups > 1) keep_best_groups(choice, bias, count, scores);
  float total = 0.0f;
  for (int slot = 0; slot < experts.top_k; slot++) {
    int best = 0;
    for (int i = 1; bias && i < count; i++) best = scores[i] + bias[i] > scores[best] + bias[best] ? i : best;
    if (!bias) best = best_of(scores, count);
    chosen[slot] = best;
    total += shares[slot] = scores[best];
    scores[best] = -__builtin_inff();
  }
  if (!experts.renormalize) return;
  for (int slot = 0; slot < experts.top_k; slot++) shares[slot] /= total + choice.sum_floor;
}

// Factors are each the softmax of the scores near that of the choice, without those chosen before (Liu et al. 2023).
// Overwrites `scores`.
void StepRun::choose_by_sparsemixer(float* scores, int32_t* chosen, float* shares) const {
  const Experts& experts = m.experts;
  for (int slot = 0; slot < experts.top_k; slot++) {
    const int best = chosen[slot] = best_of(scores, experts.count);
    const float top = scores[best];
    float total = 0.0f;
    for (int i = 0; i < experts.count; i++) {
      const float size = __builtin_fabsf(scores[i]), distance = (top - scores[i]) / (size > top ? size : top);
      const bool is_chosen = scores[i] == -__builtin_inff();
      if (!is_chosen && !(distance > experts.tolerance)) total += exp2_one((scores[i] - top) * kLog2E);
    }
    shares[slot] = 1.0f / total;
    scores[best] = -__builtin_inff();
  }
}

// Chooses the experts of rows, the best first and the lower one of two equals, and their factors.
void StepRun::choose_experts(int index, Share tokens) const {
  const Experts& experts = m.experts;
  const Layer& layer = m.layers[index];
  for (int token = tokens.begin; token < tokens.end; token++) {
    float* scores = work.experts.scores + static_cast<size_t>(token) * experts.score_pitch();
    int32_t* chosen = work.experts.chosen + static_cast<size_t>(token) * experts.slots();
    float* shares = work.experts.shares + static_cast<size_t>(token) * experts.slots();
    const float gate = experts.has_shared_gate ? sigmoid_one(scores[experts.count]) : 1.0f;
    if (step.all_scores) {
      float* out = step.all_scores + (static_cast<size_t>(index) * step.num_tokens + token) * experts.count;
      __builtin_memcpy(out, scores, sizeof(float) * experts.count);
    }
    if (experts.choice.softcap > 0) cap_scores(scores, 0, static_cast<int>(round_up(experts.count, W)), experts.choice.softcap);
    if (experts.tolerance > 0) choose_by_sparsemixer(scores, chosen, shares);
    else if (experts.choice.by_logits) choose_by_softmax(scores, chosen, shares);
    else choose_by_scores(layer.choice_bias, scores, chosen, shares);
    for (int slot = 0; slot < experts.top_k; slot++) {
      shares[slot] *= layer.expert_scales ? layer.expert_scales[chosen[slot]] : experts.choice.scale;
    }
    for (int i = 0; i < experts.num_shared; i++) {
      chosen[experts.top_k + i] = experts.count + i;
      shares[experts.top_k + i] = gate;
    }
  }
}
