#include "base/flight.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/segment.h"

/* The samples lie at least 80, 320 and 1,280 ms apart, so that stalls of seconds are covered,
 * too. */
#define SAMPLES_APART_NS 20000000ull

_Atomic uint64_t fbk_flight_continued_ns;

/* SIGSTOP cannot be caught, SIGCONT can: so a commit that was slow because somebody stopped the
 * process is told from one whose disk was. */
static void
note_continue(int number)
{
    (void)number;
    int error = errno;
    atomic_store_explicit(&fbk_flight_continued_ns, fbk_now_ns(), memory_order_relaxed);
    errno = error;
}

int32_t
fbk_flight_watch_signals(void)
{
    struct sigaction action = {.sa_handler = note_continue, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    return sigaction(SIGCONT, &action, NULL) < 0 ? -errno : 0;
}

void
fbk_flight_open(struct fbk_flight_recorder *recorder, struct fbk_flight *flight)
{
    memset(recorder, 0, sizeof *recorder);
    recorder->flight = flight;
    /* This thread's, whoever reads it: the recorder is opened by the thread that it watches. */
    recorder->schedstat_fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
}

void
fbk_flight_close(struct fbk_flight_recorder *recorder)
{
    if (recorder->flight != NULL && recorder->schedstat_fd >= 0)
        close(recorder->schedstat_fd);
    recorder->flight = NULL;
    recorder->schedstat_fd = -1;
}

/* "time on processors, time spent waiting for one, times", in nanoseconds. */
static uint64_t
delayed_ns(int32_t fd)
{
    char text[96];
    ssize_t size = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
    if (size <= 0)
        return 0;
    text[size] = 0;
    char *second;
    (void)strtoull(text, &second, 10);
    return strtoull(second, NULL, 10);
}

static struct fbk_flight_sample
sample_now(const struct fbk_flight_recorder *recorder, uint64_t now_ns)
{
    struct timespec used = {0};
    struct rusage usage = {0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    getrusage(RUSAGE_THREAD, &usage);
    return (struct fbk_flight_sample){
        .at_ns = now_ns,
        .processor_ns = (uint64_t)used.tv_sec * 1000000000ull + (uint64_t)used.tv_nsec,
        .delayed_ns = delayed_ns(recorder->schedstat_fd),
        .voluntary = (uint64_t)usage.ru_nvcsw,
        .involuntary = (uint64_t)usage.ru_nivcsw,
    };
}

void
fbk_flight_take_sample(struct fbk_flight_recorder *recorder, uint64_t now_ns)
{
    if (recorder->flight == NULL)
        return;
    struct fbk_flight_sample *samples = recorder->samples;
    for (uint32_t i = FBK_FLIGHT_SAMPLES - 1; i > 0; i--)
        if (samples[i - 1].at_ns - samples[i].at_ns >= SAMPLES_APART_NS << 2 * i)
            samples[i] = samples[i - 1];
    samples[0] = sample_now(recorder, now_ns);
}

/* The newest from before then; the oldest there is, if all are younger. */
static const struct fbk_flight_sample *
sample_before(const struct fbk_flight_recorder *recorder, uint64_t began_ns)
{
    const struct fbk_flight_sample *found = &recorder->samples[0];
    for (uint32_t i = 1;
         i < FBK_FLIGHT_SAMPLES && found->at_ns > began_ns && recorder->samples[i].at_ns != 0; i++)
        found = &recorder->samples[i];
    return found;
}

void
fbk_flight_record(struct fbk_flight_recorder *recorder, struct fbk_flight_record *record)
{
    struct fbk_flight *flight = recorder->flight;
    if (flight == NULL)
        return;
    const struct fbk_flight_sample *before = sample_before(recorder, record->received_ns);
    struct fbk_flight_sample now = sample_now(recorder, record->ended_ns);
    record->sampled_ns = before->at_ns;
    record->processor_ns = now.processor_ns - before->processor_ns;
    record->delayed_ns = now.delayed_ns - before->delayed_ns;
    record->voluntary = (uint32_t)(now.voluntary - before->voluntary);
    record->involuntary = (uint32_t)(now.involuntary - before->involuntary);
    record->continued_ns = atomic_load_explicit(&fbk_flight_continued_ns, memory_order_relaxed);
    if (recorder->schedstat_fd < 0)
        record->flags |= FBK_FLIGHT_NO_DELAY;
    uint64_t number = atomic_load_explicit(&flight->written, memory_order_relaxed);
    /* Who reads a slot meanwhile finds `written` moved on by the time that it has copied it, and
     * drops the copy. */
    flight->records[number % FBK_FLIGHT_RECORDS] = *record;
    atomic_store_explicit(&flight->written, number + 1, memory_order_release);
    recorder->last_ns = record->ended_ns;
}
