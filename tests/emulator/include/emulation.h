// CUDA C for a C++ compiler: included before the first line of a kernel file. Declarations and small inline functions
// only (no C++ standard library), so that a kernel compiles fast; the rest is in ../runtime, compiled once.
#pragma once
#ifndef __x86_64__
#error "the emulator switches threads with x86-64 assembly; no other CPU is supported"
#endif
#define DDTREE_EMULATED 1
#include "emulation/language.h"
#include "emulation/thread.h"
#include "emulation/barriers.h"
#include "emulation/warp.h"
#include "emulation/math.h"
#include "emulation/atomics.h"
#include "emulation/hardware.h"
#include "emulation/entry.h"
