#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "sampling_arithmetic.h"

namespace headrace {
namespace {

constexpr int32_t kGuesses[] = {64, 512};  // numbers of best tokens tried first as the nucleus of top-p
constexpr float kGreedyTemperature = 1e-5f;
constexpr float kMaxTemperature = 1e30f;

// Returns the mass of a `share` of `total`, at least 1.
uint64_t share_of(float share, uint64_t total) {
  double mass = std::nearbyint(static_cast<double>(share) * static_cast<double>(total));
  return mass < 1.0 ? 1 : static_cast<uint64_t>(mass);
}

// A row of logits with the intermediate results of sampling it.
class Row {
 public:
  Row(const float* logits, int32_t vocab, SampleScratch& scratch)
      : logits_(logits), vocab_(vocab), num_blocks_((vocab + kBlock - 1) / kBlock), scratch_(scratch) {}

  // Scans all logits; returns false if no token can be drawn. Call again after the logits change.
  bool scan() {
    bool is_finite = find_block_max(logits_, vocab_, scratch_.block_max.data());
    best_ = *std::max_element(scratch_.block_max.begin(), scratch_.block_max.begin() + num_blocks_);
    return is_finite && best_ > -kInfinity;
  }

  int32_t argmax() const {
    auto block = std::find(scratch_.block_max.begin(), scratch_.block_max.end(), best_) - scratch_.block_max.begin();
    return static_cast<int32_t>(std::find(logits_ + block * kBlock, logits_ + vocab_, best_) - logits_);
  }

  // Computes `logprob` and writes the best alternatives.
  void report_best(int32_t num_top, SampleResult& result) {
    uint64_t total = find_block_mass(logits_, vocab_, best_, 1.0f, scratch_.block_mass.data());
    log_total_ = std::log(static_cast<double>(total) / static_cast<double>(kBestMass));
    num_top = std::min(num_top, vocab_);
    if (num_top == 0) return;
    gather_best(num_top);
    order_by_logit();
    auto sooner = [this](int32_t a, int32_t b) { return is_sooner(a, b); };
    int32_t* order = scratch_.order.data();
    std::partial_sort(order, order + num_top, order + num_candidates_, sooner);
    for (int32_t i = 0; i < num_top; ++i) {
      result.top_ids[i] = scratch_.ids[order[i]];
      result.top_logprobs[i] = logprob(result.top_ids[i]);
    }
  }

  float logprob(int32_t id) const { return static_cast<float>(static_cast<double>(logits_[id] - best_) - log_total_); }

  int32_t rank(int32_t id) const {
    const float logit = logits_[id];
    return 1 + static_cast<int32_t>(std::count_if(logits_, logits_ + vocab_, [logit](float x) { return x > logit; }));
  }

  int32_t choose(const SamplingRow& row) { return row.temperature >= kGreedyTemperature ? draw(row) : argmax(); }

 private:
  int32_t draw(const SamplingRow& row) {
    inverse_temperature_ = 1.0f / std::min(row.temperature, kMaxTemperature);
    bool has_top_k = row.top_k > 0 && row.top_k < vocab_;
    if (!has_top_k && !(row.min_p > 0) && !(row.typical_p < 1)) {
      return row.top_p < 1 ? draw_from_nucleus(row) : draw_from_all(row);
    }
    if (has_top_k) {
      gather_best(row.top_k);
      order_by_logit();
      keep_count(row.top_k);
    } else {
      float lowest = row.min_p > 0 ? std::log(std::min(row.min_p, 1.0f)) - 1e-3f : kNoMassExponent;
      gather_above(std::max(kNoMassExponent, lowest));
    }
    weigh();
    filter(row);
    return draw_from_candidates(row);
  }

  // Applies min-p, typical-p and top-p to the candidates.
  void filter(const SamplingRow& row) {
    if (row.min_p > 0) {
      uint64_t least = share_of(std::min(row.min_p, 1.0f), kBestMass);
      keep_if([this, least](int32_t i) { return scratch_.masses[i] >= least; });
    }
    if (row.typical_p < 1) {
      order_by_typicality();
      keep_mass(share_of(row.typical_p, candidate_mass()));
    }
    if (row.top_p < 1) {
      order_by_logit();
      keep_mass(share_of(row.top_p, candidate_mass()));
    }
  }

