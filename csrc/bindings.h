#pragma once

#include <nanobind/nanobind.h>

#include "runtime.h"

namespace headrace {

void bind_probes(nanobind::module_& m);    // bind_probes.cpp
void bind_steps(nanobind::class_<Runtime>& runtime);
void bind_sampling(nanobind::module_& m);  // sampling_bindings.cpp

}  // namespace headrace
