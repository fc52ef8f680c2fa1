#include "fbk_process.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>

int32_t
fbk_process_die_with_parent(void)
{
    return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 ? 0 : -errno;
}
