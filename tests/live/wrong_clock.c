/* A host's clock that is wrong, for the processes that load this: CLOCK_OFFSET_S seconds, or from CLOCK_JUMP_S seconds
   after their start on. Clocks that do not tell the time of day stay right. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static int (*real)(clockid_t, struct timespec *);
static double offset, jump;
static struct timespec start;

__attribute__((constructor)) static void prepare(void)
{
    const char *text;
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    offset = (text = getenv("CLOCK_OFFSET_S")) ? atof(text) : 0;
    jump = (text = getenv("CLOCK_JUMP_S")) ? atof(text) : 0;
    real(CLOCK_MONOTONIC, &start);
}

int clock_gettime(clockid_t which, struct timespec *now)
{
    struct timespec since;
    long long ns;
    int code = real(which, now);
    if (code || (which != CLOCK_REALTIME && which != CLOCK_REALTIME_COARSE))
        return code;
    real(CLOCK_MONOTONIC, &since);
    if (since.tv_sec - start.tv_sec < jump)
        return 0;
    ns = now->tv_nsec + (long long)(offset * 1e9);
    now->tv_sec += ns / 1000000000 - (ns % 1000000000 < 0);
    now->tv_nsec = (ns % 1000000000 + 1000000000) % 1000000000;
    return 0;
}

time_t time(time_t *result)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result)
        *result = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *now, void *zone)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}
