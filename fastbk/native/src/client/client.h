/* The client's codec: see boundary/client.h, which is the whole of it.  Pure functions over bytes. */
#ifndef FBK_CLIENT_H
#define FBK_CLIENT_H

#include "base/base.h"

#include "boundary/client.h"

#endif
