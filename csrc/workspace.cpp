#include "workspace.h"

#include <algorithm>

#include "layout.h"
#include "require.h"

namespace headrace {

namespace {

constexpr int32_t kMaxAdapters = 1024, kMaxAdapterRank = 512, kMaxLimit = 1 << 24;

int32_t scratch_rows(const Limits& limits, int num_threads) {
  const int32_t columns = std::min(limits.max_step_tokens, kColumnRows);
  const int32_t blocks = limits.max_step_tokens > column_rows(1) ? num_threads * kBlockRows : 0;
  return std::max({columns, blocks, num_threads * kRedundantRows, std::min(limits.max_step_tokens, kLogitRows)});
}

// The format of the inputs of matrices.
struct InputFormat {
  size_t value_bytes;
  int32_t terms;
};

InputFormat input_format(const ModelConfig& config) {
  const int32_t terms = config.terms();
  return {config.main_kind() == WeightKind::kBf16 ? sizeof(float) : static_cast<size_t>(terms), terms};
}

// Allocates the inputs of matrices with up to `k` inputs.
Activations carve_activations(size_t rows, int32_t k, InputFormat format, Carver& carver) {
  const size_t groups = static_cast<size_t>(k) / kW4Group;
  Activations inputs{};
  inputs.values = carver.take<int8_t>(rows * k * format.value_bytes);
  inputs.scales = carver.take<float>(rows * groups);
  inputs.biases = carver.take<int32_t>(rows * groups * format.terms);
  inputs.sums = carver.take<float>(rows * groups);
  inputs.num_rows = rows;
  inputs.groups_pitch = static_cast<int32_t>(groups);
  inputs.terms = format.terms;
  return inputs;
}

ExpertWorkspace carve_experts(const Model& model, size_t tokens, InputFormat format, Carver& carver) {
  const Experts& experts = model.experts;
  ExpertWorkspace work{};
  if (experts.count == 0) return work;
  const size_t places = tokens * experts.slots(), total = experts.total();
  work.rows = carve_activations(tokens, experts.io_padded, format, carver);
  work.scores = carver.take<float>(tokens * experts.score_pitch());
  work.chosen = carver.take<int32_t>(places);
  work.shares = carver.take<float>(places);
  work.starts = carver.take<int32_t>(total + 1);
  work.places = carver.take<int32_t>(places);
  work.active = carver.take<int32_t>(total);
  work.num_active = carver.take<int32_t>(1);
  work.inputs = carve_activations(places, experts.io_padded, format, carver);
  work.gated_inputs = carve_activations(places, experts.size_padded, format, carver);
  work.outputs = carver.take<float>(places * experts.io_padded);
  work.beside = experts.own_norms ? carver.take<float>(tokens * model.hidden_padded) : nullptr;
  work.latent = experts.has_latent ? carver.take<float>(tokens * experts.io_padded) : nullptr;
  return work;
}

MlaWorkspace carve_mla(const ModelConfig& config, const Limits& limits, size_t scratch_rows, size_t threads, Carver& carver) {
  MlaWorkspace work{};
  const Mla& mla = config.mla;
  if (mla.rank == 0) return work;
  const size_t columns = std::min(limits.max_step_tokens, kColumnRows), dim = config.head_dim, heads = config.num_heads;
  work.thread_rows = static_cast<int32_t>(columns);
  work.query_pitch = static_cast<int32_t>(round_up(heads * mla.query_dim(), kPanel));
  if (mla.query_rank > 0) work.queries = carver.take<float>(scratch_rows * work.query_pitch);
  work.absorbed = carver.take<float>(columns * std::max(heads, threads) * dim);
  const size_t inputs = round_up(std::max(mla.key_dim, mla.rank), kDepth);
  work.inputs = carve_activations(threads * columns, static_cast<int32_t>(inputs), input_format(config), carver);
  return work;
}

void check_limits(const Limits& limits, int num_threads) {
  for (const int32_t limit : {limits.num_blocks, limits.max_step_tokens, limits.max_step_sequences, limits.max_step_rows,
                              limits.max_context_tokens})
    require(limit > 0 && limit <= kMaxLimit, "every limit must lie between 1 and " + std::to_string(kMaxLimit));
  require(limits.max_adapters >= 0 && limits.max_adapters <= kMaxAdapters, "max_adapters must lie between 0 and 1024");
  require(limits.max_adapters == 0 || (limits.max_adapter_rank > 0 && limits.max_adapter_rank <= kMaxAdapterRank),
          "max_adapter_rank must lie between 1 and 512");
  require(num_threads > 0 && num_threads <= 1024, "num_threads must lie between 1 and 1024");
}

}  // namespace

Workspace carve_workspace(const ModelConfig& config, const Model& model, const Limits& limits, int num_threads,
                          Carver& carver) {
  const InputFormat format = input_format(config);
  Workspace work{};
  const size_t tokens = limits.max_step_tokens, rows = scratch_rows(limits, num_threads), threads = num_threads;
  const size_t logit_rows = std::min<size_t>(tokens, kLogitRows);
  work.scratch_rows = static_cast<int32_t>(rows);
  work.gated_rows = std::min(limits.max_step_tokens, kColumnRows);
  work.x = carver.take<float>(tokens * model.hidden_padded);
  work.qkv = carver.take<float>(tokens * model.qkv_padded);
  work.gates = carver.take<float>(tokens * model.gates_pitch);
  work.scan = carver.take<float>(threads * model.scan_scratch);
  work.normed = carver.take<float>(model.experts.count > 0 || model.gates_pitch > 0 ? rows * model.hidden_padded : 0);
  work.wide = carver.take<float>(rows * model.attention_padded);
  work.gated = carver.take<float>(threads * work.gated_rows * kDepth);
  work.projected = carver.take<float>(rows * model.hidden_padded);
  const int32_t io = model.experts.io_padded, own = static_cast<int32_t>(round_up(model.layer_input_size, kDepth));
  const int32_t shared = static_cast<int32_t>(round_up(config.shared_size, kDepth));
  const auto query_rank = static_cast<int32_t>(round_up(config.mla.query_rank, kDepth));
  const int32_t widest_input = std::max({model.hidden_padded, model.attention_padded, io, query_rank});
  work.inputs = carve_activations(rows, widest_input, format, carver);
  work.gated_inputs = carve_activations(rows, std::max({model.intermediate_padded, shared, own}), format, carver);
  work.logits = carver.take<float>(logit_rows * model.vocab_padded);
  work.layer_products = carver.take<float>(rows * model.num_layers * model.layer_input_size);
  work.row_buffers = carver.take<float>(threads * model.hidden_padded);
  work.best = carver.take<BestLanes>(threads * kLogitRows);
  work.row_sequence = carver.take<int32_t>(tokens);
  work.row_position = carver.take<int32_t>(tokens);
  if (limits.max_adapters > 0) {
    work.row_adapter = carver.take<int32_t>(tokens);
    work.adapter_inner_pitch = kMaxProjections * static_cast<int32_t>(round_up(limits.max_adapter_rank, kRankBlock));
    work.adapter_inner = carver.take<int16_t>(rows * work.adapter_inner_pitch);
    work.adapter_inner_scales = carver.take<float>(rows * work.adapter_inner_pitch / kRankBlock);
    const int32_t widest = std::max({model.hidden_padded, model.attention_padded, model.intermediate_padded});
    work.adapter_inputs = carve_activations(threads, widest, {2, 2}, carver);
  }
  work.experts = carve_experts(model, tokens, format, carver);
  work.mla = carve_mla(config, limits, rows, threads, carver);
  return work;
}

std::vector<float*> carve_ropes(const ModelConfig& config, const Limits& limits, Carver& carver) {
  std::vector<float*> tables;
  for (size_t i = 0; i < config.rope_frequencies.size(); i++)
    tables.push_back(carver.take<float>(limits.max_context_tokens * 2 * config.rope_frequencies[i].size()));
  return tables;
}

size_t workspace_bytes(const ModelConfig& config, const Limits& limits, int num_threads) {
  check_limits(limits, num_threads);
  const Model model = make_dimensions(config);
  Carver counter(nullptr);
  carve_workspace(config, model, limits, num_threads, counter);
  carve_ropes(config, limits, counter);
  return counter.used() + static_cast<size_t>(num_threads) * SampleScratch::bytes(config.vocab_size);
}

}  // namespace headrace
