#pragma once

#include <stdint.h>

#include "boundary/fault.h"

/* Named places where a process dies in tests (tests/crash/test_kill_points.py finds them by this
 * macro).
 *
 * They are in release builds too, so that what is tested is what is shipped: an unarmed point is
 * one load of an int that never changes and a branch that is never taken, once a batch or call,
 * never once an entry. */
extern int32_t fbk_kill_points_armed;

#define FBK_KILL_POINT(name)                            \
    do {                                                \
        if (__builtin_expect(fbk_kill_points_armed, 0)) \
            fbk_kill_point_pass(name);                  \
    } while (0)
