// The Python face of the native runtime.
#include <nanobind/nanobind.h>

NB_MODULE(_native, m) { m.doc() = "Headrace's native CPU runtime."; }
