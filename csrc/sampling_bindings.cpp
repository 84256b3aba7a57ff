// `_native.sample_rows`: the sampler alone, on logits from Python, for runners that compute them outside this library.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "require.h"
#include "sampling.h"

namespace nb = nanobind;

namespace headrace {
namespace {

template <typename T, size_t N>
using Array = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using History = std::tuple<int32_t, Array<int32_t, 1>, int32_t>;
using Bias = std::tuple<int32_t, Array<int32_t, 1>, Array<float, 1>>;
using Mask = std::tuple<int32_t, Array<uint32_t, 1>>;

std::vector<SamplingRow> read_rows(const Array<uint8_t, 2>& sampling) {
  if (sampling.shape(1) != sizeof(SamplingRow)) throw std::invalid_argument("a sampling row has 56 bytes");
  std::vector<SamplingRow> rows(sampling.shape(0));
  if (!rows.empty()) std::memcpy(static_cast<void*>(rows.data()), sampling.data(), rows.size() * sizeof(SamplingRow));
  return rows;
}

std::vector<RowExtras> read_extras(size_t num_rows, const std::vector<History>& histories,
                                   const std::vector<Bias>& biases, const std::vector<Mask>& masks, size_t vocab) {
  std::vector<RowExtras> extras(num_rows);
  for (const auto& [row, tokens, num_prompt_tokens] : histories) {
    RowExtras& own = extras.at(row);
    own.history = tokens.data();
    own.history_size = static_cast<int32_t>(tokens.shape(0));
    own.num_prompt_tokens = num_prompt_tokens;
  }
  for (const auto& [row, ids, values] : biases) {
    RowExtras& own = extras.at(row);
    require(ids.shape(0) == values.shape(0), "a bias needs as many values as ids");
    own.bias_ids = ids.data();
    own.bias_values = values.data();
    own.num_biases = static_cast<int32_t>(ids.shape(0));
  }
  for (const auto& [row, words] : masks) {
    require(words.shape(0) == (vocab + 31) / 32, "a mask needs ceil(vocab / 32) words");
    extras.at(row).mask = words.data();
  }
  return extras;
}

template <typename T>
nb::ndarray<nb::numpy, T> to_numpy(std::vector<T> values, std::initializer_list<size_t> shape) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T>(owned->data(), shape, owner);
}

nb::tuple sample_rows(Array<float, 2> logits, Array<uint8_t, 2> sampling, std::vector<History> histories,
                      std::vector<Bias> biases, std::vector<Mask> masks) {
  std::vector<SamplingRow> rows = read_rows(sampling);
  if (logits.shape(0) != rows.size()) throw std::invalid_argument("every row of logits needs its sampling row");
  std::vector<RowExtras> extras = read_extras(rows.size(), histories, biases, masks, logits.shape(1));
  auto vocab = static_cast<int32_t>(logits.shape(1));
  int32_t num_columns = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    check_sampling(rows[i], extras[i], vocab);
    num_columns = std::max(num_columns, rows[i].num_top);
  }
  std::vector<int32_t> tokens(rows.size()), ranks(rows.size()), top_ids(rows.size() * num_columns);
  std::vector<float> logprobs(rows.size()), top_logprobs(top_ids.size());
  {
    nb::gil_scoped_release released;
    SampleScratch scratch(vocab);
    for (size_t i = 0; i < rows.size(); ++i) {
      size_t first = i * num_columns;
      SampleResult result{-1, 0, 0, top_ids.data() + first, top_logprobs.data() + first, num_columns};
      sample_row(logits.data() + i * vocab, vocab, rows[i], extras[i], scratch, result);
      tokens[i] = result.token;
      logprobs[i] = result.logprob;
      ranks[i] = result.rank;
    }
  }
  auto columns = static_cast<size_t>(num_columns);
  return nb::make_tuple(to_numpy(std::move(tokens), {rows.size()}), to_numpy(std::move(logprobs), {rows.size()}),
                        to_numpy(std::move(ranks), {rows.size()}), to_numpy(std::move(top_ids), {rows.size(), columns}),
                        to_numpy(std::move(top_logprobs), {rows.size(), columns}));
}

}  // namespace

void bind_sampling(nb::module_& m) {
  m.def("sample_rows", &sample_rows, nb::arg("logits"), nb::arg("sampling"), nb::arg("histories"), nb::arg("biases"),
        nb::arg("masks"),
        "Sample rows (R, V) as `sampling` says: the bytes (R, 56) of `SAMPLING_DTYPE`. Histories, biases and masks are "
        "tuples of the fields of the classes in `runner.step`. Returns the fields of `StepOutput`.");
}

}  // namespace headrace
