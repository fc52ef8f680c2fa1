#ifndef FBK_LOAD_H
#define FBK_LOAD_H

#include "base/base.h"

#include "boundary/load.h"

uint64_t fbk_load_now_ns(void);

#endif