  float exponent(int32_t id) const { return (logits_[id] - best_) * inverse_temperature_; }

  // --- candidates: `ids` ascending and their `masses`

  // Candidates become the `count` best tokens and possibly more, but none worse than one left out.
  void gather_best(int32_t count) {
    float threshold = -kInfinity;
    if (count <= num_blocks_) {  // each of these blocks has a token at least as good as the count-th best block
      auto begin = scratch_.selection.begin();
      std::copy_n(scratch_.block_max.begin(), num_blocks_, begin);
      std::nth_element(begin, begin + (count - 1), begin + num_blocks_, std::greater<float>());
      threshold = begin[count - 1];
    }
    gather([threshold](float logit) { return logit >= threshold; });
  }

  // Candidates become all tokens whose exponent is at least `lowest`, and possibly a few more.
  void gather_above(float lowest) {
    double threshold = best_ + lowest * 1.0001 / inverse_temperature_;
    gather([threshold](float logit) { return logit >= threshold; });
  }

  template <typename Predicate>
  void gather(Predicate is_candidate) {
    int32_t* ids = scratch_.ids.data();
    int32_t count = 0;
    for (int32_t block = 0; block < num_blocks_; ++block) {
      if (!is_candidate(scratch_.block_max[block])) continue;
      int32_t stop = std::min((block + 1) * kBlock, vocab_);
      for (int32_t id = block * kBlock; id < stop; ++id) {
        ids[count] = id;
        count += is_candidate(logits_[id]);
      }
    }
    num_candidates_ = count;
  }

  void weigh() {
    for (int32_t i = 0; i < num_candidates_; ++i) scratch_.masses[i] = mass_of(exponent(scratch_.ids[i]));
  }

  uint64_t candidate_mass() const {
    uint64_t total = 0;
    for (int32_t i = 0; i < num_candidates_; ++i) total += scratch_.masses[i];
    return total;
  }

  template <typename Predicate>
  void keep_if(Predicate is_kept) {
    int32_t count = 0;
    for (int32_t i = 0; i < num_candidates_; ++i) {
      if (!is_kept(i)) continue;
      scratch_.ids[count] = scratch_.ids[i];
      scratch_.masses[count] = scratch_.masses[i];
      ++count;
    }
    num_candidates_ = count;
  }

  // --- orders: by key, ties by id

  bool is_sooner(int32_t a, int32_t b) const {
    return scratch_.keys[a] < scratch_.keys[b] || (scratch_.keys[a] == scratch_.keys[b] && a < b);
  }

  void order_by_logit() {
    for (int32_t i = 0; i < num_candidates_; ++i) {
      scratch_.keys[i] = -static_cast<double>(logits_[scratch_.ids[i]]);
      scratch_.order[i] = i;
    }
  }

  // Meister et al. 2022: tokens closer to the expected surprise come first. As log p = exponent - log Z, log Z
  // cancels between the surprise of a token and the mean.
  void order_by_typicality() {
    uint64_t sum = 0;
    for (int32_t i = 0; i < num_candidates_; ++i) {
      double weighted = static_cast<double>(scratch_.masses[i]) * surprise(i);
      sum += bits_of<uint64_t>(weighted + kRounder) - kRounderBits;
    }
    double mean = static_cast<double>(sum) / static_cast<double>(candidate_mass());
    for (int32_t i = 0; i < num_candidates_; ++i) {
      scratch_.keys[i] = std::fabs(surprise(i) - mean);
      scratch_.order[i] = i;
    }
  }

  double surprise(int32_t i) const { return -static_cast<double>(std::max(exponent(scratch_.ids[i]), kLowestExponent)); }

  // Keeps the first `count` in the order.
  void keep_count(int32_t count) {
    if (count >= num_candidates_) return;
    int32_t* order = scratch_.order.data();
    auto sooner = [this](int32_t a, int32_t b) { return is_sooner(a, b); };
    std::nth_element(order, order + (count - 1), order + num_candidates_, sooner);
    keep_until(order[count - 1]);
  }

