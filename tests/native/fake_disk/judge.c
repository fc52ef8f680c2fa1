/* Every operation on the fake disk is counted, judged against the faults that were ordered, and
 * logged. */
#include "parts.h"

#include "base/segment.h"

#define LOG_EVENTS_MAX (1u << 20)

void
fake_wake_all(struct fbk_fake *disk)
{
    for (struct fake_io *io = disk->ios; io != NULL; io = io->next)
        fbk_bell_ring(io->wake_fd);
    FBK_ASSERT(pthread_cond_broadcast(&disk->unlocked) == 0);
}

void
fake_cut(struct fbk_fake *disk)
{
    disk->off = true;
    fake_wake_all(disk);
}

static struct fake_verdict
judge(struct fbk_fake *disk, uint32_t kind)
{
    struct fake_verdict verdict = {0};
    for (uint32_t i = 0; i < disk->fault_count; i++) {
        struct fake_fault *fault = &disk->faults[i];
        if (fault->kind != FBK_FAKE_ANY && fault->kind != kind)
            continue;
        if (fault->wait > 0 && --fault->wait > 0)
            continue;
        if (fault->times == 0)
            continue;
        if (verdict.action == 0) {
            verdict.action = fault->action;
            verdict.argument = fault->argument;
            fault->times--;
        }
    }
    return verdict;
}

int32_t
fake_begin(struct fbk_fake *disk, uint32_t kind, const struct fake_file *file,
           uint64_t offset_bytes, uint32_t size_bytes, uint32_t flags, struct fake_verdict *verdict)
{
    if (disk->off)
        return -ESHUTDOWN;
    if (kind != FBK_FAKE_OPEN && kind != FBK_FAKE_READ && kind != FBK_FAKE_LIST)
        fake_moment(disk);
    *verdict = judge(disk, kind);
    disk->operations++;
    disk->operations_of[kind]++;
    verdict->event = disk->log.count;
    if (disk->log.count < LOG_EVENTS_MAX) {
        struct fbk_fake_event *event = fake_vector_add(&disk->log, sizeof *event);
        if (event != NULL)
            *event = (struct fbk_fake_event){
                .number = disk->operations,
                .kind = kind,
                .file = file == NULL ? 0 : file->number,
                .offset_bytes = offset_bytes,
                .size_bytes = size_bytes,
                .flags = flags,
            };
    }
    if (verdict->action == FBK_FAKE_CUT)
        fake_cut(disk);
    return 0;
}

int32_t
fake_end(struct fbk_fake *disk, const struct fake_verdict *verdict, int32_t result)
{
    if (verdict->event < disk->log.count)
        ((struct fbk_fake_event *)disk->log.items)[verdict->event].result = result;
    return result;
}
