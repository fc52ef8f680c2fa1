#ifndef FBK_PROCESS_H
#define FBK_PROCESS_H

#include <stdint.h>

#include "boundary/process.h"

#endif