  // Keeps the shortest prefix of the order that has mass `required`, which is at most that of all candidates.
  void keep_mass(uint64_t required) {
    int32_t* order = scratch_.order.data();
    auto sooner = [this](int32_t a, int32_t b) { return is_sooner(a, b); };
    int32_t low = 0, high = num_candidates_;  // the first `low` have too little, the first `high` enough
    uint64_t mass_before_low = 0;
    while (high - low > 1) {
      int32_t middle = low + (high - low) / 2;
      std::nth_element(order + low, order + middle, order + high, sooner);
      uint64_t mass = mass_before_low;
      for (int32_t i = low; i < middle; ++i) mass += scratch_.masses[order[i]];
      if (mass >= required) {
        high = middle;
      } else {
        low = middle;
        mass_before_low = mass;
      }
    }
    keep_until(order[low]);
  }

  void keep_until(int32_t last) {
    double last_key = scratch_.keys[last];
    keep_if([this, last, last_key](int32_t i) {
      return scratch_.keys[i] < last_key || (scratch_.keys[i] == last_key && i <= last);
    });
  }

  // --- draws: the token at which the cumulative mass, by id, passes a random point

  int32_t draw_from_candidates(const SamplingRow& row) const {
    uint64_t point = random_below(row.seed, row.position, candidate_mass());
    int32_t i = 0;
    for (uint64_t sum = scratch_.masses[0]; sum <= point; sum += scratch_.masses[i]) ++i;
    return scratch_.ids[i];
  }

  // Top-p alone: usually a few best tokens have the required share of the mass of the whole vocabulary.
  int32_t draw_from_nucleus(const SamplingRow& row) {
    uint64_t total = find_block_mass(logits_, vocab_, best_, inverse_temperature_, scratch_.block_mass.data());
    uint64_t required = share_of(row.top_p, total);
    for (int32_t guess : kGuesses) {
      gather_best(std::min(guess, num_blocks_));
      weigh();
      if (candidate_mass() >= required) break;
    }
    if (candidate_mass() < required) {
      gather_above(find_lowest(required));
      weigh();
    }
    order_by_logit();
    keep_mass(required);
    return draw_from_candidates(row);
  }

  // Returns an exponent such that the tokens above it have mass `required`, with few tokens more than needed.
  float find_lowest(uint64_t required) const {
    float too_high = 0, low_enough = kNoMassExponent;
    while (too_high - low_enough > 0.25f) {
      float middle = 0.5f * (too_high + low_enough);
      bool is_enough = find_mass_above(logits_, vocab_, best_, inverse_temperature_, middle) >= required;
      (is_enough ? low_enough : too_high) = middle;
    }
    return low_enough;
  }

  int32_t draw_from_all(const SamplingRow& row) {
    uint64_t total = find_block_mass(logits_, vocab_, best_, inverse_temperature_, scratch_.block_mass.data());
    uint64_t point = random_below(row.seed, row.position, total);
    int32_t block = 0;
    for (; point >= scratch_.block_mass[block]; ++block) point -= scratch_.block_mass[block];
    int32_t id = block * kBlock;
    for (uint64_t mass = mass_of(exponent(id)); point >= mass; mass = mass_of(exponent(id))) {
      point -= mass;
      ++id;
    }
    return id;
  }

