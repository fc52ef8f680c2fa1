/* The fake disk: files in memory with, per sector of 512 bytes, what is durable and what is not
 * yet; names the same. Faults come by count, crashes are resolved by seed, so every run can be
 * repeated.
 *
 * Strict where real ones differ: a durable write makes only its own bytes durable, a name needs its
 * directory's sync, a failed sync loses what it should have written although reads go on seeing it,
 * and a direct write that is not aligned is refused. It also finds a caller that changes a buffer
 * before its write is complete (an assert). */
#pragma once

#include "io/io.h"

#include "boundary.h"
