/* The codec of streams' entries: see boundary/stream.h, which is the whole of it.  Pure functions over bytes. */
#ifndef FBK_STREAM_H
#define FBK_STREAM_H

#include "fbk_base.h"

#include "boundary/status.h"
#include "boundary/stream.h"

#endif
