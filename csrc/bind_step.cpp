// Bindings of steps: arrays in, arrays out, with the GIL released while the kernels run.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <vector>

#include "bindings.h"

namespace headrace {

namespace {

namespace nb = nanobind;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Words = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

// The optional inputs of a step. The Python tuples keep their arrays alive.
class Extras {
 public:
  Extras(int num_rows, int vocab) : rows(num_rows), vocab_(vocab) {}

  void add_histories(const nb::tuple& histories) {
    for (nb::handle history : histories) {
      RowExtras& extras = row_of(history);
      const auto tokens = nb::cast<Ints>(history.attr("tokens"), false);
      extras.history = tokens.data();
      extras.history_size = static_cast<int32_t>(tokens.shape(0));
      extras.num_prompt_tokens = nb::cast<int32_t>(history.attr("num_prompt_tokens"));
    }
  }

  void add_biases(const nb::tuple& biases) {
    for (nb::handle bias : biases) {
      RowExtras& extras = row_of(bias);
      const auto ids = nb::cast<Ints>(bias.attr("ids"), false);
      const auto values = nb::cast<Floats>(bias.attr("values"), false);
      require(ids.shape(0) == values.shape(0), "a bias needs as many values as ids");
      extras.bias_ids = ids.data();
      extras.bias_values = values.data();
      extras.num_biases = static_cast<int32_t>(ids.shape(0));
    }
  }

  void add_masks(const nb::tuple& masks) {
    for (nb::handle mask : masks) {
      const auto words = nb::cast<Words>(mask.attr("words"), false);
      require(words.shape(0) == static_cast<size_t>(vocab_ + 31) / 32, "a mask needs ceil(vocab / 32) words");
      row_of(mask).mask = words.data();
    }
  }

  std::vector<RowExtras> rows;

 private:
  RowExtras& row_of(nb::handle part) {
    const auto row = nb::cast<int64_t>(part.attr("row"));
    require(row >= 0 && row < static_cast<int64_t>(rows.size()), "a history, bias or mask names a missing row");
    return rows[static_cast<size_t>(row)];
  }

  int vocab_;
};

// The states of a step (`StateStep` of inference/runner/step.py), or none.
class States {
 public:
  States(const nb::object& states, size_t num_sequences) {
    if (states.is_none()) return;
    const auto ints = [&](const char* name) {
      arrays_.push_back(nb::cast<Ints>(states.attr(name), false));
      require(arrays_.back().shape(0) == num_sequences, "states must have one entry for each of context_lens");
      return arrays_.back().data();
    };
    step_.read = ints("read");
    step_.write = ints("write");
    step_.replayed = ints("replayed");
    step_.certain = ints("certain");
    snapshots_ = nb::cast<Table>(states.attr("snapshots"), false);
    require(snapshots_.shape(1) * sizeof(int32_t) == sizeof(Snapshot), "a snapshot needs a sequence, tokens and a slot");
    step_.snapshots = reinterpret_cast<const Snapshot*>(snapshots_.data());
    step_.num_snapshots = static_cast<int32_t>(snapshots_.shape(0));
  }
  const StateStep& step() const { return step_; }

