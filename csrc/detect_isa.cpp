// Prints the name of the isa_*.cpp that CMake compiles for this machine.
#include <cstdio>

#include "cpu.h"

int main() { std::puts(headrace::best_isa()); }
