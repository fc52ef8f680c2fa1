/* The codec of streams' entries: see boundary/stream.h and boundary/stream_columns.h, which are the
 * whole of it.  Pure functions over bytes. */
#pragma once

#include "base/base.h"

#include "boundary/status.h"
#include "boundary/stream.h"
#include "boundary/stream_columns.h"
