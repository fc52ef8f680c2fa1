#include "base/process.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define IOPRIO_WHO_PROCESS 1
/* Class "best effort", lowest level.  Not "idle": merges that starve would make lookups slow and
 * stop flushes in the end. */
#define IOPRIO_LOWEST ((2 << 13) | 7)
#define NICE 10

int32_t
fbk_process_die_with_parent(void)
{
    return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 ? 0 : -errno;
}

int32_t
fbk_process_confine(int32_t is_dumpable)
{
    /* No program that it runs gets more rights; no other process of its user attaches to it, reads
     * its memory, reopens its descriptors or gets a core of it.  exec takes the second one back. */
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_DUMPABLE, is_dumpable, 0, 0, 0) != 0)
        return -errno;
    return 0;
}

void
fbk_process_lower_thread(void)
{
    syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_LOWEST);
    setpriority(PRIO_PROCESS, 0, NICE); /* on Linux: of the thread */
}
