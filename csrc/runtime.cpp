#include "runtime.h"

#include <algorithm>
#include <cmath>

#include "isa.h"
#include "needed_rows.h"
#include "parallel.h"
#include "require.h"

namespace headrace {

size_t kv_cache_bytes(const ModelConfig& config, const Limits& limits) {
  return kv_block_bytes(config) * static_cast<size_t>(limits.num_blocks);
}

Runtime::Runtime(const ModelConfig& config, const Limits& limits, std::shared_ptr<const Arena> weights,
                 int num_threads, const std::string& isa)
    : config_(config), limits_(limits), kernels_(select_kernels(isa)), weights_(std::move(weights)),
      adapters_(config, limits), states_(config, limits), state_cache_(states_.cache()), model_(make_dimensions(config)) {
  workspace_bytes_ = headrace::workspace_bytes(config, limits, num_threads);
  require(config.num_positions == 0 || limits.max_context_tokens <= config.num_positions,
          "the context has " + std::to_string(limits.max_context_tokens) + " tokens; expected at most " +
              std::to_string(config.num_positions) + ", which the model has positions for");
  const size_t expected = make_layout(config).total_bytes;
  require(weights_->size() == expected, "the packed weights have " + std::to_string(weights_->size()) +
                                            " bytes; expected " + std::to_string(expected));
  const size_t scratch_bytes = static_cast<size_t>(num_threads) * SampleScratch::bytes(config.vocab_size);
  kv_memory_ = Arena(kv_cache_bytes(config, limits));
  workspace_memory_ = Arena(workspace_bytes_ - scratch_bytes);
  Carver carver(workspace_memory_.data());
  work_ = carve_workspace(config, model_, limits, num_threads, carver);
  ropes_ = carve_ropes(config, limits, carver);
  for (size_t i = 0; i < ropes_.size(); i++) fill_rope(ropes_[i], config.rope_frequencies[i], config.rope_factors[i]);
  kv_layout_ = make_kv_layout(config);
  kv_ = {kv_memory_.data(), config.kv_kind(), kv_layout_.block_bytes, kv_layout_.places.data()};
  connect_weights();
  model_.adapters = adapters_.table();
  for (int i = 0; i < num_threads; i++) scratch_.push_back(std::make_unique<SampleScratch>(config.vocab_size));
  for (const auto& scratch : scratch_) scratch_pointers_.push_back(scratch.get());
  team_ = std::make_unique<Team>(num_threads, num_row_blocks(limits.max_step_tokens, num_threads));
}

void Runtime::fill_rope(float* table, const std::vector<double>& frequencies, double factor) const {
  const size_t half = frequencies.size();
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  constexpr size_t kPositions = 1024;
  const size_t count = static_cast<size_t>(limits_.max_context_tokens), pieces = (count + kPositions - 1) / kPositions;
  parallel_for(pieces, threads, [&](size_t piece) {
    for (size_t p = piece * kPositions; p < std::min(count, (piece + 1) * kPositions); p++) {
      for (size_t i = 0; i < half; i++) {
        const double angle = static_cast<double>(p) * frequencies[i];
        const double scale = frequencies[i] == 0 ? 1.0 : factor;  // a pair that does not turn keeps its length
        table[p * 2 * half + i] = static_cast<float>(scale * std::cos(angle));
        table[p * 2 * half + half + i] = static_cast<float>(scale * std::sin(angle));
      }
    }
  });
}

namespace {

Matrix matrix_at(const Slot& slot, const uint8_t* base) {
  return {slot.kind, slot.num_rows / kPanel, slot.num_columns, panel_bytes(slot.kind, slot.num_columns),
          base + slot.offset};
}

Heads heads_of(const ModelConfig& config, int index) {
  const AttentionShape shape = config.attention(index);
  const double usual = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  const float scale = config.attention_scale > 0 ? config.attention_scale : static_cast<float>(usual);
  return {shape.num_heads, shape.num_kv_heads, shape.num_heads / shape.num_kv_heads, shape.head_dim, config.owns_kv(index),
          shape.keys_as_values, config.num_gates(index), scale,
          config.mla.rank > 0, config.mla.rank > 0 ? config.mla.rank : shape.head_dim,
          config.mla.rank > 0 ? config.mla.value_dim : shape.head_dim};
}

}  // namespace

void Runtime::connect_weights() {
  const Layout layout = make_layout(config_);
  const uint8_t* base = weights_->data();
  model_.final_norm = config_.norms == "stream" ? Norm{} : norm_at(layout, "final_norm");
  model_.distance_slopes = config_.distance_slopes.empty() ? nullptr : config_.distance_slopes.data();
  model_.embed_norm = config_.embedding_norm ? norm_at(layout, "embed_norm") : Norm{};
  model_.token_types = config_.num_token_types > 0 ? vector_at(layout, "token_types") : nullptr;
  model_.positions = config_.num_positions > 0 ? vector_at(layout, "positions") : nullptr;
  if (config_.layer_input_size > 0) {
    model_.layer_proj = matrix_at(layout.find("layer_proj"), base);
    model_.layer_proj_norm = vector_at(layout, "layer_proj_norm");
  }
  model_.head_bias = config_.head_bias ? vector_at(layout, "lm_head_bias") : nullptr;
  model_.embed = matrix_at(layout.find("embed"), base);
  model_.lm_head = matrix_at(layout.find(config_.tie_embeddings ? "embed" : "lm_head"), base);
  layers_.resize(config_.num_layers);
  for (int i = 0; i < config_.num_layers; i++) connect_layer(layout, i);
  model_.layers = layers_.data();
}

const float* Runtime::vector_at(const Layout& layout, const std::string& name) const {
  return reinterpret_cast<const float*>(weights_->data() + layout.find(name).offset);
}

Norm Runtime::norm_at(const Layout& layout, const std::string& name) const {
  const bool is_after = name.find(".post_") != std::string::npos;
  return {vector_at(layout, name), config_.norm_bias ? vector_at(layout, name + "_bias") : nullptr,
          is_after ? config_.post_norm_eps : config_.norm_eps};
}

void Runtime::connect_layer(const Layout& layout, int index) {
  const uint8_t* base = weights_->data();
  const std::string prefix = "layers." + std::to_string(index) + ".";
  const auto vector = [&](const std::string& name, bool is_there) {
    return is_there ? vector_at(layout, prefix + name) : nullptr;
  };
  const auto norm = [&](const std::string& name, bool is_there) {
    return is_there ? norm_at(layout, prefix + name) : Norm{};
  };
  const auto matrix = [&](const std::string& name) { return matrix_at(layout.find(prefix + name), base); };
  Layer& layer = layers_[index];
  layer.heads = heads_of(config_, index);
  const bool mixes = config_.mixer(index) != Mixer::kNone, has_mlp = config_.has_mlp(index);
  layer.attn_norm = norm("attn_norm", mixes && config_.has_attn_norm(index));
  layer.mlp_norm = norm(config_.shared_norm ? "attn_norm" : "mlp_norm", has_mlp && config_.has_norms_before(index));
  layer.post_attn_norm = norm("post_attn_norm", mixes && config_.has_norms_after(index));
  layer.post_mlp_norm = norm("post_mlp_norm", has_mlp && config_.has_norms_after(index));
  layer.qkv_bias = vector("qkv_bias", config_.qkv_bias && config_.attends(index));
  states_.connect(layer.state, index);
  const bool attends = layer.attends = config_.attends(index);
  const bool has_state = keeps_state(layer.state.mixer), has_scan = layer.state.mixer == Mixer::kSsd;
  layer.state.filter = vector("mix_conv", has_state);
  layer.state.filter_bias = vector("mix_conv_bias", has_state && config_.conv_bias);
  layer.state.ssd.decay = vector("mix_decay", has_scan);
  layer.state.ssd.dt_bias = vector("mix_dt_bias", has_scan);
  layer.state.ssd.skip = vector("mix_skip", has_scan);
  layer.state.ssd.norm = vector("mix_norm", has_scan && config_.ssd_norm);
  layer.state.small = vector("mix_small", layer.state.num_gates > 0);
  const bool has_delta = layer.state.mixer == Mixer::kDelta;
  layer.state.delta.decay = vector("mix_decay", has_delta);
  layer.state.delta.dt_bias = vector("mix_dt_bias", has_delta);
  layer.state.delta.norm = vector("mix_norm", has_delta);
  layer.state.delta.dt_b = vector("mix_dt_b", has_delta && layer.state.delta.by_channel);
  layer.state.delta.z_b = vector("mix_z_b", has_delta && layer.state.delta.by_channel);
  layer.o_bias = vector("o_bias", config_.o_bias && attends);
  const bool routed = has_mlp && config_.has_experts(index);
  const bool biased = has_mlp && (routed ? config_.expert_bias : config_.mlp_bias);
  layer.gate_up_bias = vector("gate_up_bias", biased);
  layer.down_bias = vector("down_bias", biased);
  layer.xielu = vector("xielu", model_.activation == Activation::kXielu);
  layer.sinks = vector("sinks", config_.sinks && attends);
  const bool by_head = attends && config_.has_norm_of_heads();
  const bool by_output = attends && !config_.qk_norm.empty() && !by_head;
  layer.q_norm = vector("q_norm", by_head);
  layer.k_norm = vector("k_norm", by_head && layer.heads.owns_kv);
  layer.q_norms = vector("q_norm", by_output);
  layer.k_norms = vector("k_norm", by_output && layer.heads.owns_kv);
  layer.router = vector("router", routed);
  layer.router_bias = vector("router_bias", routed && config_.router_bias);
  layer.choice_bias = vector("choice_bias", routed && config_.choice_bias);
  if (mixes) {
    layer.qkv = matrix(attends ? "qkv" : "mix_in");
    if (config_.has_own_values(index)) layer.v = matrix("v");
    if (attends && has_state) layer.mix_out = matrix("mix_out");
    layer.o = matrix("o");
  }
  if (has_mlp) {
    layer.gate_up = matrix("gate_up");
    layer.down = matrix("down");
  }
  if (routed && config_.latent_size > 0) {
    layer.latent_down = matrix("latent_down");
    layer.latent_up = matrix("latent_up");
  }
  const bool has_latents = attends && config_.mla.rank > 0, has_query_latents = has_latents && config_.mla.query_rank > 0;
  layer.q_a_norm = vector("q_a_norm", has_query_latents);
  layer.kv_a_norm = vector("kv_a_norm", has_latents);
  if (has_query_latents) layer.q_b = matrix("q_b");
  if (has_latents) {
    layer.k_b = matrix("k_b");
    layer.v_b = matrix("v_b");
  }
  if (routed && config_.shared_size > 0) {
    layer.shared_gate_up = matrix("shared_gate_up");
    layer.shared_down = matrix("shared_down");
  }
  const bool own_norms = routed && config_.own_norms;
  layer.router_norm = norm("router_norm", own_norms);
  layer.expert_norm = norm("expert_norm", own_norms);
  layer.shared_post_norm = norm("shared_post_norm", own_norms);
  layer.expert_post_norm = norm("expert_post_norm", own_norms);
  layer.expert_scales = vector("expert_scales", own_norms);
  if (config_.layer_input_size > 0) {
    layer.input_gate = matrix("input_gate");
    layer.input_out = matrix("input_out");
    layer.input_norm = norm("input_norm", true);
  }
  layer.scale = config_.layer_scales ? *vector_at(layout, prefix + "layer_scale") : 1.0f;
  layer.window = config_.windows.empty() ? 0 : config_.windows[index];
  layer.rope = ropes_[config_.rope(index)];
}

void Runtime::execute(const Step& step) {
  check(step);
  const int32_t storing = model_.storing_layers, num_layers = model_.num_layers;
  // Layers that store nothing need only the rows of outputs. Scores are returned of all rows.
  const bool is_split = storing < num_layers && step.num_rows + step.num_hidden_rows < step.num_tokens && !step.all_scores;
  run_layers(step, 0, is_split ? storing : num_layers);
  if (is_split && step.num_rows + step.num_hidden_rows > 0) {
    const NeededRows needed(step, work_);
    needed.gather(model_, work_);
    run_layers(needed.step(), storing, num_layers);
  }
  states_.finish(step);
}

void Runtime::run_layers(const Step& step, int32_t first_layer, int32_t end_layer) {
  locate_rows(step);
  StepContext context = {&model_, &kv_, &state_cache_, &work_, &step, first_layer, end_layer, team_.get(),
                         scratch_pointers_.data(), profile_.empty() ? nullptr : profile_.data()};
  struct Call {
    const Kernels* kernels;
    const StepContext* context;
  } call = {&kernels_, &context};
  team_->run(
      [](void* argument, int thread) {
        const Call& call = *static_cast<const Call*>(argument);
        call.kernels->run_step(*call.context, thread);
      },
      &call, step.num_tokens <= column_rows(team_->size()));
}

namespace {

void check_ascending(const char* name, const int32_t* rows, int32_t num_rows, int32_t num_tokens) {
  for (int i = 0; i < num_rows; i++) {
    const int before = i ? rows[i - 1] : -1;
    if (rows[i] <= before || rows[i] >= num_tokens) fail(std::string(name) + " must ascend and lie within the step");
  }
}

}  // namespace

void Runtime::check(const Step& step) const {
  const auto at_most = [](const char* name, int64_t count, int64_t limit) {
    if (count > limit) fail(std::to_string(count) + " " + name + "; expected at most " + std::to_string(limit));
  };
  if (step.num_tokens <= 0 || step.num_sequences <= 0) fail("the step is empty");
  at_most("tokens", step.num_tokens, limits_.max_step_tokens);
  at_most("sequences", step.num_sequences, limits_.max_step_sequences);
  at_most("logit rows", step.num_rows, limits_.max_step_rows);
  at_most("hidden rows", step.num_hidden_rows, limits_.max_step_tokens);
  if (step.query_starts[0] != 0) fail("query_starts must begin at 0");
  if (step.query_starts[step.num_sequences] != step.num_tokens) fail("query_starts must end at the number of tokens");
  for (int i = 0; i < step.num_tokens; i++) {
    const int32_t token = step.token_ids[i];
    if (token < 0 || token >= config_.vocab_size) fail("token id " + std::to_string(token) + " is not in the vocabulary");
  }
  for (int i = 0; step.token_types && i < step.num_tokens; i++) {
    const int32_t type = step.token_types[i];
    if (type < 0 || type >= config_.num_token_types) fail("token type " + std::to_string(type) + " does not exist");
  }
  if ((config_.layer_input_size > 0) != (step.layer_inputs != nullptr)) fail("the inputs of layers are missing or not expected");
  check_ascending("rows", step.rows, step.num_rows, step.num_tokens);
  check_ascending("hidden_rows", step.hidden_rows, step.num_hidden_rows, step.num_tokens);
  for (int i = 0, j = 0; i < step.num_rows && j < step.num_hidden_rows;) {
    if (step.rows[i] == step.hidden_rows[j]) fail("a row cannot be both a logit row and a hidden row");
    step.rows[i] < step.hidden_rows[j] ? i++ : j++;
  }
  for (int s = 0; s < step.num_sequences; s++) check_sequence(step, s);
  states_.check(step);
  if (step.adapters && adapters_.size() == 0) fail("there are no adapter slots");
  for (int s = 0; step.adapters && s < step.num_sequences; s++) {
    const int32_t slot = step.adapters[s];
    if (slot < -1 || slot >= adapters_.size()) fail("sequence " + std::to_string(s) + " names adapter slot " + std::to_string(slot));
  }
}

void Runtime::check_sequence(const Step& step, int s) const {
  const auto name = [&] { return "sequence " + std::to_string(s); };
  const int64_t start = step.query_starts[s], stop = step.query_starts[s + 1], context = step.context_lens[s];
  if (start < 0 || stop <= start || stop > step.num_tokens) fail(name() + " needs a token, and query_starts must ascend");
  if (context < 0) fail(name() + " has a negative context");
  if (!config_.causal && context > 0) fail(name() + " has a context, but this network computes a sequence in one step");
  const int64_t total = context + stop - start, blocks = (total + kBlockTokens - 1) / kBlockTokens;
  if (total > limits_.max_context_tokens) {
    fail(name() + " has " + std::to_string(total) + " tokens; expected at most " +
         std::to_string(limits_.max_context_tokens));
  }
  if (blocks > step.table_width) fail("the block table of " + name() + " is too short");
  const int32_t* table = step.block_tables + static_cast<size_t>(s) * step.table_width;
  for (int64_t i = 0; i < blocks; i++) {
    if (table[i] >= 0 && table[i] < limits_.num_blocks) continue;
    fail(name() + " names block " + std::to_string(table[i]) + " of " + std::to_string(limits_.num_blocks));
  }
}

void Runtime::locate_rows(const Step& step) {
  for (int s = 0; s < step.num_sequences; s++) {
    for (int row = step.query_starts[s]; row < step.query_starts[s + 1]; row++) {
      work_.row_sequence[row] = s;
      work_.row_position[row] = step.context_lens[s] + row - step.query_starts[s];
      if (step.adapters) work_.row_adapter[row] = step.adapters[s];
    }
  }
}

}  // namespace headrace
