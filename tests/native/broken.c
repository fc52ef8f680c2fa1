/* Faults on purpose, one for each kind of build: shows that the sanitizers are really there. */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t shared;

static void *
count(void *unused)
{
    for (uint32_t i = 0; i < 100000; i++)
        shared++;
    return unused;
}

int
main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    if (strcmp(argv[1], "asan") == 0) {
        volatile uint8_t *bytes = malloc(8);
        bytes[0] = 1;
        volatile uint32_t behind = 8;
        const int result = bytes[behind];
        free((void *)(uintptr_t)bytes);
        return result & 0;
    }
    if (strcmp(argv[1], "undefined") == 0) {
        volatile int32_t most = INT32_MAX;
        volatile int32_t above = most + 1;
        return above & 0;
    }
    if (strcmp(argv[1], "tsan") == 0) {
        pthread_t threads[2];
        for (uint32_t i = 0; i < 2; i++)
            if (pthread_create(&threads[i], NULL, count, NULL) != 0)
                return 0;
        for (uint32_t i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        return 0;
    }
#ifdef FBK_DEBUG
    abort();
#endif
    return 0;
}
