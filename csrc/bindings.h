#pragma once

#include <nanobind/nanobind.h>

#include "runtime.h"

namespace headrace {

void bind_steps(nanobind::class_<Runtime>& runtime);

}  // namespace headrace
