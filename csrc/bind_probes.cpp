// Bindings of single kernels, used by `benchmarks/roofline` and tests only.
#include "probes.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <utility>
#include <vector>

#include "bindings.h"

namespace headrace {

namespace {

namespace nb = nanobind;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

nb::object multiply_rows(const std::string& kind, const Bytes& panels, const Rows& rows, int32_t terms, const std::string& isa) {
  const ProductInputs inputs = {kind, panels.data(), panels.nbytes(), rows.data(), static_cast<int32_t>(rows.shape(0)),
                                static_cast<int32_t>(rows.shape(1)), terms};
  auto products = std::make_unique<std::vector<float>>(multiply(inputs, isa));
  float* data = products->data();
  const size_t shape[2] = {rows.shape(0), products->size() / rows.shape(0)};
  const nb::capsule owner(products.release(), [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, float>(data, 2, shape, owner));
}

}  // namespace

void bind_probes(nanobind::module_& m) {
  using nb::literals::operator""_a;
  using Released = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<ProductTimer>(m, "ProductTimer")
      .def(nb::init<const std::string&, int32_t, int32_t, int, const std::string&, int>(), "kind"_a, "num_outputs"_a,
           "num_inputs"_a, nb::kw_only(), "num_copies"_a, "isa"_a, "num_threads"_a, Released())
      .def_prop_ro("matrix_bytes", &ProductTimer::matrix_bytes)
      .def("time", &ProductTimer::time, "num_rows"_a, "num_products"_a, Released());
  m.def("multiply", multiply_rows, "kind"_a, "panels"_a, "rows"_a, nb::kw_only(), "terms"_a, "isa"_a);
  m.def("peak_operations", peak_operations, "kind"_a, nb::kw_only(), "isa"_a, "num_threads"_a, Released());
  m.def("read_bandwidth", read_bandwidth, "memory"_a, nb::kw_only(), "isa"_a, "num_threads"_a, Released());
  m.def(
      "time_runs",
      [](int num_threads, int num_runs, int num_barriers, double pause_s, bool checks) {
        return time_runs({num_threads, num_runs, num_barriers, pause_s, checks});
      },
      "num_threads"_a, nb::kw_only(), "num_runs"_a, "num_barriers"_a, "pause_s"_a = 0.0, "checks"_a = false, Released());
}

}  // namespace headrace
