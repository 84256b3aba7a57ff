#include "states.h"

#include <algorithm>
#include <string>

#include "require.h"

namespace headrace {

namespace {

// A row of the delta rule is q, k, v and z, in whose place is the result. By channel the latents of decays and gates take
// the place of z, and the result follows.
StateLayer delta_sizes(const ModelConfig& config) {
  StateLayer state{};
  state.mixer = Mixer::kDelta;
  state.delta = {config.delta_key_heads, config.delta_value_heads, config.delta_key_dim, config.delta_value_dim,
                 config.delta_is_tiled,  config.delta_by_channel,  config.delta_beta_scale,
                 config.delta_norm_eps,  nullptr, nullptr, nullptr, nullptr, nullptr};
  state.channels = 2 * state.delta.num_keys() + state.delta.num_values();
  state.taps = config.delta_taps;
  state.num_units = state.delta.key_heads;
  state.mixed_padded = static_cast<int32_t>(round_up(state.delta.num_values(), kDepth));
  state.scan_size = static_cast<size_t>(state.delta.value_heads) * state.delta.head_size();
  if (state.delta.by_channel) {
    state.num_gates = state.delta.value_heads;
    state.num_latents = state.delta.key_dim;
    state.first_latent = state.channels;
    state.outputs = state.in_padded = static_cast<int32_t>(round_up(state.channels + 2 * state.num_latents, kPanel));
    state.row_size = state.outputs + state.mixed_padded;
    return state;
  }
  state.num_gates = 2 * state.delta.value_heads;
  state.outputs = state.channels;
  state.in_padded = state.row_size = static_cast<int32_t>(round_up(state.channels + state.mixed_padded, kPanel));
  return state;
}

// A row of a state space model is z, x, B and C; the result takes the place of z.
StateLayer ssd_sizes(const ModelConfig& config) {
  StateLayer state{};
  state.mixer = Mixer::kSsd;
  Ssd& ssd = state.ssd;
  ssd.heads = config.ssd_heads;
  ssd.head_dim = config.ssd_head_dim;
  ssd.state_size = config.ssd_state_size;
  ssd.groups = config.ssd_groups;
  ssd.norm_eps = config.ssd_norm_eps;
  state.channels = ssd.num_values() + 2 * ssd.groups * ssd.state_size;
  state.taps = config.conv_taps;
  state.num_gates = state.num_units = ssd.heads;
  state.conv_inputs = state.mixed_padded = ssd.num_values();
  state.row_size = ssd.num_values() + state.channels;
  state.in_padded = static_cast<int32_t>(round_up(state.row_size, kPanel));
  state.scan_size = static_cast<size_t>(ssd.heads) * ssd.head_size();
  return state;
}

// A row of a short convolution is B, C and x, all padded; the result takes the place of B.
StateLayer conv_sizes(const ModelConfig& config) {
  StateLayer state{};
  state.mixer = Mixer::kConv;
  state.channels = static_cast<int32_t>(round_up(config.hidden_size, kDepth));
  state.taps = config.conv_taps;
  state.num_units = state.channels / kDepth;
  state.conv_inputs = 2 * state.channels;
  state.in_padded = state.row_size = 3 * state.channels;
  state.mixed_padded = state.channels;
  return state;
}

constexpr int32_t kMaxDraftTokens = 1024;

// Lays out a slot: for each layer its scan, the inputs of its convolution, and the gates and latents of draft tokens.
std::vector<StateLayer> make_places(const ModelConfig& config, int32_t max_drafts, size_t* slot_floats) {
  std::vector<StateLayer> places;
  size_t used = 0;
  const auto take = [&](size_t count) {
    const size_t offset = used;
    used += round_up(count, 64 / sizeof(float));
    return offset;
  };
  for (int32_t i = 0; i < config.num_layers; i++) {
    StateLayer layer = state_sizes(config, i);
    if (keeps_state(layer.mixer)) {
      layer.scan = take(layer.scan_size);
      layer.rows = take(static_cast<size_t>(layer.taps - 1 + max_drafts) * layer.channels);
      layer.gates = take(static_cast<size_t>(max_drafts) * layer.num_gates);
      layer.latents = take(static_cast<size_t>(max_drafts) * layer.num_latents);
    }
    places.push_back(layer);
  }
  *slot_floats = used;
  return places;
}

}  // namespace

// Beside attention the row of a state follows q, k and v in a row of `qkv`.
StateLayer state_sizes(const ModelConfig& config, int32_t layer) {
  StateLayer state{};
  state.mixer = config.mixer(layer);
  if (!keeps_state(state.mixer)) return state;
  state = state.mixer == Mixer::kDelta ? delta_sizes(config) : state.mixer == Mixer::kSsd ? ssd_sizes(config) : conv_sizes(config);
  if (!config.attends(layer)) return state;
  const AttentionShape shape = config.attention(layer);
  const auto first = static_cast<int32_t>(round_up((shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim, kPanel));
  state.conv_inputs += first;
  state.outputs += first;
  state.row_size += first;
  return state;
}

size_t state_slot_bytes(const ModelConfig& config, int32_t max_draft_tokens) {
  config.check();
  require(max_draft_tokens >= 0 && max_draft_tokens <= kMaxDraftTokens, "max_draft_tokens must lie between 0 and 1024");
  size_t floats = 0;
  make_places(config, max_draft_tokens, &floats);
  return floats * sizeof(float);
}

StateSlots::StateSlots(const ModelConfig& config, const Limits& limits)
    : num_slots_(limits.num_state_slots), max_drafts_(limits.max_draft_tokens),
      slot_bytes_(state_slot_bytes(config, limits.max_draft_tokens)) {
  require((slot_bytes_ > 0) == (num_slots_ > 0), "state slots are for models with state layers, which need some");
  require(num_slots_ >= 0 && num_slots_ <= (1 << 20), "num_state_slots must lie between 0 and 1048576");
  size_t floats = 0;
  places_ = make_places(config, max_drafts_, &floats);
  // New sequences read the last slot, which stays zero: its pages are never allocated.
  if (num_slots_ > 0) memory_ = Arena((static_cast<size_t>(num_slots_) + 1) * slot_bytes_);
  num_drafts_.resize(static_cast<size_t>(num_slots_));
}

void StateSlots::connect(StateLayer& layer, int32_t index) const { layer = places_[static_cast<size_t>(index)]; }

StateCache StateSlots::cache() const {
  return {reinterpret_cast<float*>(memory_.data()), slot_bytes_ / sizeof(float), num_slots_};
}

void StateSlots::check(const Step& step) const {
  require((step.states.read != nullptr) == (num_slots_ > 0), "states are for models with state layers only");
  if (num_slots_ == 0) return;
  for (int32_t s = 0; s < step.num_sequences; s++) check_sequence(step, s);
  check_snapshots(step);
  check_writes(step.states, step.num_sequences);
}

void StateSlots::check_sequence(const Step& step, int32_t s) const {
  const StateStep& states = step.states;
  const std::string name = "sequence " + std::to_string(s);
  const int32_t read = states.read[s], write = states.write[s], replayed = states.replayed[s], certain = states.certain[s];
  const int32_t tokens = step.query_starts[s + 1] - step.query_starts[s];
  require(read >= -1 && read < num_slots_ && write >= 0 && write < num_slots_, name + " names a state slot that does not exist");
  require((read < 0) == (step.context_lens[s] == 0), name + ": only new sequences start without a state");
  require(certain >= 1 && certain <= tokens, name + " needs a certain token");
  require(tokens - certain <= max_drafts_, name + " has " + std::to_string(tokens - certain) +
                                               " draft tokens; expected at most " + std::to_string(max_drafts_));
  require(replayed >= 0 && replayed <= (read < 0 ? 0 : num_drafts_[static_cast<size_t>(read)]) &&
              replayed <= step.context_lens[s],
          name + " replays draft tokens that its slot does not hold");
}

void StateSlots::check_snapshots(const Step& step) const {
  const StateStep& states = step.states;
  for (int32_t i = 0; i < states.num_snapshots; i++) {
    const Snapshot& snapshot = states.snapshots[i];
    require(snapshot.sequence >= 0 && snapshot.sequence < step.num_sequences && snapshot.slot >= 0 && snapshot.slot < num_slots_,
            "a snapshot names a sequence or a state slot that does not exist");
    const int32_t known = states.replayed[snapshot.sequence] + states.certain[snapshot.sequence];
    require(snapshot.tokens > 0 && snapshot.tokens <= known, "a snapshot is not after a known token");
    if (i == 0) continue;
    const Snapshot& last = states.snapshots[i - 1];
    require(last.sequence < snapshot.sequence || (last.sequence == snapshot.sequence && last.tokens < snapshot.tokens),
            "snapshots must be in ascending order");
  }
}

void StateSlots::check_writes(const StateStep& states, int32_t num_sequences) const {
  std::vector<int32_t> written(states.write, states.write + num_sequences);
  for (int32_t i = 0; i < states.num_snapshots; i++) written.push_back(states.snapshots[i].slot);
  std::sort(written.begin(), written.end());
  require(std::adjacent_find(written.begin(), written.end()) == written.end(), "a state slot is written twice");
  for (int32_t s = 0; s < num_sequences; s++) {
    const bool is_written = std::binary_search(written.begin(), written.end(), states.read[s]);
    require(!is_written || states.read[s] == states.write[s], "a state slot is read by one sequence and written by another");
  }
}

void StateSlots::finish(const Step& step) {
  const StateStep& states = step.states;
  for (int32_t s = 0; states.read && s < step.num_sequences; s++) {
    const int32_t tokens = step.query_starts[s + 1] - step.query_starts[s];
    num_drafts_[static_cast<size_t>(states.write[s])] = tokens - states.certain[s];
  }
  for (int32_t i = 0; i < states.num_snapshots; i++) num_drafts_[static_cast<size_t>(states.snapshots[i].slot)] = 0;
}

}  // namespace headrace