 private:
  StateStep step_{};
  std::vector<Ints> arrays_;
  Table snapshots_;
};

// Returns an array for Python that owns its memory.
template <class T>
nb::object make_array(T* data, std::initializer_list<size_t> shape) {
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T>(data, shape, owner));
}

Step make_step(const Ints& token_ids, const Ints& query_starts, const Ints& context_lens, const Table& block_tables,
               const std::optional<Ints>& adapters = {}) {
  require(query_starts.shape(0) == context_lens.shape(0) + 1, "query_starts must have one entry more than context_lens");
  require(block_tables.shape(0) == context_lens.shape(0), "block_tables must have one row for each of context_lens");
  require(!adapters || adapters->shape(0) == context_lens.shape(0), "adapters must have one entry for each of context_lens");
  Step step{};
  step.adapters = adapters ? adapters->data() : nullptr;
  step.token_ids = token_ids.data();
  step.query_starts = query_starts.data();
  step.context_lens = context_lens.data();
  step.block_tables = block_tables.data();
  step.num_tokens = static_cast<int32_t>(token_ids.shape(0));
  step.num_sequences = static_cast<int32_t>(context_lens.shape(0));
  step.table_width = static_cast<int32_t>(block_tables.shape(1));
  return step;
}

// The inputs of layers, which the step overwrites.
using LayerInputs = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void add_layer_inputs(Step& step, const ModelConfig& config, const std::optional<LayerInputs>& inputs) {
  if (!inputs) return;
  require(inputs->shape(0) == static_cast<size_t>(step.num_tokens) &&
              inputs->shape(1) == static_cast<size_t>(config.num_layers) * config.layer_input_size,
          "layer_inputs must have one row for each token");
  step.layer_inputs = inputs->data();
}

void add_rows(Step& step, const Ints& rows) {
  step.rows = rows.data();
  step.num_rows = static_cast<int32_t>(rows.shape(0));
}

// Returns the largest number of alternatives of a row.
int32_t check_rows(const Step& step, const std::vector<RowExtras>& extras, int32_t vocab) {
  int32_t top_capacity = 0;
  for (size_t i = 0; i < extras.size(); i++) {
    require(step.sampling[i].num_top <= vocab, "num_top is larger than the vocabulary");
    check_sampling(step.sampling[i], extras[i], vocab);
    top_capacity = std::max(top_capacity, step.sampling[i].num_top);
  }
  return top_capacity;
}

// `sampling`: the bytes of an array of SAMPLING_DTYPE. Returns the fields of `StepOutput`, without the threads.
nb::tuple execute(Runtime& runtime, const Ints& token_ids, const Ints& query_starts, const Ints& context_lens,
                  const Table& block_tables, const Ints& rows, const Ints& hidden_rows, const Bytes& sampling,
                  const nb::tuple& histories, const nb::tuple& biases, const nb::tuple& masks,
                  const std::optional<Ints>& adapters, const std::optional<Ints>& token_types,
                  const nb::object& state_step, const std::optional<LayerInputs>& layer_inputs) {
  Step step = make_step(token_ids, query_starts, context_lens, block_tables, adapters);
  const States states(state_step, context_lens.shape(0));
  step.states = states.step();
  require(!token_types || token_types->shape(0) == token_ids.shape(0), "token_types must have one entry for each token");
  step.token_types = token_types ? token_types->data() : nullptr;
  add_rows(step, rows);
  add_layer_inputs(step, runtime.config(), layer_inputs);
  step.hidden_rows = hidden_rows.data();
  step.num_hidden_rows = static_cast<int32_t>(hidden_rows.shape(0));
  const size_t num_hidden = hidden_rows.shape(0), hidden_size = static_cast<size_t>(runtime.config().hidden_size);
  auto hidden = std::make_unique<float[]>(num_hidden * hidden_size);
  step.hidden = hidden.get();
  const size_t num_rows = static_cast<size_t>(step.num_rows);
  const int32_t vocab = runtime.config().vocab_size;
  require(sampling.shape(0) == num_rows * sizeof(SamplingRow), "every logit row needs its sampling");
  require(reinterpret_cast<uintptr_t>(sampling.data()) % alignof(SamplingRow) == 0, "sampling must be aligned");
  step.sampling = reinterpret_cast<const SamplingRow*>(sampling.data());
  Extras extras(step.num_rows, vocab);
  extras.add_histories(histories);
  extras.add_biases(biases);
  extras.add_masks(masks);
  step.extras = extras.rows.data();
  step.out.top_capacity = check_rows(step, extras.rows, vocab);
  const size_t num_top = num_rows * static_cast<size_t>(step.out.top_capacity);
  auto chosen = std::make_unique<int32_t[]>(num_rows), ranks = std::make_unique<int32_t[]>(num_rows);
  auto top_ids = std::make_unique<int32_t[]>(num_top);
  auto logprobs = std::make_unique<float[]>(num_rows), top_logprobs = std::make_unique<float[]>(num_top);
  step.out.token_ids = chosen.get();
  step.out.logprobs = logprobs.get();
  step.out.ranks = ranks.get();
  step.out.top_ids = top_ids.get();
  step.out.top_logprobs = top_logprobs.get();
  {
    nb::gil_scoped_release released;
    runtime.execute(step);
  }
  const size_t capacity = static_cast<size_t>(step.out.top_capacity);
  return nb::make_tuple(make_array(chosen.release(), {num_rows}), make_array(logprobs.release(), {num_rows}),
                        make_array(ranks.release(), {num_rows}), make_array(top_ids.release(), {num_rows, capacity}),
                        make_array(top_logprobs.release(), {num_rows, capacity}),
                        make_array(hidden.release(), {num_hidden, hidden_size}));
}

nb::object logits(Runtime& runtime, const Ints& token_ids, const Ints& query_starts, const Ints& context_lens,
                  const Table& block_tables, const Ints& rows, const std::optional<Ints>& adapters,
                  const nb::object& state_step, const std::optional<LayerInputs>& layer_inputs) {
  Step step = make_step(token_ids, query_starts, context_lens, block_tables, adapters);
  const States states(state_step, context_lens.shape(0));
  step.states = states.step();
  add_rows(step, rows);
  add_layer_inputs(step, runtime.config(), layer_inputs);
  const size_t num_rows = static_cast<size_t>(step.num_rows), vocab = static_cast<size_t>(runtime.config().vocab_size);
  auto out = std::make_unique<float[]>(num_rows * vocab);
  step.all_logits = out.get();
  {
    nb::gil_scoped_release released;
    runtime.execute(step);
  }
  return make_array(out.release(), {num_rows, vocab});
}

// Returns the scores of every row in the router of each layer; NaN in dense layers.
nb::object router_scores(Runtime& runtime, const Ints& token_ids, const Ints& query_starts, const Ints& context_lens,
                         const Table& block_tables, const nb::object& state_step) {
  Step step = make_step(token_ids, query_starts, context_lens, block_tables);
  const States states(state_step, context_lens.shape(0));
  step.states = states.step();
  const size_t num_layers = static_cast<size_t>(runtime.config().num_layers);
  const size_t num_experts = static_cast<size_t>(runtime.config().num_experts);
  const size_t num_tokens = static_cast<size_t>(step.num_tokens);
  auto out = std::make_unique<float[]>(num_layers * num_tokens * num_experts);
  std::fill_n(out.get(), num_layers * num_tokens * num_experts, std::numeric_limits<float>::quiet_NaN());
  step.all_scores = out.get();
  {
    nb::gil_scoped_release released;
    runtime.execute(step);
  }
  return make_array(out.release(), {num_layers, num_tokens, num_experts});
}

using Matrix32 = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// `parts`: (shrink, expand, first_row, interleaved) of each part of the packed matrix, or None.
void set_adapter(Runtime& runtime, int32_t slot, int32_t layer, const std::string& matrix, const nb::list& parts) {
  std::vector<AdapterPart> read;
  for (nb::handle item : parts) {
    AdapterPart part{};
    if (!item.is_none()) {
      const auto fields = nb::cast<nb::tuple>(item);
      require(fields.size() == 4, "a part needs shrink, expand, first_row and interleaved");
      const auto shrink = nb::cast<Matrix32>(fields[0], false), expand = nb::cast<Matrix32>(fields[1], false);
      require(shrink.shape(0) == expand.shape(1), "shrink and expand differ in rank");
      require(shrink.shape(0) <= 4096 && shrink.shape(1) < (1u << 30) && expand.shape(0) < (1u << 30),
              "the factors of an adapter are too large");
      part = {static_cast<int32_t>(shrink.shape(0)), static_cast<int32_t>(expand.shape(0)),
              static_cast<int32_t>(shrink.shape(1)), shrink.data(), expand.data(), nb::cast<int32_t>(fields[2]),
              nb::cast<bool>(fields[3])};
    }
    read.push_back(part);
  }
  nb::gil_scoped_release released;
  runtime.adapters().set(slot, layer, matrix, read);
}

}  // namespace

