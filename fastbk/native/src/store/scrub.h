/* Finding out whether what is stored still is what was written; what the functions promise: ../boundary/scrub.h. */
#ifndef FBK_SCRUB_H
#define FBK_SCRUB_H

#include "store/store.h"

#include "boundary/scrub.h"

#endif
