// Python bindings of the native runtime, typed in `_native.pyi` and used by `headrace.inference.runner`.
#include "bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <system_error>

#include "cpu.h"
#include "isa.h"
#include "pack.h"
#include "pack_w4.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace headrace {

namespace {

using ReadOnlyBytes = nb::ndarray<const uint8_t, nb::c_contig, nb::device::cpu>;

void bind_config(nb::module_& m) {
  nb::class_<AttentionShape>(m, "AttentionShape")
      .def(nb::init<>())
      .def_rw("num_heads", &AttentionShape::num_heads)
      .def_rw("num_kv_heads", &AttentionShape::num_kv_heads)
      .def_rw("head_dim", &AttentionShape::head_dim)
      .def_rw("keys_as_values", &AttentionShape::keys_as_values);
  nb::class_<Mla>(m, "Mla")
      .def(nb::init<>())
      .def_rw("rank", &Mla::rank)
      .def_rw("query_rank", &Mla::query_rank)
      .def_rw("key_dim", &Mla::key_dim)
      .def_rw("rope_dim", &Mla::rope_dim)
      .def_rw("value_dim", &Mla::value_dim)
      .def_rw("eps", &Mla::eps)
      .def_rw("growth", &Mla::growth)
      .def_rw("growth_period", &Mla::growth_period);
  nb::class_<ModelConfig>(m, "ModelConfig")
      .def(nb::init<>())
      .def_rw("mla", &ModelConfig::mla)
      .def_rw("dtype", &ModelConfig::dtype)
      .def_rw("kv_dtype", &ModelConfig::kv_dtype)
      .def_rw("num_layers", &ModelConfig::num_layers)
      .def_rw("hidden_size", &ModelConfig::hidden_size)
      .def_rw("intermediate_size", &ModelConfig::intermediate_size)
      .def_rw("num_heads", &ModelConfig::num_heads)
      .def_rw("num_kv_heads", &ModelConfig::num_kv_heads)
      .def_rw("head_dim", &ModelConfig::head_dim)
      .def_rw("attention_shapes", &ModelConfig::attention_shapes)
      .def_rw("kv_sources", &ModelConfig::kv_sources)
      .def_rw("mixers", &ModelConfig::mixers)
      .def_rw("conv_taps", &ModelConfig::conv_taps)
      .def_rw("delta_key_heads", &ModelConfig::delta_key_heads)
      .def_rw("delta_value_heads", &ModelConfig::delta_value_heads)
      .def_rw("delta_key_dim", &ModelConfig::delta_key_dim)
      .def_rw("delta_value_dim", &ModelConfig::delta_value_dim)
      .def_rw("delta_taps", &ModelConfig::delta_taps)
      .def_rw("delta_is_tiled", &ModelConfig::delta_is_tiled)
      .def_rw("delta_by_channel", &ModelConfig::delta_by_channel)
      .def_rw("delta_beta_scale", &ModelConfig::delta_beta_scale)
      .def_rw("delta_norm_eps", &ModelConfig::delta_norm_eps)
      .def_rw("conv_bias", &ModelConfig::conv_bias)
      .def_rw("mlps", &ModelConfig::mlps)
      .def_rw("attention_beside", &ModelConfig::attention_beside)
      .def_rw("ssd_heads", &ModelConfig::ssd_heads)
      .def_rw("ssd_head_dim", &ModelConfig::ssd_head_dim)
      .def_rw("ssd_state_size", &ModelConfig::ssd_state_size)
      .def_rw("ssd_groups", &ModelConfig::ssd_groups)
      .def_rw("ssd_norm", &ModelConfig::ssd_norm)
      .def_rw("ssd_norm_eps", &ModelConfig::ssd_norm_eps)
      .def_rw("vocab_size", &ModelConfig::vocab_size)
      .def_rw("num_positions", &ModelConfig::num_positions)
      .def_rw("causal", &ModelConfig::causal)
      .def_rw("embedding_norm", &ModelConfig::embedding_norm)
      .def_rw("first_attn_norm", &ModelConfig::first_attn_norm)
      .def_rw("num_token_types", &ModelConfig::num_token_types)
      .def_rw("activation", &ModelConfig::activation)
      .def_rw("norm", &ModelConfig::norm)
      .def_rw("norms", &ModelConfig::norms)
      .def_rw("norm_bias", &ModelConfig::norm_bias)
      .def_rw("parallel", &ModelConfig::parallel)
      .def_rw("shared_norm", &ModelConfig::shared_norm)
      .def_rw("gated_mlp", &ModelConfig::gated_mlp)
      .def_rw("tie_embeddings", &ModelConfig::tie_embeddings)
      .def_rw("qkv_bias", &ModelConfig::qkv_bias)
      .def_rw("o_bias", &ModelConfig::o_bias)
      .def_rw("state_norms", &ModelConfig::state_norms)
      .def_rw("qk_norm", &ModelConfig::qk_norm)
      .def_rw("mlp_bias", &ModelConfig::mlp_bias)
      .def_rw("head_bias", &ModelConfig::head_bias)
      .def_rw("norm_eps", &ModelConfig::norm_eps)
      .def_rw("post_norm_eps", &ModelConfig::post_norm_eps)
      .def_rw("embedding_scale", &ModelConfig::embedding_scale)
      .def_rw("attention_scale", &ModelConfig::attention_scale)
      .def_rw("attention_softcap", &ModelConfig::attention_softcap)
      .def_rw("logit_softcap", &ModelConfig::logit_softcap)
      .def_rw("qkv_clip", &ModelConfig::qkv_clip)
      .def_rw("swiglu_limit", &ModelConfig::swiglu_limit)
      .def_rw("attention_gate", &ModelConfig::attention_gate)
      .def_rw("gate_activation", &ModelConfig::gate_activation)
      .def_rw("sinks", &ModelConfig::sinks)
      .def_rw("value_norm", &ModelConfig::value_norm)
      .def_rw("layer_scales", &ModelConfig::layer_scales)
      .def_rw("layer_input_size", &ModelConfig::layer_input_size)
      .def_rw("intermediate_sizes", &ModelConfig::intermediate_sizes)
      .def_rw("own_norms", &ModelConfig::own_norms)
      .def_rw("windows", &ModelConfig::windows)
      .def_rw("distance_slopes", &ModelConfig::distance_slopes)
      .def_rw("num_experts", &ModelConfig::num_experts)
      .def_rw("top_k", &ModelConfig::top_k)
      .def_rw("expert_size", &ModelConfig::expert_size)
      .def_rw("num_shared_experts", &ModelConfig::num_shared_experts)
      .def_rw("renormalize", &ModelConfig::renormalize)
      .def_rw("expert_bias", &ModelConfig::expert_bias)
      .def_rw("router_bias", &ModelConfig::router_bias)
      .def_rw("expert_tolerance", &ModelConfig::expert_tolerance)
      .def_rw("scoring", &ModelConfig::scoring)
      .def_rw("group_score", &ModelConfig::group_score)
      .def_rw("num_groups", &ModelConfig::num_groups)
      .def_rw("top_groups", &ModelConfig::top_groups)
      .def_rw("choice_bias", &ModelConfig::choice_bias)
      .def_rw("router_softcap", &ModelConfig::router_softcap)
      .def_rw("sum_floor", &ModelConfig::sum_floor)
      .def_rw("factor_scale", &ModelConfig::factor_scale)
      .def_rw("latent_size", &ModelConfig::latent_size)
      .def_rw("shared_size", &ModelConfig::shared_size)
      .def_rw("shared_gate", &ModelConfig::shared_gate)
      .def_rw("expert_layers", &ModelConfig::expert_layers)
      .def_rw("layer_formats", &ModelConfig::layer_formats)
      .def_rw("rope_frequencies", &ModelConfig::rope_frequencies)
      .def_rw("rope_factors", &ModelConfig::rope_factors)
      .def_rw("rope_of_layer", &ModelConfig::rope_of_layer);
  nb::class_<Limits>(m, "Limits")
      .def(nb::init<>())
      .def_rw("num_blocks", &Limits::num_blocks)
      .def_rw("max_step_tokens", &Limits::max_step_tokens)
      .def_rw("max_step_sequences", &Limits::max_step_sequences)
      .def_rw("max_step_rows", &Limits::max_step_rows)
      .def_rw("max_context_tokens", &Limits::max_context_tokens)
      .def_rw("max_adapters", &Limits::max_adapters)
      .def_rw("max_adapter_rank", &Limits::max_adapter_rank)
      .def_rw("num_state_slots", &Limits::num_state_slots)
      .def_rw("max_draft_tokens", &Limits::max_draft_tokens);
  nb::class_<Slot>(m, "Slot")
      .def_ro("name", &Slot::name)
      .def_ro("is_vector", &Slot::is_vector)
      .def_ro("num_rows", &Slot::num_rows)
      .def_ro("num_columns", &Slot::num_columns)
      .def_ro("offset", &Slot::offset)
      .def_ro("num_bytes", &Slot::num_bytes);
}

// Returns the memory of an arena as a writable array, which keeps the arena alive.
nb::object arena_view(nb::handle_t<Arena> self) {
  const Arena& arena = nb::cast<const Arena&>(self);
  const size_t shape[1] = {arena.size()};
  return nb::cast(nb::ndarray<nb::numpy, uint8_t>(arena.data(), 1, shape, self));
}

uint64_t fill_arena(Arena& arena, const ReadOnlyBytes& source, int num_threads) {
  if (source.nbytes() != arena.size()) throw std::invalid_argument("the source and the arena differ in size");
  const uint8_t* data = source.data();
  nb::gil_scoped_release released;
  return copy_and_checksum(arena.data(), data, arena.size(), num_threads);
}

uint64_t checksum_arena(const Arena& arena, int num_threads) {
  nb::gil_scoped_release released;
  return copy_and_checksum(nullptr, arena.data(), arena.size(), num_threads);
}

void pack_tensor(Arena& arena, const Slot& slot, const std::string& encoding, const ReadOnlyBytes& data,
                 int32_t num_rows, int32_t num_columns, int32_t first_row, bool interleaved, int num_threads) {
  const PackSource source = {parse_encoding(encoding), data.data(), num_rows, num_columns, first_row, interleaved};
  check_source(slot, source, data.nbytes(), arena.size());
  nb::gil_scoped_release released;
  pack_rows(slot, arena.data() + slot.offset, source, num_threads);
}

using Floats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Importance = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
nb::object owned_array(std::unique_ptr<T[]> data, size_t rows, size_t columns) {
  T* pointer = data.release();
  const nb::capsule owner(pointer, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  const size_t shape[2] = {rows, columns};
  return nb::cast(nb::ndarray<nb::numpy, T>(pointer, 2, shape, owner));
}

// Returns nibbles (N, K), scales (N, K / 32) as the bits of halves or bf16, and zero points (N, K / 32).
nb::tuple quantize_int4_matrix(const Floats& values, std::optional<Importance> importance, bool bf16_scales,
                               int num_threads) {
  const size_t rows = values.shape(0), columns = values.shape(1), groups = columns / kW4Group;
  if (columns % kW4Group) throw std::invalid_argument("expected rows of a multiple of 32 numbers");
  if (importance && importance->shape(0) != columns) throw std::invalid_argument("expected the importance of each column");
  auto nibbles = std::make_unique<uint8_t[]>(rows * columns);
  auto scales = std::make_unique<uint16_t[]>(rows * groups);
  auto zeros = std::make_unique<uint8_t[]>(rows * groups);
  {
    nb::gil_scoped_release released;
    quantize_int4_rows(values.data(), importance ? importance->data() : nullptr, bf16_scales,
                       static_cast<int64_t>(rows), static_cast<int64_t>(columns), nibbles.get(), scales.get(),
                       zeros.get(), num_threads);
  }
  return nb::make_tuple(owned_array(std::move(nibbles), rows, columns), owned_array(std::move(scales), rows, groups),
                        owned_array(std::move(zeros), rows, groups));
}

void bind_packing(nb::module_& m) {
  nb::class_<Arena>(m, "Arena")
      .def(nb::init<size_t>(), "num_bytes"_a)
      .def_static(
          "map",
          [](const std::string& path, size_t offset, size_t num_bytes, bool writable) {
            try {
              return Arena::map(path, offset, num_bytes, writable);
            } catch (const std::system_error& error) {
              PyErr_SetObject(PyExc_OSError, nb::make_tuple(error.code().value(), error.what(), path).ptr());
              throw nb::python_error();
            }
          },
          "path"_a, "offset"_a, "num_bytes"_a, nb::kw_only(), "writable"_a)
      .def("populate", &Arena::populate, "num_threads"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("view", arena_view)
      .def("fill", fill_arena, "source"_a, "num_threads"_a)
      .def("checksum", checksum_arena, "num_threads"_a);
  m.def("layout", [](const ModelConfig& config) { return make_layout(config).slots; }, "config"_a);
  m.def("layout_bytes", [](const ModelConfig& config) { return make_layout(config).total_bytes; }, "config"_a);
  m.def("quantize_int4", quantize_int4_matrix, "values"_a, "importance"_a.none(), nb::kw_only(),
        "bf16_scales"_a = false, "num_threads"_a);
  m.def("pack_tensor", pack_tensor, "arena"_a, "slot"_a, "encoding"_a, "data"_a, "num_rows"_a, "num_columns"_a,
        nb::kw_only(), "first_row"_a, "interleaved"_a, "num_threads"_a);
}

// Returns the seconds by phase, one dict for each thread.
nb::list profile_of(const Runtime& runtime) {
  nb::list threads;
  for (const PhaseTimes& times : runtime.profile()) {
    nb::dict phases;
    for (int i = 0; i < kNumPhases; i++) phases[kPhaseNames[i]] = static_cast<double>(times.nanoseconds[i]) * 1e-9;
    threads.append(phases);
  }
  return threads;
}

// Returns memory of a runtime as a writable array of rows, which keeps the runtime alive.
nb::object rows_of(nb::handle_t<Runtime> self, uint8_t* data, size_t num_rows, size_t row_bytes) {
  const size_t shape[2] = {num_rows, row_bytes};
  return nb::cast(nb::ndarray<nb::numpy, uint8_t>(data, 2, shape, self));
}

nb::object kv_blocks(nb::handle_t<Runtime> self) {
  const Runtime& runtime = nb::cast<const Runtime&>(self);
  return rows_of(self, runtime.kv_data(), static_cast<size_t>(runtime.limits().num_blocks), kv_block_bytes(runtime.config()));
}

nb::object state_slots(nb::handle_t<Runtime> self) {
  const StateSlots& states = nb::cast<const Runtime&>(self).states();
  return rows_of(self, states.data(), static_cast<size_t>(states.num_slots()), states.slot_bytes());
}

void bind_runtime(nb::module_& m) {
  m.def("workspace_bytes", workspace_bytes, "config"_a, "limits"_a, "num_threads"_a);
  m.def("adapter_bytes", adapter_bytes, "config"_a, "limits"_a);
  m.def("state_slot_bytes", state_slot_bytes, "config"_a, "max_draft_tokens"_a);
  m.def("kv_block_bytes", kv_block_bytes, "config"_a);
  m.def("available_isas", available_isas);
  m.def("best_isa", best_isa);
  m.def("built_isas", built_isas);
  m.def("cpu_features", cpu_features);
  m.def("has_native_bf16", [](const std::string& isa) { return select_kernels(isa).has_native_bf16; }, "isa"_a);
  m.attr("BLOCK_TOKENS") = kBlockTokens;
  nb::class_<ThreadBudget>(m, "ThreadBudget")
      .def(nb::init<int>(), "num_threads"_a)
      .def("size", &ThreadBudget::size, "now"_a)
      .def("record", &ThreadBudget::record, "now"_a, "elapsed"_a, "lost"_a);
  nb::class_<Runtime> runtime(m, "Runtime");
  runtime
      .def(
          "__init__",
          [](Runtime* self, const ModelConfig& config, const Limits& limits, std::shared_ptr<Arena> weights,
             int num_threads, const std::string& isa) {
            new (self) Runtime(config, limits, std::move(weights), num_threads, isa);
          },
          "config"_a, "limits"_a, "weights"_a, nb::kw_only(), "num_threads"_a, "isa"_a)
      .def("start_profile", &Runtime::start_profile)
      .def("profile", profile_of)
      .def_prop_ro("isa", [](const Runtime& self) { return self.kernels().name; })
      .def_prop_ro("has_native_bf16", [](const Runtime& self) { return self.kernels().has_native_bf16; })
      .def_prop_ro("num_threads", &Runtime::num_threads)
      .def_prop_ro("num_active_threads", &Runtime::num_active_threads)
      .def_prop_ro("num_barrier_rounds", &Runtime::num_barrier_rounds)
      .def_prop_ro("weights_bytes", &Runtime::weights_bytes)
      .def_prop_ro("workspace_bytes", &Runtime::workspace_bytes)
      .def_prop_ro("kv_bytes", &Runtime::kv_bytes)
      .def_prop_ro("state_bytes", &Runtime::state_bytes)
      .def("kv_blocks", kv_blocks)
      .def("state_slots", state_slots);
  bind_steps(runtime);
}

}  // namespace

}  // namespace headrace

NB_MODULE(_native, m) {
  m.doc() = "Headrace's native CPU runtime.";
  headrace::bind_config(m);
  headrace::bind_packing(m);
  headrace::bind_runtime(m);
  headrace::bind_probes(m);
  headrace::bind_sampling(m);
}