void bind_steps(nb::class_<Runtime>& runtime) {
  using nb::literals::operator""_a;
  runtime.def("execute", execute, "token_ids"_a.noconvert(), "query_starts"_a.noconvert(), "context_lens"_a.noconvert(),
              "block_tables"_a.noconvert(), "rows"_a.noconvert(), "hidden_rows"_a.noconvert(), "sampling"_a.noconvert(),
              "histories"_a, "biases"_a, "masks"_a, "adapters"_a.noconvert().none(),
              "token_types"_a.noconvert().none(), "states"_a.none() = nb::none(),
              "layer_inputs"_a.noconvert().none() = nb::none());
  runtime.def("logits", logits, "token_ids"_a.noconvert(), "query_starts"_a.noconvert(), "context_lens"_a.noconvert(),
              "block_tables"_a.noconvert(), "rows"_a.noconvert(), "adapters"_a.noconvert().none(),
              "states"_a.none() = nb::none(), "layer_inputs"_a.noconvert().none() = nb::none());
  runtime.def("router_scores", router_scores, "token_ids"_a.noconvert(), "query_starts"_a.noconvert(),
              "context_lens"_a.noconvert(), "block_tables"_a.noconvert(), "states"_a.none() = nb::none());
  runtime.def("clear_adapter", [](Runtime& self, int32_t slot) { self.adapters().clear(slot); }, "slot"_a);
  runtime.def("set_adapter", set_adapter, "slot"_a, "layer"_a, "matrix"_a, "parts"_a);
}

}  // namespace headrace
