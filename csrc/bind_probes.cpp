// Bindings of the kernel timings, used by `benchmarks/roofline` only.
#include "probes.h"

#include <nanobind/stl/string.h>

#include "bindings.h"

namespace headrace {

void bind_probes(nanobind::module_& m) {
  namespace nb = nanobind;
  using nb::literals::operator""_a;
  using Released = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<ProductTimer>(m, "ProductTimer")
      .def(nb::init<const std::string&, int32_t, int32_t, int, const std::string&, int>(), "kind"_a, "num_outputs"_a,
           "num_inputs"_a, nb::kw_only(), "num_copies"_a, "isa"_a, "num_threads"_a, Released())
      .def_prop_ro("matrix_bytes", &ProductTimer::matrix_bytes)
      .def("time", &ProductTimer::time, "num_rows"_a, "num_products"_a, Released());
  m.def("peak_operations", peak_operations, "kind"_a, nb::kw_only(), "isa"_a, "num_threads"_a, Released());
  m.def("read_bandwidth", read_bandwidth, "memory"_a, nb::kw_only(), "isa"_a, "num_threads"_a, Released());
}

}  // namespace headrace