  const float* logits_;
  int32_t vocab_;
  int32_t num_blocks_;
  SampleScratch& scratch_;
  float best_ = 0;
  float inverse_temperature_ = 1;
  double log_total_ = 0;
  int32_t num_candidates_ = 0;
};

// Copies the allowed logits; the others, which may not have been computed, become -inf.
void copy_allowed(float* to, const float* logits, int32_t vocab, const uint32_t* mask) {
  for (int32_t start = 0; start < vocab; start += 32) {
    uint32_t word = mask[start / 32];
    int32_t size = std::min(32, vocab - start);
    if (word == ~uint32_t{0}) {  // most words of a mask are all ones or all zeros
      std::copy_n(logits + start, size, to + start);
    } else if (word == 0) {
      std::fill_n(to + start, size, -kInfinity);
    } else {
      for (int32_t i = 0; i < size; ++i) to[start + i] = (word >> i & 1) ? logits[start + i] : -kInfinity;
    }
  }
}

// Applies the repetition penalty over prompt and answer, frequency and presence penalty over the answer.
// `counts` is 0 for unseen tokens, 1 for seen ones, plus 2 for each occurrence in the answer.
void apply_penalties(float* logits, const SamplingRow& row, const RowExtras& extras, int32_t* counts) {
  const int32_t* history = extras.history;
  for (int32_t i = 0; i < extras.history_size; ++i) {
    if (counts[history[i]] == 0) {
      float& logit = logits[history[i]];
      logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
      counts[history[i]] = 1;
    }
    if (i >= extras.num_prompt_tokens) counts[history[i]] += 2;
  }
  for (int32_t i = 0; i < extras.history_size; ++i) {
    int32_t count = counts[history[i]] / 2;
    counts[history[i]] = 0;
    if (count == 0) continue;
    float& logit = logits[history[i]];
    logit = logit - static_cast<float>(count) * row.frequency_penalty;
    logit = logit - row.presence_penalty;
  }
}

bool has_any(const RowExtras& extras) {
  return extras.mask != nullptr || extras.num_biases > 0 || extras.history_size > 0;
}

void adjust(float* logits, const SamplingRow& row, const RowExtras& extras, int32_t* counts) {
  for (int32_t i = 0; i < extras.num_biases; ++i) logits[extras.bias_ids[i]] += extras.bias_values[i];
  if (extras.history_size > 0) apply_penalties(logits, row, extras, counts);
}

// Returns the token of the row after mask, biases and penalties; -1 if there is none.
int32_t choose_adjusted(const float* logits, int32_t vocab, const SamplingRow& row, const RowExtras& extras,
                        SampleScratch& scratch) {
  float* adjusted = scratch.adjusted.data();
  if (extras.mask != nullptr) copy_allowed(adjusted, logits, vocab, extras.mask);
  else std::copy_n(logits, vocab, adjusted);
  adjust(adjusted, row, extras, scratch.counts.data());
  Row adjusted_row(adjusted, vocab, scratch);
  return adjusted_row.scan() ? adjusted_row.choose(row) : -1;
}

}  // namespace

SampleScratch::SampleScratch(int32_t vocab)
    : block_max((vocab + kBlock - 1) / kBlock),
      block_mass(block_max.size()),
      adjusted(vocab),
      counts(vocab),
      selection(block_max.size()),
      ids(vocab + 1),  // gathering writes one past the last candidate
      masses(vocab),
      keys(vocab),
      order(vocab) {}

size_t SampleScratch::bytes(int32_t vocab) {
  size_t tokens = vocab, blocks = (tokens + kBlock - 1) / kBlock;
  return blocks * (2 * sizeof(float) + sizeof(uint64_t)) +
         tokens * (sizeof(float) + 3 * sizeof(int32_t) + sizeof(uint64_t) + sizeof(double)) + sizeof(int32_t);
}

void sample_row(const float* logits, int32_t vocab, const SamplingRow& row, const RowExtras& extras, SampleScratch& scratch,
                SampleResult& result) {
  result.token = -1;
  result.rank = 0;
  result.logprob = std::numeric_limits<float>::quiet_NaN();
  std::fill_n(result.top_ids, result.top_capacity, -1);
  std::fill_n(result.top_logprobs, result.top_capacity, result.logprob);
  Row raw(logits, vocab, scratch);
  const bool reads_allowed_only = extras.mask != nullptr && row.num_top < 0 && row.target < 0;
  if (!reads_allowed_only && !raw.scan()) return;
  if (row.num_top >= 0) raw.report_best(row.num_top, result);
  if (row.target >= 0) {
    result.token = row.target;
  } else if (has_any(extras)) {
    result.token = choose_adjusted(logits, vocab, row, extras, scratch);
  } else {
    result.token = raw.choose(row);
  }
  if (row.num_top >= 0 && result.token >= 0) {
    result.logprob = raw.logprob(result.token);
    result.rank = raw.rank(result.token);
  }
}

}  // namespace headrace
